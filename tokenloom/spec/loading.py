"""Load a spec from a YAML file, local or at an fsspec URL, and overrides.

Each error becomes a line with the file and line, the key, the rule and the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tokenloom.errors import SpecError, StoreError, message_of
from tokenloom.spec.base import QUOTES
from tokenloom.spec.build_spec import BuildSpec, field_names
from tokenloom.spec.tokenizers import expand_short_name
from tokenloom.storage.stores import is_object
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.wording import SECRET_URL, did_you_mean, shortened

OVERRIDE = "--set "  # the place of a key that an override gave begins with it
KeyPath = tuple[str | int, ...]  # such as ("sources", 0, "path")


def load_spec(path: str | Path, overrides: Sequence[str] = (), overrides_folder: str | Path = ".") -> BuildSpec:
    """Load a spec, with absolute paths.

    Args:
        path: the YAML file, a local path or an fsspec URL. Relative paths in it start from its own folder.
        overrides: "key=value" each; keys are dotted (`documents.min_chars=5`, `sources.0.path=data/*.parquet`), values
            are YAML.
        overrides_folder: the local folder that relative paths in `overrides` start from.

    Raises:
        SpecError: the file can't be read, or contains something that is not allowed.
    """
    file = read_yaml_file(str(path))
    for override in overrides:
        _apply_override(file, override)
    try:
        spec = BuildSpec.model_validate(file.value)
    except ValidationError as error:
        lines = [_message(item, file) for item in error.errors(include_url=False)]
        # Not `from error`, which holds the values unredacted, passwords among them.
        raise SpecError(SECRET_URL.sub("***", "\n".join(lines))) from None
    given = [key for key, _ in spec.paths() if file.place(key_path(key)).startswith(OVERRIDE)]
    keys = [f"sources.{i}" for i in range(len(spec.sources))] + [f"checks.{name}" for name in spec.checks.limits()]
    places = {key: file.place(key_path(key)) for key in keys}
    return spec.resolve(file.folder, dict.fromkeys(given, str(overrides_folder))).with_places(places)


def _apply_override(file: YamlFile, override: str) -> None:
    """Set one key of a spec, by "key=value"; raise SpecError if it is not one, or the spec has no place for the key."""
    name, equals, text = override.partition("=")
    if not equals or not name or "://" in name:  # a secret in a URL must not show in the message
        raise SpecError("--set: write --set key=value, such as --set documents.min_chars=5")
    key = key_path(name)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:  # *.txt, [a-z]+: a text that is not valid YAML is taken literally
        value = text
    if key[0] == "tokenizer" and len(key) > 1 and "tokenizer" in file.value:
        try:  # a short name has no keys: replace it by the full mapping
            file.value["tokenizer"] = expand_short_name(file.value["tokenizer"])
        except ValueError as error:
            raise SpecError(f"--set {override}: tokenizer: {message_of(error)}") from error
    _set(file.value, key, value, override)
    for replaced in [known for known in file.places if known[: len(key)] == key]:
        del file.places[replaced]
    file.places[key] = f"{OVERRIDE}{override}"


def _set(spec: dict[str, Any], key: KeyPath, value: Any, override: str) -> None:
    """Set a key of a nested value; missing mappings and lists on the way to it are created."""
    target: Any = spec
    try:
        for part, following in pairwise(key):
            if isinstance(target, dict):
                target.setdefault(part, [] if isinstance(following, int) else {})
            target = target[part]
        target[key[-1]] = value
    except (IndexError, TypeError) as error:
        raise SpecError(f"--set {override}: the spec has no {dotted(key)}") from error


def _message(item: Any, file: YamlFile) -> str:
    """Return the line for one of pydantic's errors."""
    location, given = item["loc"], item["input"]
    key = _written_key(location, file.value)
    shown = "no value" if given is None else shortened(SECRET_URL.sub("***", repr(given)), 80)
    if item["type"] == "extra_forbidden":
        rule = f"unknown key (value {shown}). {did_you_mean(str(key[-1]), field_names(location[:-1]))}"
    else:
        rule = item["msg"].removeprefix("Value error, ") + ("" if isinstance(given, dict) else f"; got {shown}")
    if isinstance(given, bool | None) and "string" in rule:
        rule += f"; {QUOTES}"
    return f"{file.place(key)}: {dotted(key) or 'spec'}: {rule}"


def _written_key(location: Sequence[str | int], value: Any) -> KeyPath:
    """Return pydantic's location without the names of union members, which the file does not contain."""
    written: list[str | int] = []
    kind = None
    for part in location:
        if part == kind:
            kind = None
            continue
        written.append(part)
        try:
            value = value[part]
        except (LookupError, TypeError):  # it is missing, or has no parts
            value = None
        kind = value.get("kind") if isinstance(value, dict) else None
    return tuple(written)


@dataclass
class YamlFile:
    """The content of a spec file. Overrides change `value` and `places`.

    Attributes:
        name: path or URL, for messages.
        folder: the local path or URL that its relative paths start from.
        value: the mapping in the file.
        places: where each key was written, such as "news.yaml:7".
    """

    name: str
    folder: str
    value: dict[str, Any]
    places: dict[KeyPath, str]

    def place(self, key: KeyPath) -> str:
        """Return where a key or else its closest parent was written; the name of the file if neither was.

        Overrides of parts of its value follow: "news.yaml:7 with --set sources.0.path=x".
        """
        place = self.name
        for length in range(1, len(key) + 1):
            place = self.places.get(key[:length], place)
        overrides = [
            override
            for part, override in self.places.items()
            if key and part != key and part[: len(key)] == key and override.startswith(OVERRIDE)
        ]
        return f"{place} with {' '.join(overrides)}" if overrides else place


def read_yaml_file(name: str) -> YamlFile:
    """Read a spec file.

    Args:
        name: a local path or an fsspec URL.

    Raises:
        SpecError: the file does not exist or is not UTF-8, is not valid YAML, or the URL carries a secret.
        StoreError: a remote store can't be read.
    """
    data, folder = _read(name)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{name}: a spec must be UTF-8; byte {error.start} is not. Save it as UTF-8") from error
    node, value = _parse(text, name)
    places: dict[KeyPath, str] = {}
    for key, line in _keys(node, ()):
        if key in places:
            raise SpecError(f"{name}:{line}: {dotted(key)} is given twice; remove one")
        places[key] = f"{name}:{line}"
    return YamlFile(name, folder, value, places)


def dotted(key: KeyPath) -> str:
    """Return a key as messages show it: "sources.0.path"."""
    return ".".join(map(str, key))


def key_path(text: str) -> KeyPath:
    """Return the parts of a dotted key, the reverse of `dotted`."""
    return tuple(int(part) if part.isdigit() else part for part in text.split("."))


def _read(name: str) -> tuple[bytes, str]:
    """Return the bytes of a file, and its folder."""
    try:
        return _read_url(name) if "://" in name else (read_regular(name), str(Path(name).parent.absolute()))
    except FileNotFoundError as error:
        advice = "check the URL" if "://" in name else f"`tokenloom init {name}` writes a starter spec"
        raise SpecError(f"{name}: no such file; {advice}") from error
    except StoreError:
        raise
    except OSError as error:
        raise SpecError(f"{name}: can't be read: {getattr(error, 'strerror', None) or message_of(error)}") from error


def _read_url(url: str) -> tuple[bytes, str]:
    """Return the bytes at a URL, and the URL of its folder."""
    if SECRET_URL.search(url):
        place = SECRET_URL.sub("***", url)
        raise SpecError(f"{place}: a URL must not contain a password; give credentials in the environment")
    folder = url.partition("?")[0].rpartition("/")[0]
    if is_object(url):
        from tokenloom.storage.stores.remote import RemoteStore

        host, _, path = url.partition("://")[2].partition("/")
        return RemoteStore(f"{url.partition('://')[0]}://{host}").read(path), folder
    import fsspec

    try:
        with fsspec.open(url) as file:
            return file.read(), folder
    except (ImportError, ValueError) as error:
        raise SpecError(f"{url}: this kind of URL can't be read here: {message_of(error)}; copy the file") from error


class _Loader(yaml.SafeLoader):
    """A loader without aliases: an override of one of two equal values would change the other, too."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            problem = "aliases (*name) are not supported; write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        return super().compose_node(parent, index)


def _parse(text: str, name: str) -> tuple[yaml.MappingNode, dict[str, Any]]:
    """Return the mapping in a text, as a tree of nodes that know their lines and as a value."""
    try:
        node, value = _Loader(text).get_single_node(), _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        advice = 'quote values that contain [ ] { } * & ! # : or a comma, such as path: "a[0-2].parquet"'
        raise SpecError(f"{name}{line}: not valid YAML: {error.problem}; {advice}") from error
    except RecursionError as error:
        raise SpecError(f"{name}: not valid YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{name}: not valid YAML: {message_of(error)}") from error
    if not isinstance(node, yaml.MappingNode):
        found = "an empty file" if value is None else repr(value)
        raise SpecError(f"{name}: a spec is a mapping of keys ({', '.join(field_names(()))}), not {found}")
    return node, value


def _keys(node: yaml.Node, parent: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield every key and list position below a node, with its line."""
    if isinstance(node, yaml.MappingNode):
        keys: dict[object, KeyPath] = {}  # by value: 4 and 4.0 are one key of a mapping
        for name, value in node.value:
            key = keys.setdefault(_Loader("").construct_object(name), (*parent, str(name.value)))
            yield key, name.start_mark.line + 1
            yield from _keys(value, key)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*parent, i), item.start_mark.line + 1
            yield from _keys(item, (*parent, i))
