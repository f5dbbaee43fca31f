"""Validate a spec from a file: each error of pydantic becomes a line with place, key, rule and value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from tokenloom.errors import SpecError
from tokenloom.spec.build_spec import BuildSpec, field_names, kind_names
from tokenloom.spec.values import RULES
from tokenloom.spec.yaml_file import KeyPath, YamlFile, dotted
from tokenloom.storage.stores.remote_errors import SECRET_URL
from tokenloom.wording import did_you_mean, shortened

_EXAMPLES = {"tokenizer": "; such as tokenizer: {kind: tiktoken, name: gpt2} or {kind: byte}"}


def validate_spec(file: YamlFile) -> BuildSpec:
    """Return the spec; raise SpecError with a line for each error."""
    try:
        return BuildSpec.model_validate(file.value)
    except ValidationError as error:
        lines = [_message(item, file) for item in error.errors(include_url=False)]
        # Not `from error`, which holds the values unredacted, passwords among them.
        raise SpecError(SECRET_URL.sub("***", "\n".join(lines))) from None


def _message(item: Any, file: YamlFile) -> str:
    """Return the line for one of pydantic's errors."""
    location, problem = item["loc"], item["type"]
    key = _written_key(location, file.value)
    if problem == "invalid_key":  # its location ends with the key itself, which may look like a position
        key = (*_written_key(location[:-1], file.value), str(item["input"]))
    if problem in ("union_tag_invalid", "union_tag_not_found"):
        key = (*key, "kind")
    name = dotted(key) or "spec"
    if problem == "extra_forbidden":
        allowed = field_names(location[:-1])
        rule = f"unknown key (value {_short(item['input'])}). {did_you_mean(str(key[-1]), allowed)}"
    elif problem == "missing":
        rule = f"this key is required and is missing{_EXAMPLES.get(name, '')}"
    elif problem == "union_tag_not_found":
        rule = f"this key is required and is missing. Allowed: {', '.join(kind_names(location))}"
    elif problem == "union_tag_invalid":
        kind = item["ctx"]["tag"]
        rule = f"unknown kind {_short(kind)}. {did_you_mean(kind, kind_names(location))}"
    elif problem == "string_pattern_mismatch":
        rule = f"must be {RULES[item['ctx']['pattern']]}{_given_value(item)}"
    else:
        rule = str(item["msg"]).removeprefix("Value error, ") + _given_value(item)
    return f"{file.place(key)}: {name}: {rule}"


def _given_value(item: Any) -> str:
    """Return the value that was given, "" for an error of a whole part, such as a source: that is too long."""
    is_whole_part = item["type"] == "value_error" and isinstance(item["input"], dict)
    return "" if is_whole_part else f"; got {_short(item['input'])}"


def _written_key(location: Sequence[str | int], value: Any) -> KeyPath:
    """Return pydantic's location without what the file does not contain: the names of union members."""
    written: list[str | int] = []
    skipped = False
    for part in location:
        if isinstance(value, dict) and isinstance(part, int) and part < len(value):
            return (*written, str(list(value)[part]))  # a list written as a mapping
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


def _short(value: Any) -> str:
    return "no value" if value is None else shortened(SECRET_URL.sub("***", repr(value)), 80)
