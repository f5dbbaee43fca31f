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
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tokenloom.storage.formats.names import SHA256_PATTERN

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Value = TypeVar("Value")
Decoder = Callable[[object], object]

JsonObject = dict[str, object]

_RULES = {int: "an integer", float: "a number", str: "text", bool: "true or false", NoneType: "null"}

MAX_COUNT = 2**63 - 1
COUNT_RULE, DIGEST_RULE = "a count in [0, 2**63)", "a SHA-256 in hexadecimal"


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

    Give an annotation a name at the level of its module if `holds` uses names of the module.
    """

    holds: Callable[[Value], object]
    text: str


Count = Annotated[int, Rule(lambda value: 0 <= value <= MAX_COUNT, COUNT_RULE)]
Digest = Annotated[str, Rule(SHA256_PATTERN.match, DIGEST_RULE)]


def decode_record(kind: type[Record], value: object) -> Record:
    """Return JSON as a record; raises Mismatch if a field is missing or has another type.

    Args:
        kind: a dataclass whose fields are integers, floats, strings, booleans, records, NamedTuples, lists and tuples
            of one type, dictionaries by string, or `object` for any JSON.
        value: as `json.loads` returns it.
    """
    return cast(Record, _decoder(kind)(value))


def fields_of(record: DataclassInstance) -> JsonObject:
    """Return the fields of a record by name; records inside it stay records, which canonical_json writes too."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


@cache
def _decoder(hint: object) -> Decoder:
    """Return the function that checks a JSON value of a type and returns it decoded."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is object:
        return lambda value: value
    if hint is float:
        return _number
    if isinstance(hint, type) and hint in _RULES:
        return _plain(hint)
    if origin is Annotated:
        return _ruled(_decoder(arguments[0]), arguments[1])
    if origin in (UnionType, Union):
        return _optional([_decoder(argument) for argument in arguments if argument is not NoneType])
    if origin in (list, tuple):
        return _sequence(origin, _decoder(arguments[0]))
    if origin is dict:
        return _mapping(*map(_decoder, arguments))
    if decode := getattr(hint, "from_json", None):
        return cast(Decoder, decode)
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _named_tuple(hint)
    raise TypeError(f"a record has no fields of type {hint}")


def _plain(kind: type) -> Decoder:
    def decode(value: object) -> object:
        if type(value) is not kind:
            raise Mismatch("", _RULES[kind])
        if type(value) is int and not -(2**63) <= value <= 2**64:  # what NumPy and a terminal can take
            raise Mismatch("", "an integer of 64 bits")
        return value

    return decode


def _number(value: object) -> object:
    if type(value) not in (int, float) or not abs(cast(float, value)) < 2**64:  # NaN neither
        raise Mismatch("", _RULES[float])
    return value


def _optional(decoders: list[Decoder]) -> Decoder:
    """Return the decoder of null, or of what the first of some decoders can decode."""
    *others, last = decoders

    def decode(value: object) -> object:
        if value is None:
            return None
        for decoder in others:
            with suppress(Mismatch):
                return decoder(value)
        return last(value)

    return decode


def _sequence(kind: type, item: Decoder) -> Decoder:
    def decode(value: object) -> object:
        if not isinstance(value, list | tuple):
            raise Mismatch("", "a list")
        try:
            return kind(map(item, value))
        except Mismatch as error:
            raise error.inside("[]") from None

    return decode


def _ruled(decoder: Decoder, rule: Rule[object]) -> Decoder:
    def decode(value: object) -> object:
        try:
            decoded = decoder(value)
        except Mismatch as error:
            raise (error if error.field else Mismatch("", rule.text)) from None
        if not rule.holds(decoded):
            raise Mismatch("", rule.text)
        return decoded

    return decode


def _mapping(name: Decoder, item: Decoder) -> Decoder:
    def decode(value: object) -> object:
        if not isinstance(value, dict):
            raise Mismatch("", "an object")
        for key in value:
            try:
                name(key)
            except Mismatch as error:
                raise Mismatch("", f"{error.rule}, not {key[:64]!r}") from None
        return {key: _of_field(key, item, part) for key, part in value.items()}

    return decode


def _dataclass(kind: type) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    decoders = [
        (field.name, _decoder(hints[field.name]), (field.default, field.default_factory) != (MISSING, MISSING))
        for field in fields(kind)
    ]

    def decode(value: object) -> object:
        if not isinstance(value, dict):
            raise Mismatch("", "an object")
        known = {
            name: _of_field(name, decoder, _given(value, name))
            for name, decoder, has_default in decoders
            if not (has_default and name not in value)
        }
        return kind(**known)

    return decode


def _named_tuple(kind: type) -> Decoder:
    decoders = [(name, _decoder(hint)) for name, hint in get_type_hints(kind, include_extras=True).items()]

    def decode(value: object) -> object:
        if not isinstance(value, list | tuple) or len(value) != len(decoders):
            raise Mismatch("", f"a list of {len(decoders)} values")
        return kind(*(_of_field(name, decoder, part) for (name, decoder), part in zip(decoders, value, strict=True)))

    return decode


def _given(value: JsonObject, name: str) -> object:
    if name not in value:
        raise Mismatch(name, "given")
    return value[name]


def _of_field(name: str, decoder: Decoder, value: object) -> object:
    try:
        return decoder(value)
    except Mismatch as error:
        raise error.inside(name) from None
