"""Records: JSON of a known shape as frozen dataclasses, and the decoder that checks it.

The fields of a record have the names of its JSON's keys. Other keys are ignored, and a field with a default may be
missing. A NamedTuple is a JSON array with an item for each field. `Annotated[int, Rule(...)]` restricts the
values of a field, or the keys of an object. A class with a method `from_json` decodes itself.

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        name: str | None

    decode_record(Point, {"x": 1, "name": None, "z": 3}) -> Point(1, None)
    decode_record(Point, {"x": "1", "name": None})       -> Mismatch: x must be an integer
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from tokenloom.storage.formats.names import SHA256_PATTERN

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Value = TypeVar("Value")

JsonObject = dict[str, object]

_NAMES: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    list: "a list",
    dict: "an object",
}

_MAX_COUNT = 2**63 - 1


class Mismatch(Exception):
    """A field of a record does not have the type or the value it must have.

    Args:
        field: its name, with those of the records around it: `splits.train.tokens`.
        rule: what it must be.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(field, rule)
        self.field, self.rule = field, rule

    def __str__(self) -> str:
        return f"{self.field or 'it'} must be {self.rule}"

    def inside(self, parent: str) -> Mismatch:
        """Return the same mismatch, for a field inside the field `parent`."""
        separator = "" if not self.field or self.field.startswith("[") else "."
        return Mismatch(f"{parent}{separator}{self.field}", self.rule)


@dataclass(frozen=True)
class Rule(Generic[Value]):
    """What the values of a type must be: `holds` is falsy for others, and `text` completes "it must be".

    `of_all`, where it is faster, says whether all values of a column hold.

    Give an annotation a name at the level of its module if `holds` uses names of the module.
    """

    holds: Callable[[Value], object]
    text: str
    of_all: Callable[[list[Value]], object] | None = None


def _are_digests(column: list[str]) -> bool:
    is_long = set(map(len, column)) <= {64}
    return is_long and not "".join(column).encode("ascii", "replace").translate(None, b"0123456789abcdef")


Count = Annotated[
    int,
    Rule(
        lambda value: 0 <= value <= _MAX_COUNT,
        "a count in [0, 2**63)",
        lambda column: min(column, default=0) >= 0 and max(column, default=0) <= _MAX_COUNT,
    ),
]
Digest = Annotated[str, Rule(SHA256_PATTERN.match, "a SHA-256 in hexadecimal", _are_digests)]


def decode_record(kind: type[Record], value: object) -> Record:
    """Return JSON as a record; raises Mismatch if a field is missing or has another type.

    Args:
        kind: a dataclass whose fields are integers, floats, strings, booleans, records, NamedTuples, lists and tuples
            of one type, dictionaries by string, or `object` for any JSON.
        value: as `json.loads` returns it.
    """
    return cast(Record, _decode("", _shape(kind), value))


def fields_of(record: DataclassInstance) -> JsonObject:
    """Return the fields of a record by name; records inside it stay records, which canonical_json writes too."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


class _Shape(NamedTuple):
    """What a type says of JSON: the types of its parts, and the rule that its values follow."""

    kind: object  # object, Union, int, float, str, bool, list, tuple, dict, or a class
    parts: tuple[_Shape, ...]  # of a union: the types; of a list: that of an item; of an object: those of name and item
    fields: dict[str, tuple[_Shape, bool]]  # of a record: the types of its fields, and whether they must be given
    rule: Rule[object] | None


@cache
def _shape(hint: object, rule: Rule[object] | None = None) -> _Shape:
    """Return what a type of a field says of JSON."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _shape(*arguments)
    if origin in (UnionType, Union):
        return _Shape(Union, tuple(_shape(each) for each in arguments if each is not NoneType), {}, rule)
    if origin in (list, tuple):
        return _Shape(origin, (_shape(arguments[0]),), {}, rule)
    if origin is dict:
        return _Shape(dict, tuple(map(_shape, arguments)), {}, rule)
    if not isinstance(hint, type):
        raise TypeError(f"a record has no fields of type {hint}")
    found: dict[str, tuple[_Shape, bool]] = {}
    if not hasattr(hint, "from_json") and (is_dataclass(hint) or issubclass(hint, tuple)):
        hints = get_type_hints(hint, include_extras=True)
        own = fields(hint) if is_dataclass(hint) else ()
        optional = {each.name for each in own if (each.default, each.default_factory) != (MISSING, MISSING)}
        found = {name: (_shape(hints[name]), name not in optional) for name in hints}
    return _Shape(hint, (), found, rule)


def _decode(name: str, shape: _Shape, value: object) -> object:
    """Return the JSON value of the field `name`, decoded; "" for the whole of a record."""
    rule = shape.rule
    try:
        decoded = _decoded(shape, value)
        if rule and not rule.holds(decoded):
            raise Mismatch("", rule.text)
    except Mismatch as error:
        found = Mismatch("", rule.text) if rule and not error.field else error
        raise (found.inside(name) if name else found) from None
    return decoded


def _decoded(shape: _Shape, value: object) -> object:
    kind, parts = shape.kind, shape.parts
    if kind is object:
        return value
    if kind in (int, float, str, bool):
        return _plain(kind, value)
    if kind is Union:
        if value is None:
            return None
        for part in parts[:-1]:
            with suppress(Mismatch):
                return _decode("", part, value)
        return _decode("", parts[-1], value)
    if kind in (list, tuple):
        if not isinstance(value, list | tuple):
            raise Mismatch("", "a list")
        items = (_decode("[]", parts[0], item) for item in value)
        return list(items) if kind is list else tuple(items)
    if decode := getattr(kind, "from_json", None):
        return decode(value)
    return _decoded_object(shape, value)


def _plain(kind: object, value: object) -> object:
    is_number = kind is float and type(value) in (int, float) and abs(cast(float, value)) < 2**64  # NaN is none
    if not is_number and (kind is float or type(value) is not kind):
        raise Mismatch("", _NAMES[kind])
    if kind is int and not -(2**63) <= cast(int, value) <= 2**64:  # what NumPy and a terminal can take
        raise Mismatch("", "an integer of 64 bits")
    return value


def _decoded_object(shape: _Shape, value: object) -> object:
    """Return a dictionary, a dataclass, or a NamedTuple, which is a list in JSON."""
    kind, found = cast("type[object]", shape.kind), shape.fields
    if issubclass(kind, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(found):
            raise Mismatch("", f"a list of {len(found)} values")
        value = dict(zip(found, value, strict=True))
    if not isinstance(value, dict):
        raise Mismatch("", "an object")
    if kind is dict:
        name_shape, item_shape = shape.parts
        for name in value:
            try:
                _decode("", name_shape, name)
            except Mismatch as error:
                raise Mismatch("", f"{error.rule}, not {name[:64]!r}") from None
        return {name: _decode(name, item_shape, item) for name, item in value.items()}
    decoded: JsonObject = {}
    for name, (field, is_required) in found.items():
        if name in value:
            decoded[name] = _decode(name, field, value[name])
        elif is_required:
            raise Mismatch(name, "given")
    return kind(**decoded)


def check_column(hint: object, column: list[object], place: str) -> None:
    """Raise Mismatch for `place` unless all values of a column have a type; of objects and lists, not their parts.

    A loop in Python over the rows of 100,000 shards would take as long as parsing them.
    """
    shape = _shape(hint)
    rule, kinds = shape.rule, [*(part.kind for part in shape.parts), NoneType] if shape.kind is Union else [shape.kind]
    holds = not set(map(type, column)).difference(kinds)
    if holds and rule:
        holds = bool(rule.of_all(column)) if rule.of_all else all(map(rule.holds, column))
    if not holds:
        raise Mismatch(place, rule.text if rule else " or ".join(_NAMES[kind] for kind in kinds))
