"""Validate a spec from a file: each error of pydantic becomes a line that starts with the place and the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from tokenloom.errors import SpecError
from tokenloom.spec.build_spec import BuildSpec, field_names, kind_names
from tokenloom.spec.messages import pydantic_rule
from tokenloom.spec.tokenizers import tiktoken_names
from tokenloom.spec.yaml_file import KeyPath, YamlFile, dotted
from tokenloom.storage.stores.remote_errors import SECRET_URL
from tokenloom.wording import did_you_mean, near_miss

_OF_READER = dict.fromkeys(("seq_len", "packing", "labels"), "TokenDataset") | dict.fromkeys(
    ("batch_size", "num_epochs", "order", "lanes", "prefetch"), "TokenLoader"
)
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
        rule = pydantic_rule(item) + _given_value(item) + _meant_tokenizer(item)
        if name == "tokenizer":
            rule = rule.replace("must be a mapping", "must be a name, such as gpt2, or a mapping")
    return f"{file.place(key)}: {name}: {rule}"


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


def _meant_tokenizer(item: Any) -> str:
    """Return a question that names the encoding of tiktoken closest to a name that is not in lower case."""
    if item["type"] != "string_pattern_mismatch" or item["loc"][-2:] != ("tiktoken", "name"):
        return ""
    hint = near_miss(item["input"], tiktoken_names())
    return hint and f". {hint}"


def _given_value(item: Any) -> str:
    is_whole_part = item["type"] == "value_error" and isinstance(item["input"], dict)  # a source, say: too long
    return "" if is_whole_part else f"; got {_short(item['input'])}"


def _written_key(location: Sequence[str | int], value: Any) -> KeyPath:
    """Return pydantic's location without what the file does not contain: the names of union members."""
    written: list[str | int] = []
    skipped = False
    for part in location:
        if isinstance(value, dict) and isinstance(part, int) and part < len(value):
            return (*written, list(value)[part])  # a list written as a mapping
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
    text = "no value" if value is None else SECRET_URL.sub("***", repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
