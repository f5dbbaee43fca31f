"""Load a spec from a YAML file and overrides; every error names file, line, key, value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tokenloom.errors import SpecError, message_of
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.tokenizers import expand_short_name
from tokenloom.spec.validation import validate_spec
from tokenloom.spec.yaml_file import OVERRIDE, KeyPath, YamlFile, dotted, key_path, read_yaml_file


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
    spec = validate_spec(file)
    given = [key for key, _ in spec.paths() if file.place(key_path(key)).startswith(OVERRIDE)]
    folders = dict.fromkeys(given, str(overrides_folder))
    keys: list[tuple[str | int, ...]] = [("sources", i) for i in range(len(spec.sources))]
    keys += [("checks", name) for name in spec.checks.limits()]
    places = {".".join(map(str, key)): file.place(key) for key in keys}
    return spec.resolve(file.folder, folders).with_places(places)


def _apply_override(file: YamlFile, override: str) -> None:
    """Set one key of a spec, by "key=value"; raise SpecError if it is not one, or the spec has no place for the key."""
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise SpecError(f"--set {override}: write --set key=value, such as --set documents.min_chars=5")
    if "://" in name:  # a URL cut at its first =: a secret in it must not show in the message
        raise SpecError("--set: a URL precedes the =; write --set key=value, such as --set store=s3://bucket/store")
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
    for depth, (part, following) in enumerate(pairwise(key), start=1):
        if isinstance(target, list) and isinstance(part, int) and part < len(target):
            target = target[part]
        elif isinstance(target, dict) and isinstance(part, str):
            target = target.setdefault(part, [] if isinstance(following, int) else {})
        else:
            raise SpecError(f"--set {override}: the spec has no {dotted(key[:depth])}")
    last: Any = key[-1]
    if not (isinstance(target, dict) or (isinstance(target, list) and isinstance(last, int) and last < len(target))):
        raise SpecError(f"--set {override}: the spec has no {dotted(key)}")
    target[last] = value
