"""The page of the spec, from its pydantic models: each block a section, each key an entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scripts.reference_pages.docstrings import prose
from scripts.reference_pages.markdown import guide_link, link, sentence
from scripts.reference_pages.spec_examples import BASE, EXAMPLES
from tokenloom.spec.base import as_list
from tokenloom.spec.build_spec import BuildSpec, models_by_kind

_HEAD = """\
# The spec

This page lists every key of a spec, the YAML file that describes a build: its type, its default, and what it does.

A key that is not listed is an error, and values are not converted: `"5"` is not an integer. Relative paths start from
the folder of the file. `tokenloom init` writes a commented spec to start from, `tokenloom build SPEC --set KEY=VALUE`
overrides a key, such as `--set documents.min_chars=5`, and Prefect's UI shows the same keys as a form. The smallest
spec:
"""
_WHOLE_TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "`true` or `false`"}
_MANY_TYPES = {"string": "texts", "integer": "integers", "number": "numbers", "object": "blocks"}
_GUIDES = {  # the page that shows a block at work
    "sources": "../guides/inputs.md",
    "tokenizer": "../guides/tokenizers.md",
    "documents": "../guides/rows.md#which-rows-become-documents",
    "chat": "../guides/conversations.md",
    "checks": "../guides/checks.md",
    "runner": "../guides/clusters.md#where-the-tasks-run",
    "credentials": "../guides/teams.md#stores-and-credentials",
}


class Key(NamedTuple):
    """What the page says of a key of a block."""

    name: str
    facts: str
    text: str


@cache
def keys(model: type[BaseModel]) -> list[Key]:
    """Return the keys of a model, without its kind."""
    schemas = model.model_json_schema()["properties"]
    fields = {name: field for name, field in model.model_fields.items() if name != "kind"}
    named = {field.alias or name: field for name, field in fields.items()}
    return [Key(name, _facts(field, schemas[name]), field.description or "") for name, field in named.items()]


def page() -> str:
    """Return the page as Markdown."""
    blocks = {name: field for name, field in BuildSpec.model_fields.items() if models_by_kind(field)}
    lines = [_HEAD, _example(BASE), f"- {link('The dataset')}\n{_contents(blocks)}\n", "## The dataset\n"]
    lines += [_entry(key.name, [(key, [])]) for key in keys(BuildSpec) if key.name not in blocks]
    for name, field in blocks.items():
        lines += _block(name, field)
    return "\n".join(lines)


def _contents(blocks: Mapping[str, FieldInfo]) -> str:
    return "\n".join(
        f"- {link(name, text=f'`{name}`')}: {sentence(field.description or '')}" for name, field in blocks.items()
    )


def _example(text: str) -> str:
    return f"```yaml\n{text}```\n"


def _block(name: str, field: FieldInfo) -> Iterator[str]:
    found = models_by_kind(field)
    key = next(key for key in keys(BuildSpec) if key.name == name)
    guide = f" Guide: {guide_link(_GUIDES[name])}." if name in _GUIDES else ""
    yield f"## {name}\n\n{key.facts}\n\n{_text(key.text)}{guide}\n\n{_example(EXAMPLES[name])}"
    if len(found) > 1:
        yield from _kinds(name, found)
    yield from _entries(name, found)


def _kinds(name: str, found: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    yield f"`kind` says which {name.removesuffix('s')} it is, and which other keys there are:\n"
    for kind, model in found.items():
        names = ", ".join(link(f"{name}.{key.name}", text=f"`{key.name}`") for key in keys(model))
        yield f"- `{kind}`: {_text(model.__doc__ or '')} Keys: {names or 'none'}."
    yield ""


def _entries(name: str, found: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    """Yield the entry of each key of some kinds; what is alike in several kinds comes once."""
    entries: dict[str, dict[Key, list[str]]] = {}
    for kind, model in found.items():
        for key in keys(model):
            entries.setdefault(key.name, {}).setdefault(key, []).append(kind)
    for key_name, variants in entries.items():
        yield _entry(f"{name}.{key_name}", [(key, kinds if len(found) > 1 else []) for key, kinds in variants.items()])
        for model in found.values():
            inner = models_by_kind(model.model_fields[key_name]) if key_name in model.model_fields else {}
            if set(inner) == {""}:  # a block with kinds is described where its kinds are
                yield from _entries(f"{name}.{key_name}", inner)


def _entry(name: str, variants: Sequence[tuple[Key, list[str]]]) -> str:
    """Return the entry of a key; with several variants, an item for each, which says of which kinds it is."""
    if len(variants) == 1:
        ((key, kinds),) = variants
        of = f" Kinds: {_codes(kinds)}." if kinds else ""
        return f"### `{name}`\n\n{key.facts}\n\n{_text(key.text)}{of}\n"
    items = (f"- {_codes(kinds)}: {key.facts}. {_text(key.text)}" for key, kinds in variants)
    return "\n".join([f"### `{name}`\n", *items, ""])


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _text(text: str) -> str:
    return prose(sentence(text), is_escaped=True)


def _facts(field: FieldInfo, schema: Mapping[str, Any]) -> str:
    """Return the type, the range and the default of a key."""
    kind = _type(schema)
    if any(getattr(item, "func", None) is as_list for item in field.metadata):
        kind += ", or one alone"
    if field.is_required():
        return f"*{kind}, required*"
    default = field.get_default(call_default_factory=True)
    if default is None or isinstance(default, BaseModel):
        return f"*{kind}, optional*"
    if type(default) is int:
        return f"*{kind}*, default `{default:_}`"
    values = [item.model_dump(exclude_none=True) for item in default] if _are_models(default) else default
    shown = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=1000).removesuffix("\n...\n").strip()
    return f"*{kind}*, default `{shown}`"


def _are_models(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, BaseModel) for item in value)


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {_codes(schema['enum'])}"
    kind = schema.get("type", "object")
    if kind == "array":
        items = schema["items"]
        return "list of blocks" if "anyOf" in items or "$ref" in items else f"list of {_MANY_TYPES[items['type']]}"
    if kind == "object":
        values = schema.get("additionalProperties")
        if values:
            return f"mapping of names to {_MANY_TYPES[values['type']]}" if "type" in values else "mapping"
        return "block, or the name of one" if any("enum" in choice for choice in schema.get("anyOf", [])) else "block"
    return " ".join(filter(None, [_WHOLE_TYPES[kind], _range(schema)]))


def _range(schema: Mapping[str, Any]) -> str:
    """Return which values are allowed: "from 1 to 512"."""
    if schema.get("maxLength") == 1:
        return "of one character" if schema.get("minLength") else "of one character or none"
    if pattern := schema.get("pattern"):
        return f"that matches `{pattern}`"
    bounds = [
        f"above {schema['exclusiveMinimum']:,}" if "exclusiveMinimum" in schema else "",
        f"from {schema['minimum']:,}" if "minimum" in schema else "",
        f"to {schema['maximum']:,}" if "maximum" in schema else "",
        f"to {schema['exclusiveMaximum'] - 1:,}" if "exclusiveMaximum" in schema else "",
    ]
    return " ".join(filter(None, bounds))
