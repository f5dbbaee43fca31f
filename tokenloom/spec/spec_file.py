"""A spec from YAML and `--set key=value`; every error names file, line, key, value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tokenloom.errors import SpecError, said
from tokenloom.spec.base import SECRET_URL
from tokenloom.spec.build_spec import BuildSpec, field_names, kind_names
from tokenloom.spec.messages import did_you_mean, pydantic_rule, unexpanded_variable
from tokenloom.spec.yaml_text import read_spec_text

KeyPath = tuple[str | int, ...]
_PATH_KEYS = ("path", "store", "ranks", "encoder", "exclude")
_EXAMPLES = {"tokenizer": "; such as tokenizer: {kind: tiktoken, name: gpt2} or {kind: byte}"}
_PATH_BEGINNINGS = ("./", "../", "~/")  # a name of a Hugging Face dataset that is a folder


def load_spec(path: str | Path, overrides: Sequence[str] = (), overrides_folder: str | Path = ".") -> BuildSpec:
    """Read a spec; relative paths in it count from its own folder.

    Args:
        path: the YAML file, a local path or an fsspec URL.
        overrides: "key=value" each, keys dotted (`documents.min_chars=5`, `sources.0.path=data/*.parquet`), values
            in YAML.
        overrides_folder: from where relative paths in `overrides` count.

    Raises:
        SpecError: the file can't be read, or says something that is not allowed.
    """
    where = str(path)
    text, folder = read_spec_text(where)
    value, places = _parse(text, where)
    for override in overrides:
        _override(value, places, override, Path(overrides_folder))
    spec = _validated(value, places, where)
    _check_variables(spec, places, where, folder)
    lines = {i: _place(("sources", i), places, where) for i in range(len(spec.sources))}
    return spec.resolve(folder).with_source_places(lines)


def _parse(text: str, path: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Return the file's mapping, and the place (file and line) of every key in it."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise SpecError(f"{path}: YAML aliases (*name) are not supported; write the value out")
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"{path}{where}: not valid YAML: {error.problem}{_quoting(text, error)}") from error
    except RecursionError as error:
        raise SpecError(f"{path}: not valid YAML: nested too deep") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{path}: not valid YAML: {said(error)}") from error
    if not isinstance(node, yaml.MappingNode):
        found = "an empty file" if value is None else repr(value)
        raise SpecError(f"{path}: a spec is a mapping of keys ({', '.join(field_names(()))}), not {found}")
    places: dict[KeyPath, str] = {}
    for location, line in _walk(node, ()):
        if location in places:
            raise SpecError(f"{path}:{line}: {_dotted(location)} is given a second time here; remove one")
        places[location] = f"{path}:{line}"
    return value, places


def _quoting(text: str, error: yaml.MarkedYAMLError) -> str:
    """Return the advice to quote a value, where the line of an error holds a character that YAML takes for its own."""
    lines = text.splitlines()
    if not error.problem_mark or error.problem_mark.line >= len(lines):
        return ""
    value = lines[error.problem_mark.line].partition(":")[2]
    if not any(character in value for character in "[]{}*&!#:,"):
        return ""
    return '; quote values that hold [ ] { } * & ! # : or a comma, such as path: "a[0-2].parquet"'


def _walk(node: yaml.Node, location: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*location, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _walk(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*location, i), item.start_mark.line + 1
            yield from _walk(item, (*location, i))


def _override(value: dict[str, Any], places: dict[KeyPath, str], override: str, folder: Path) -> None:
    """Set one dotted key of `value`; missing mappings on the way are made."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SpecError(f"--set {override}: write --set key=value, such as --set documents.min_chars=5")
    if "://" in key:  # cut at its =, a secret of it would be a value like any other
        raise SpecError(
            "--set: a URL stands before the =; write --set key=value, such as --set store=s3://bucket/store"
        )
    try:
        new = yaml.safe_load(text)
    except yaml.YAMLError:  # *.txt, [a-z]+: what is no YAML is meant as it stands
        new = text
    location = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    if isinstance(new, str) and (location[-1] in _PATH_KEYS or new.startswith(_PATH_BEGINNINGS)):
        new = str((folder / Path(new).expanduser()).absolute()) if "://" not in new else new
    target: Any = value
    for depth, (part, following) in enumerate(pairwise(location), start=1):
        if isinstance(target, list) and isinstance(part, int) and part < len(target):
            target = target[part]
        elif isinstance(target, dict) and isinstance(part, str):
            target = target.setdefault(part, [] if isinstance(following, int) else {})
        else:
            raise SpecError(f"--set {override}: the spec has no {_dotted(location[:depth])}")
    last = location[-1]
    if isinstance(target, dict):
        target[last] = new
    elif isinstance(target, list) and isinstance(last, int) and last < len(target):
        target[last] = new
    else:
        raise SpecError(f"--set {override}: the spec has no {_dotted(location)}")
    for inside in [known for known in places if known[: len(location)] == location]:
        del places[inside]
    places[location] = f"--set {override}"


def _validated(value: dict[str, Any], places: dict[KeyPath, str], path: str) -> BuildSpec:
    try:
        return BuildSpec.model_validate(value)
    except ValidationError as error:
        lines = [_told(item, value, places, path) for item in error.errors(include_url=False)]
        # Not `from error`, which holds the values as they stand, passwords among them.
        raise SpecError(SECRET_URL.sub("***", "\n".join(lines))) from None


def _told(item: Any, value: Any, places: dict[KeyPath, str], path: str) -> str:
    """Say one error of pydantic as place: key: rule; the value; what is allowed."""
    location = _written_location(item["loc"], value)
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        location = (*location, "kind")
    place, key = _place(location, places, path), _dotted(location) or "spec"
    if item["type"] == "extra_forbidden":
        allowed = did_you_mean(str(location[-1]), field_names(item["loc"][:-1]))
        return f"{place}: {key}: unknown key (value {_short(item['input'])}). {allowed}"
    if item["type"] == "missing":
        return f"{place}: {key}: this key is required and is missing{_EXAMPLES.get(key, '')}"
    if item["type"] == "union_tag_not_found":
        return f"{place}: {key}: this key is required and is missing. Allowed: {', '.join(kind_names(item['loc']))}"
    if item["type"] == "union_tag_invalid":
        tag = item["ctx"]["tag"]
        return f"{place}: {key}: unknown kind {_short(tag)}. {did_you_mean(tag, kind_names(item['loc']))}"
    is_cut_off = item["type"] == "value_error" and isinstance(item["input"], dict)  # of a whole source, say
    got = "" if is_cut_off else f"; got {_short(item['input'])}"
    return f"{place}: {key}: {pydantic_rule(item)}{got}"


def _place(location: KeyPath, places: dict[KeyPath, str], path: str) -> str:
    """Return where a key stands: its file and line, or those of what it belongs to."""
    return next((places[location[:n]] for n in range(len(location), 0, -1) if location[:n] in places), path)


def _check_variables(spec: BuildSpec, places: dict[KeyPath, str], path: str, folder: str) -> None:
    """Raise SpecError for a path with a variable of a shell, which nobody expands."""
    for key, given in spec.paths():
        if variable := unexpanded_variable(given, folder):
            location = tuple(int(part) if part.isdigit() else part for part in key.split("."))
            typed = given.removeprefix(f"{Path.cwd()}/")  # a path of --set counts from there already
            raise SpecError(
                f"{_place(location, places, path)}: {key}: variables such as {variable} are not expanded in a spec; "
                f'let the shell expand it: --set {key}="{typed}"'
            )


def _written_location(location: Sequence[str | int], value: Any) -> KeyPath:
    """Return pydantic's location without the parts that are not in the file: names of union members."""
    written: list[str | int] = []
    skipped = False
    for part in location:
        if isinstance(value, dict) and isinstance(part, int) and part < len(value):
            return (*written, list(value)[part])  # a list that is written as a mapping
        if (isinstance(value, dict) and value.get("kind") == part and not skipped) or part == "[key]":
            skipped = True
            continue
        is_there = (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        )
        if is_there:
            value, skipped = value[part], False
        written.append(part)
    return tuple(written)


def _dotted(location: KeyPath) -> str:
    return ".".join(map(str, location))


def _short(value: Any) -> str:
    text = "no value" if value is None else SECRET_URL.sub("***", repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
