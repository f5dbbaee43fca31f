"""Adapt the JSON schema of a spec to the form that Prefect makes of it. The meaning of a spec does not change.

The form shows a box for a text or number, tabs for `anyOf` and a list for `enum`. It submits the default of every field
that it shows, and the first tab of a choice that the user did not touch. Presets of the form are therefore only in the
schema: as defaults of the model they would drop out of the identity, and versions would be renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

from tokenloom.spec.values import RULES

_LAST = 1000  # position of a field in the form; fields without a position sort as 0
_AS_USUAL = {"type": "object", "title": "As usual"}  # a tab without fields, which submits nothing


def as_any_of(schema: dict[str, Any]) -> None:
    """Write a choice between kinds as `anyOf`; for `oneOf`, the form shows only the first kind."""
    schema["anyOf"] = schema.pop("oneOf")


def show_in_form(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Change the schema of a part of a spec so that every field of the form can be filled in sensibly.

    An optional field becomes an empty box instead of a choice with "None". A kind becomes a list of its one value.
    """
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            field |= {"enum": [field["const"]], "position": _LAST}
            schema.setdefault("required", []).append(name)
        _remove_null(field, handler)
        if pattern := field.pop("pattern", None):
            # The server would quote the pattern; of a constant it says: 'lower-case letters or digits' was expected
            field |= {"if": {"pattern": pattern}, "else": {"const": RULES[pattern]}}
        if isinstance(default := field.get("default"), dict):
            field["default"] = {key: value for key, value in default.items() if value is not None}


def put_last(schema: dict[str, Any], folded: Sequence[str], rare: Sequence[str]) -> None:
    """Move fields of an object to the end of the form.

    Args:
        schema: of the object; changed in place.
        folded: blocks that open with a click: two tabs, the first without fields. It accepts everything, so `allOf`
            checks what the second submits, and names the field that is wrong.
        rare: fields below these.
    """
    for name in folded:
        field = schema["properties"][name]
        block = {"$ref": field.pop("$ref"), "title": "Change"}
        del field["default"]
        field |= {"title": name.capitalize(), "anyOf": [_AS_USUAL, block], "allOf": [block]}
    for position, name in enumerate((*folded, *rare), start=1):
        schema["properties"][name]["position"] = position


def _remove_null(field: dict[str, Any], handler: GetJsonSchemaHandler) -> None:
    """Write `X | None = None` as X without a default; Prefect's server still accepts null for such a field."""
    choices = field.get("anyOf", [])
    if {"type": "null"} not in choices:
        return
    if field.get("default", ...) is None:
        del field["default"]
    others = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) > 1:
        field["anyOf"] = others  # the first presets nothing, see tokenizers.py
        return
    del field["anyOf"]
    # Not a reference: the server adds null to a schema that has a type of its own.
    field |= handler.resolve_ref_schema(others[0]) | field
