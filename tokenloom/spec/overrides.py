"""Overrides: `--set KEY=VALUE` on the command line, or a line of the parameter `overrides` of `rebuild-dataset`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import yaml

from tokenloom.errors import SpecError, message_of
from tokenloom.spec.tokenizers import expand_short_name
from tokenloom.spec.yaml_file import OVERRIDE, KeyPath, YamlFile, dotted, key_path


def apply_override(file: YamlFile, override: str) -> None:
    """Set one key of a spec.

    Args:
        file: the spec, which is changed.
        override: "key=value"; the key is dotted, the value is YAML.

    Raises SpecError if the override has the wrong form, or the spec has no place for its key.
    """
    key, text = _parts(override)
    if key[0] == "tokenizer" and len(key) > 1:
        _expand_tokenizer(file.value, override)
    _set(file.value, key, _value(text), override)
    for replaced in [known for known in file.places if known[: len(key)] == key]:
        del file.places[replaced]
    file.places[key] = f"{OVERRIDE}{override}"


def _parts(override: str) -> tuple[KeyPath, str]:
    """Return the key and the text of the value."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise SpecError(f"--set {override}: write --set key=value, such as --set documents.min_chars=5")
    if "://" in key:  # a URL cut at its first =: a secret in it must not show in the message
        raise SpecError("--set: a URL precedes the =; write --set key=value, such as --set store=s3://bucket/store")
    return key_path(key), text


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:  # *.txt, [a-z]+: a text that is not valid YAML is taken literally
        return text


def _expand_tokenizer(spec: dict[str, Any], override: str) -> None:
    """Replace the short name of a tokenizer, which has no keys, by the mapping that it stands for."""
    try:
        if "tokenizer" in spec:
            spec["tokenizer"] = expand_short_name(spec["tokenizer"])
    except ValueError as error:
        raise SpecError(f"--set {override}: tokenizer: {message_of(error)}") from error


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
