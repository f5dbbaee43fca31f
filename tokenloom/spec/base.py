"""The base of every part of a spec: strict models that know which of their fields are paths, and how a form shows them.

Prefect's form shows a box for a text or number, tabs for `anyOf` and a list for `enum`. It submits the default of every
field that it shows, and the first tab of a choice that the user did not touch. Presets of the form are therefore only
in the schema: as defaults of the model they would drop out of the identity, and versions would be renamed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tokenloom.errors import SpecError
from tokenloom.spec.syntax import NAME_PATTERN, escaped, parse_filter
from tokenloom.storage.formats.manifest import given_options
from tokenloom.wording import SECRET_URL

QUOTES = "put quotes around yes, no, on, off, true, false and null, as YAML reads no text there"
_LAST = 1000  # position of the kind in the form
_AS_USUAL = {"type": "object", "title": "As usual"}  # a tab without fields, which submits nothing

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


def checked_location(value: str) -> str:
    """Return a path or URL; raise ValueError if a spec can't have it."""
    if "\0" in value:
        raise ValueError("a path can't contain a NUL character; remove it")
    if SECRET_URL.search(value):
        raise ValueError("a URL must not contain a password; give credentials in the environment")
    return value


def _checked_filter(value: str) -> str:
    parse_filter(value)
    return value


RowFilter = Annotated[str, AfterValidator(_checked_filter)]  # parse_filter returns its tree
Location = Annotated[str, Field(min_length=1), AfterValidator(checked_location)]  # a local path or a URL


def as_list(value: Any) -> Any:
    """Return a list of a text, and any other value as it is: an option of a list may be one item."""
    return [value] if isinstance(value, str) else value


def kind_field(kind: str) -> Any:
    """Return the field that distinguishes the kinds of a choice."""
    return Field(kind, description="Set by the tab chosen above")


class SpecModel(BaseModel):
    """A part of a spec; unknown keys are errors, and values are not converted.

    `path_fields` names the fields that hold local paths or URLs. They are made absolute before a build and are not part
    of its identity: the content of the files is. `pattern_fields` are those of them in which wildcards are patterns.
    `operational_fields` decide no byte either.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    path_fields: ClassVar[tuple[str, ...]] = ()
    pattern_fields: ClassVar[tuple[str, ...]] = ()
    operational_fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema that Prefect renders as a form, in which every field can be filled in sensibly.

        An optional field becomes an empty box instead of a choice with "None". A kind becomes a list of its one value.
        """
        schema = handler.resolve_ref_schema(handler(core_schema))
        for position, (name, field) in enumerate(schema.get("properties", {}).items()):
            field["position"] = position  # databases do not keep the order of a mapping
            if "const" in field:
                field |= {"enum": [field["const"]], "position": _LAST}
                schema.setdefault("required", []).append(name)
            _remove_null(field, handler)
            if isinstance(default := field.get("default"), dict):
                field["default"] = {key: value for key, value in default.items() if value is not None}
        return schema

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, path) for every path that is set."""
        for field in self.path_fields:
            if path := getattr(self, field):
                yield field, path

    def with_paths(self, key: str, folder_of: Callable[[str], str]) -> Self:
        """Return the model, which is at `key` of the spec, with absolute paths.

        Args:
            key: where the model is.
            folder_of: returns the folder that a relative path starts from, by the key of the path.
        """
        return self.model_copy(
            update={
                field: join_path(folder_of(f"{key}.{field}"), path, is_pattern=field in self.pattern_fields)
                for field, path in self.paths()
            }
        )

    def identity(self) -> dict[str, Any]:
        """Return the options that determine the bytes of a version, as JSON values; see given_options."""
        without = {*self.operational_fields, *(field for field, _ in self.paths())}
        return given_options(self.model_dump(mode="json", exclude=without))

    def pinned(self, fields: dict[str, Any]) -> Self:
        """Return the model with some fields, see tokenizers.pinned_fields."""
        return self.model_copy(update=fields)


def is_absolute(path: str) -> bool:
    """Return whether `path` is a URL or an absolute local path."""
    return "://" in path or path.startswith("/")


def without_dots(path: str) -> str:
    """Return a local path without `..`, unless that would name another folder because of a link."""
    short = os.path.normpath(path)
    is_same = "://" not in path and os.path.realpath(short) == os.path.realpath(path)
    return short if is_same else path


def join_path(folder: str, path: str, *, is_pattern: bool = False) -> str:
    """Return `path` as an absolute path or URL.

    Args:
        folder: the local folder or URL that a relative path starts from.
        path: a local path or a URL; ~ is the home folder on this machine.
        is_pattern: whether wildcards in `path` are a pattern; those in the names of `folder` never are.

    Raises SpecError if `path` leaves the host or bucket of a URL.
    """
    if is_absolute(path):
        return path
    fixed = escaped if is_pattern else str
    protocol, mark, rest = folder.partition("://")
    if path.startswith("~"):
        home, slash, path = path.partition("/")
        return fixed(str(Path(home).expanduser())) + slash + path
    if not mark:
        return str(Path(fixed(str(Path(folder).absolute()))) / path)
    host, slash, names = rest.partition("/")
    joined = posixpath.normpath(posixpath.join(host + slash + fixed(names), path))
    if joined.split("/")[0] != host:
        raise SpecError(f"{path!r} leaves {folder}, the folder that it is relative to; write an absolute path or a URL")
    return f"{protocol}://{joined}"


def as_any_of(schema: dict[str, Any]) -> None:
    """Write a choice between kinds as `anyOf`; for `oneOf`, the form shows only the first kind."""
    schema["anyOf"] = schema.pop("oneOf")


def folded(schema: dict[str, Any]) -> None:
    """Write a block as two tabs, the first without fields, so that it opens with a click.

    The first tab accepts everything, so `allOf` checks what the second submits, and names the field that is wrong.
    """
    block = {"$ref": schema.pop("$ref"), "title": "Change"}
    del schema["default"]
    schema |= {"anyOf": [_AS_USUAL, block], "allOf": [block]}


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
