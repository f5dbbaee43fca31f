"""How a spec looks in Prefect's form, which is made from its JSON schema: nothing here decides what a spec means.

The form has a box for a text or number, tabs for `anyOf`, a list for `enum`. It sends the default of every field that
it shows, and the first tab of a choice that nobody made. A default that only the form should have is therefore written
here: in the model, a preset would drop out of the identity, and versions would get other names.
"""

from __future__ import annotations

from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

_LAST = 1000  # position of a field in the form; others have none, which counts as 0


def as_any_of(schema: dict[str, Any]) -> None:
    """Write a choice between kinds as `anyOf`: of `oneOf`, the form shows the first kind alone."""
    schema["anyOf"] = schema.pop("oneOf")


def show_in_form(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Change the schema of a part of a spec so that the form shows no field that can't be filled in sensibly.

    A field that may be left out is an empty box, not a choice with "None". A kind is a list of its one value.
    """
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            field |= {"enum": [field["const"]], "position": _LAST}
            schema.setdefault("required", []).append(name)
        _leave_out_null(field, handler)
        if "default" in field:
            field["default"] = _without_nulls(field["default"])


def _leave_out_null(field: dict[str, Any], handler: GetJsonSchemaHandler) -> None:
    """Write `X | None = None` as X without a default; Prefect's server takes null for any such field."""
    choices = field.get("anyOf", [])
    if {"type": "null"} not in choices:
        return
    if field.get("default", ...) is None:
        del field["default"]
    others = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) > 1:
        field["anyOf"] = [*others, {"type": "null"}]
        return
    del field["anyOf"]
    # Not as a reference: to what has a type of its own the server adds null.
    field |= handler.resolve_ref_schema(others[0]) | field


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
