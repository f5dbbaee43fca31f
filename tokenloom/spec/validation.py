"""Validate a spec from a file: each error of pydantic becomes a line with the place, the key and the rule in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tokenloom.errors import SpecError
from tokenloom.spec import values
from tokenloom.spec.build_spec import BuildSpec, field_names, kind_names
from tokenloom.spec.yaml_file import KeyPath, YamlFile, dotted
from tokenloom.storage.stores.remote_errors import SECRET_URL
from tokenloom.wording import did_you_mean, shortened

_OF_READER = dict.fromkeys(("seq_len", "packing", "labels"), "TokenDataset") | dict.fromkeys(
    ("batch_size", "num_epochs", "order", "lanes", "prefetch"), "TokenLoader"
)
_EXAMPLES = {"tokenizer": "; such as tokenizer: {kind: tiktoken, name: gpt2} or {kind: byte}"}
# Messages of pydantic, and the rule that each of them states.
_RULES = [
    (re.compile(message), rule)
    for message, rule in (
        (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
        (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
        (r"Input should be greater than (\S+)", r"must be more than \1"),
        (r"Input should be a finite number", "must be a finite number"),
        (r"Input should be a valid integer(, .*)?", "must be an integer"),
        (r"Input should be a valid number(, .*)?", "must be a number"),
        (r"Input should be a valid boolean(, .*)?", "must be true or false"),
        (r"Input should be a valid string", "must be text"),
        (r"Input should be a valid list", "must be a list"),
        (r"Input should be a valid dictionary( or .*)?", "must be a mapping of keys"),
        (r"Input should be ('.*')", r"must be \1"),
        (r"String should have at least 1 character|List should have at least 1 item.*", "must not be empty"),
        (r"String should have at most 1 character", "must be one character"),
        (r"Keys should be strings", "keys must be text"),
        (r"Value error, ", ""),
    )
]


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
        allowed, elsewhere = field_names(location[:-1]), _elsewhere(location)
        hint = f"{elsewhere} Allowed: {', '.join(allowed)}" if elsewhere else did_you_mean(str(key[-1]), allowed)
        rule = f"unknown key (value {_short(item['input'])}). {hint}"
    elif problem == "missing":
        rule = f"this key is required and is missing{_EXAMPLES.get(name, '')}"
    elif problem == "union_tag_not_found":
        rule = f"this key is required and is missing. Allowed: {', '.join(kind_names(location))}"
    elif problem == "union_tag_invalid":
        kind = item["ctx"]["tag"]
        rule = f"unknown kind {_short(kind)}. {did_you_mean(kind, kind_names(location))}"
    else:
        rule = pydantic_rule(item) + _given_value(item)
        if name == "tokenizer":
            rule = rule.replace("must be a mapping", "must be a name, such as gpt2, or a mapping")
    return f"{file.place(key)}: {name}: {rule}"


def pydantic_rule(item: Mapping[str, Any]) -> str:
    """Return the rule that a pydantic error states, in words."""
    if item["type"] == "string_pattern_mismatch":
        return f"must be {values.RULES[item['ctx']['pattern']]}"
    text = str(item["msg"])
    for message, rule in _RULES:
        text = message.sub(rule, text)
    return text


def _elsewhere(location: Sequence[str | int]) -> str:
    """Return where a key belongs that another part of a spec, or the reader, has; "" if none has it."""
    key, tops = str(location[-1]), field_names(())
    places = ["at the top level"] if key in tops else []
    for top in tops:
        kinds = kind_names((top,))
        names = [name for kind in kinds for name in field_names((top, kind))] if kinds else field_names((top,))
        places += [f"under `{top}`"] if key in names and top != location[0] else []
    belongs = f"it belongs {' or '.join(places)}" if places else ""
    if reader := _OF_READER.get(key):
        return f"It is an argument of {reader} in training{belongs and f'; in a spec, {belongs}'}."
    return belongs and f"{belongs[0].upper()}{belongs[1:]}."


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
