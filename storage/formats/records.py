"""Records: JSON files whose fields are a dataclass, in canonical JSON, most of them signed with their own checksum.

The fields of a record have the names of the JSON's keys. Other keys are ignored, and a field with a default may be
missing. A NamedTuple is a JSON array with an item for each field. `Annotated[int, Rule(...)]` restricts the values.

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        name: str | None

    decode_record(Point, {"x": 1, "name": None, "z": 3}, "p.json") -> Point(1, None)
    decode_record(Point, {"x": "1", "name": None}, "p.json")       -> FormatError: p.json: x must be an integer
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.names import SHA256_PATTERN

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Value = TypeVar("Value")
JsonObject = dict[str, object]
_Values = Sequence[Any]  # type: ignore[explicit-any]

_MARK = b',"checksum":"'
_PLAIN = {int: "an integer of 64 bits", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Rule(Generic[Value]):
    """Restricts the values of a type to those for which `holds` is true; `text` completes "it must be".

    A rule for records sees their JSON.

    Give an annotation a name at the level of its module if `holds` uses names of the module.
    """

    holds: Callable[[Value], object]
    text: str


Count = Annotated[int, Rule(lambda value: 0 <= value < 2**63, "a count in [0, 2**63)")]
Digest = Annotated[str, Rule(SHA256_PATTERN.match, "a SHA-256 in hexadecimal")]


# ---- writing


def canonical_json(value: object) -> bytes:
    """Return JSON or a record as canonical JSON: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_of
    )
    return text.encode()


def plain_json(value: object) -> Any:  # type: ignore[explicit-any]
    """Return JSON or a record as dictionaries, lists and plain values alone."""
    return json.loads(json.dumps(value, default=_json_of))


def _json_of(value: DataclassInstance) -> object:
    return value.rows if isinstance(value, LazyRecords) else fields_of(value)


def fields_of(record: DataclassInstance) -> JsonObject:
    """Return the fields of a record by name; records inside it stay records, which canonical_json writes too."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def sha256_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return sha256_of_bytes(canonical_json(value))


def sha256_of_bytes(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data`, in hexadecimal."""
    import hashlib  # OpenSSL takes 3 ms to load, and `import tokenloom` hashes nothing

    return hashlib.sha256(data).hexdigest()


def sign(value: Mapping[str, object] | DataclassInstance) -> bytes:
    """Return an object or record as canonical JSON with `checksum` as its last field: the SHA-256 of all bytes before.

    Example: {"a": 1} -> {"a":1,"checksum":"..."} where the SHA-256 is that of the bytes `{"a":1`
    """
    body = canonical_json(value)[:-1]
    return body + _MARK + sha256_of_bytes(body).encode() + b'"}'


# ---- reading


def read_record(data: bytes, place: str, kind: type[Record]) -> Record:
    """Return the record in the bytes of a signed file; raises FormatError if the file is damaged.

    Args:
        data: the bytes of the file.
        place: the path of the file, for the message.
        kind: the record's class.
    """
    return decode_record(kind, read_signed(data, place), place)


def read_signed(data: bytes, place: str) -> JsonObject:
    """Return a signed JSON object without its checksum; raises FormatError if the file is damaged."""
    end = data.rfind(_MARK)  # `data` is not sliced below: a manifest may have 34 MB
    with memoryview(data) as view:
        digest = sha256_of_bytes(view[: max(0, end)])
    if end < 0 or data[end + len(_MARK) :] != digest.encode() + b'"}':
        raise FormatError(f"{place}: the checksum does not match its bytes; the file is damaged or incomplete")
    value = cast(JsonObject, parse_json(data, place))  # an object: it ends with "}"
    del value["checksum"]
    return value


def parse_json(data: bytes, place: str) -> object:
    """Return the JSON in the bytes of a file; raises FormatError if it is not valid JSON."""
    collects = gc.isenabled()
    gc.disable()  # JSON has no cycles, and one collection in a program with torch takes 150 ms
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: it does not hold valid JSON; restore it") from error
    finally:
        if collects:
            gc.enable()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def decode_record(kind: type[Record], value: object, place: str, field: str = "") -> Record:
    """Return JSON as a record; raises FormatError, which names the field, if one is missing or has another type.

    Args:
        kind: a dataclass whose fields are integers, floats, strings, booleans, records, NamedTuples, lists and tuples
            of one type, dictionaries by string, or `object` for any JSON; a union of several types is any JSON too.
            A Sequence of records builds each when it is asked for.
        value: as `json.loads` returns it.
        place: the path of the file, for the message.
        field: the name of the field that holds `value`, for the message; "" if it is the whole file.
    """
    try:
        _check(kind, [value], field)
    except _Mismatch as error:
        raise FormatError(f"{place}: {message_of(error)}; restore it") from None
    return cast(Record, _builder(kind)(value))


class _Mismatch(Exception):
    """A field does not have the type or the value it must have."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field or 'it'} must be {rule}")


def _check(hint: Any, values: _Values, field: str) -> None:  # type: ignore[explicit-any]
    """Check the values of a field of many records: a loop over 100,000 shards takes as long as parsing them."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        _check(arguments[0], values, field)
        for rule in arguments[1:]:
            _require(all(map(rule.holds, values)), field, rule.text)
    elif origin in (UnionType, Union):
        kinds = [kind for kind in arguments if kind is not NoneType]
        _check(kinds[0] if len(kinds) == 1 else object, [each for each in values if each is not None], field)
    elif origin in (list, tuple, Sequence):
        _require(set(map(type, values)) <= {list, tuple}, field, "a list")
        indices = (f"[{i}]" for value in values for i in range(len(value)))
        _check_items(arguments[0], list(chain.from_iterable(values)), field, indices)
    elif origin is dict:
        _require(set(map(type, values)) <= {dict}, field, "an object")
        names = list(dict.fromkeys(chain.from_iterable(values)))
        _check_items(arguments[0], names, field, (f"[{name[:64]!r}]" for name in names))
        items = list(chain.from_iterable(value.values() for value in values))
        _check_items(arguments[1], items, field, (f".{name[:64]}" for name in chain.from_iterable(values)))
    elif hint in _PLAIN:
        _require(_are_plain(hint, values), field, _PLAIN[hint])
    elif hint is not object:
        _check_records(hint, values, field)


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise _Mismatch(field, rule)


def _are_plain(kind: type, values: _Values) -> bool:
    types = set(map(type, values))
    if kind is float:
        return types <= {int, float} and all(abs(value) < 2**64 for value in values)
    return types <= {kind} and (kind is not int or not values or (min(values) >= -(2**63) and max(values) <= 2**64))


def _check_items(hint: object, items: _Values, field: str, names: Iterable[str]) -> None:
    """Check the items of lists or objects at once, and one by one to say which is wrong; `names` complete its field."""
    try:
        _check(hint, items, field)
    except _Mismatch:
        for name, item in zip(names, items, strict=True):
            _check(hint, [item], field + name)
        raise


def _check_records(kind: type, values: _Values, field: str) -> None:
    """Check dataclasses, or NamedTuples, which are lists in JSON."""
    hints, optional = _hints(kind)
    if not is_dataclass(kind):
        is_list = set(map(type, values)) <= {list, tuple} and set(map(len, values)) <= {len(hints)}
        _require(is_list, field, f"a list of {len(hints)} values")
        values = [dict(zip(hints, value, strict=True)) for value in values]
    _require(set(map(type, values)) <= {dict}, field, "an object")
    for name, hint in hints.items():
        path = f"{field}.{name}" if field else name
        try:
            column = list(map(itemgetter(name), values))
        except KeyError:
            _require(name in optional, path, "given")
            column = [value[name] for value in values if name in value]
        _check(hint, column, path)


@cache
def _hints(kind: type) -> tuple[dict[str, object], set[str]]:
    """Return the types of the fields of a record, and which of them may be missing."""
    own = fields(kind) if is_dataclass(kind) else ()
    optional = {each.name for each in own if (each.default, each.default_factory) != (MISSING, MISSING)}
    return get_type_hints(kind, include_extras=True), optional


@cache
def _builder(hint: Any) -> Callable[[Any], object]:  # type: ignore[explicit-any]
    """Return a function that makes a value of a type from its checked JSON."""
    origin, arguments = get_origin(hint), get_args(hint)
    kinds = [kind for kind in arguments if kind is not NoneType]
    if origin is Annotated:
        return _builder(kinds[0])
    if hint is object or hint in _PLAIN or (origin in (UnionType, Union) and len(kinds) > 1):
        return lambda value: value
    if origin is Sequence:
        return partial(LazyRecords, arguments[0])
    if origin in (UnionType, Union, list, tuple, dict):
        build = _builder(kinds[1] if origin is dict else kinds[0])
        if origin is dict:
            return lambda value: {name: build(item) for name, item in value.items()}
        if origin in (list, tuple):
            return lambda value: origin(map(build, value))
        return lambda value: None if value is None else build(value)
    builders = {name: _builder(each) for name, each in _hints(hint)[0].items()}
    if not is_dataclass(hint):
        return lambda value: hint(*(each(item) for each, item in zip(builders.values(), value, strict=True)))
    make: Any = hint  # type: ignore[explicit-any]
    return lambda value: make(**{name: each(value[name]) for name, each in builders.items() if name in value})


@dataclass(frozen=True)
class LazyRecords(Sequence[Record]):
    """The records of a field with the type Sequence: checked, and each built when it is asked for."""

    kind: object
    rows: list[JsonObject]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:  # type: ignore[override]  # no slices
        return cast(Record, _builder(self.kind)(self.rows[index]))


def column(records: Sequence[DataclassInstance], name: str) -> list[Any]:  # type: ignore[explicit-any]
    """Return a field with a plain type of each record; of records that are not built yet, without building them."""
    if isinstance(records, LazyRecords):
        return [row[name] for row in records.rows]
    return [getattr(record, name) for record in records]
