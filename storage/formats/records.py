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

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain, islice
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

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Value = TypeVar("Value")
JsonObject = dict[str, object]
_Values = Sequence[Any]  # type: ignore[explicit-any]

SHA256_PATTERN = re.compile(r"[0-9a-f]{64}\Z")
_MARK = b',"checksum":"'
#: the types of plain values in JSON, and their names in messages
_PLAIN: dict[type, tuple[set[type], str]] = {
    int: ({int}, "an integer of 64 bits"),
    float: ({int, float}, "a number"),
    str: ({str}, "text"),
    bool: ({bool}, "true or false"),
}


@dataclass(frozen=True)
class Rule(Generic[Value]):
    """Restricts the values of a type to those for which `holds` is true; `text` completes "it must be".

    Give an annotation a name at the level of its module if `holds` uses names of the module.
    """

    holds: Callable[[Value], object]
    text: str


Count = Annotated[int, Rule(range(2**63).__contains__, "a count in [0, 2**63)")]
Digest = Annotated[str, Rule(SHA256_PATTERN.match, "a SHA-256 in hexadecimal")]


# ---- writing


def canonical_json(value: object) -> bytes:
    """Return JSON or a record as canonical JSON: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields_of
    )
    return text.encode()


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
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: it does not hold valid JSON; restore it") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def decode_record(kind: type[Record], value: object, place: str, field: str = "") -> Record:
    """Return JSON as a record; raises FormatError, which names the field, if one is missing or has another type.

    Args:
        kind: a dataclass whose fields are integers, floats, strings, booleans, records, NamedTuples, lists and tuples
            of one type, dictionaries by string, or `object` for any JSON; a union of several types is any JSON too.
        value: as `json.loads` returns it.
        place: the path of the file, for the message.
        field: the name of the field that holds `value`, for the message; "" if it is the whole file.
    """
    try:
        return cast(Record, _decode(kind, [value], field)[0])
    except _Mismatch as error:
        raise FormatError(f"{place}: {message_of(error)}; restore it") from None


class _Mismatch(Exception):
    """A field does not have the type or the value it must have."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field or 'it'} must be {rule}")


def _decode(hint: Any, values: _Values, field: str) -> list[Any]:  # type: ignore[explicit-any]
    """Check and convert a field of many records: one by one, 100,000 shards would take 1.4 times as long."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        decoded = _decode(arguments[0], values, field)
        for rule in arguments[1:]:
            _require(all(map(rule.holds, decoded)), field, rule.text)
        return decoded
    if origin in (UnionType, Union):
        kinds = [kind for kind in arguments if kind is not NoneType]
        given = iter(_decode(kinds[0] if len(kinds) == 1 else object, [v for v in values if v is not None], field))
        return [None if value is None else next(given) for value in values]
    if origin in (list, tuple):
        _require(set(map(type, values)) <= {list, tuple}, field, "a list")
        indices = (f"[{i}]" for value in values for i in range(len(value)))
        items = _decode_items(arguments[0], list(chain.from_iterable(values)), field, indices)
        return [origin(islice(items, len(value))) for value in values]
    if origin is dict:
        _require(set(map(type, values)) <= {dict}, field, "an object")
        names = list(dict.fromkeys(chain.from_iterable(values)))
        _decode_items(arguments[0], names, field, (f"[{name[:64]!r}]" for name in names))
        paths = (f".{name[:64]}" for name in chain.from_iterable(values))
        items = _decode_items(arguments[1], list(chain.from_iterable(map(dict.values, values))), field, paths)
        return [dict(zip(value, items, strict=False)) for value in values]
    if hint in _PLAIN:
        types, name = _PLAIN[hint]
        _require(set(map(type, values)) <= types, field, name)
        if hint in (int, float) and values:
            _require(min(values) >= -(2**64) and max(values) <= 2**64, field, name)
    elif hint is not object:
        return _decode_records(hint, values, field)
    return list(values)


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise _Mismatch(field, rule)


def _decode_items(hint: object, items: _Values, field: str, names: Iterable[str]) -> Iterator[Any]:  # type: ignore[explicit-any]
    """Decode items of lists or objects; if one is wrong, decode each alone to find it: `names` complete its field."""
    try:
        return iter(_decode(hint, items, field))
    except _Mismatch:
        for name, item in zip(names, items, strict=True):
            _decode(hint, [item], field + name)
        raise


def _decode_records(kind: Any, values: _Values, field: str) -> list[Any]:  # type: ignore[explicit-any]
    """Decode dataclasses, or NamedTuples, which are lists in JSON."""
    hints, defaults = _fields(kind)
    if not is_dataclass(kind):
        is_list = set(map(type, values)) <= {list, tuple} and set(map(len, values)) <= {len(hints)}
        _require(is_list, field, f"a list of {len(hints)} values")
        values = [dict(zip(hints, value, strict=True)) for value in values]
    _require(set(map(type, values)) <= {dict}, field, "an object")
    columns = []
    for name, hint in hints.items():
        path = f"{field}.{name}" if field else name
        try:
            column = list(map(itemgetter(name), values))
        except KeyError:
            _require(name in defaults, path, "given")
            column = [value.get(name, defaults[name]) for value in values]
        columns.append(_decode(hint, column, path))
    return list(map(kind, *columns))


@cache
def _fields(kind: type) -> tuple[dict[str, object], JsonObject]:
    """Return the types of the fields of a record, and the values of those that may be missing."""
    own = fields(kind) if is_dataclass(kind) else ()
    defaults = {each.name: each.default for each in own if each.default is not MISSING}
    made = {each.name: each.default_factory() for each in own if each.default_factory is not MISSING}
    return get_type_hints(kind, include_extras=True), defaults | made
