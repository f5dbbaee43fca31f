"""A YAML file of a spec, local or at an fsspec URL, with the line of every key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tokenloom.errors import SpecError, StoreError, message_of
from tokenloom.spec.build_spec import field_names
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.stores.remote_errors import SECRET_URL

OVERRIDE = "--set "  # the place of a key that an override gave begins with it
_NOT_TEXT = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null", "timestamp"))
KeyPath = tuple[str | int, ...]  # such as ("sources", 0, "path")


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
        parents = (key[:n] for n in range(len(key), 0, -1))
        place = next((self.places[parent] for parent in parents if parent in self.places), self.name)
        below = [at for part, at in self.places.items() if key and part[: len(key)] == key and part != key]
        overrides = [at for at in below if at.startswith(OVERRIDE)]
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
    except IsADirectoryError as error:
        raise SpecError(f"{name}: this is a folder; name the YAML file of the spec") from error
    except StoreError:
        raise
    except OSError as error:
        raise SpecError(f"{name}: can't be read: {getattr(error, 'strerror', None) or message_of(error)}") from error


def _read_url(url: str) -> tuple[bytes, str]:
    """Return the bytes at a URL, and the URL of its folder."""
    from tokenloom.storage.stores.remote import RemoteStore

    if SECRET_URL.search(url):
        place = SECRET_URL.sub("***", url)
        raise SpecError(f"{place}: a URL must not contain a password; give credentials in the environment")
    protocol, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    if protocol in ("http", "https"):
        rest = rest.partition("?")[0]
    return RemoteStore(f"{protocol}://{host}").read(path), f"{protocol}://{rest.rpartition('/')[0]}"


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
        for name, value in node.value:
            is_text = name.tag not in _NOT_TEXT  # others as YAML reads them: yes -> True
            key = (*parent, str(name.value if is_text else yaml.safe_load(name.value)))
            yield key, name.start_mark.line + 1
            yield from _keys(value, key)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*parent, i), item.start_mark.line + 1
            yield from _keys(item, (*parent, i))
