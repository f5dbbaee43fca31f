"""Records: JSON files whose fields are a dataclass, in canonical JSON, most of them signed with their own checksum.

The fields of a record have the names of the JSON's keys. Other keys are ignored, and a field with a default may be
missing. A NamedTuple is a JSON array with an item for each field, a TypedDict stays an object. `Annotated[int,
Rule(...)]` restricts the values.

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
from collections.abc import Callable, Mapping
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
    is_typeddict,
)

from tokenloom.errors import FormatError, message_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Value = TypeVar("Value")
JsonObject = dict[str, object]
_Values = list[Any]  # type: ignore[explicit-any]

SHA256_PATTERN = re.compile(r"[0-9a-f]{64}\Z")
_MARK = b',"checksum":"'
_MOST = 2**64  # numbers lie in [-_MOST, _MOST]
_RUN_ITEMS = 1000  # decoded together: their columns stay in the processor's cache
_hints_of = cache(get_type_hints)
#: the types of JSON's values that a type is read from, and their name in messages
_JSON_TYPES: dict[type, tuple[set[type], str]] = {
    int: ({int}, "an integer of 64 bits"),
    float: ({int, float}, "a number"),
    str: ({str}, "text"),
    bool: ({bool}, "true or false"),
    list: ({list, tuple}, "a list"),
    tuple: ({list, tuple}, "a list"),
    dict: ({dict}, "an object"),
}


@dataclass(frozen=True)
class Rule(Generic[Value]):
    """Restricts the values of a type to those for which `holds` is true; `text` completes "it must be".

    If it is `of_all`, `holds` takes a list of values, at least one, and is true if the rule holds for each: a manifest
    may have 300,000. Give an annotation a name at the level of its module if `holds` uses names of the module.
    """

    holds: Callable[[Value], object]
    text: str
    of_all: bool = False


Count = Annotated[
    int, Rule(lambda values: min(values) >= 0 and max(values) < 2**63, "a count in [0, 2**63)", of_all=True)
]
Digest = Annotated[
    str,
    Rule(
        lambda values: (
            set(map(len, values)) == {64}
            and not "".join(values).encode(errors="replace").translate(None, delete=b"0123456789abcdef")
        ),
        "a SHA-256 in hexadecimal",
        of_all=True,
    ),
]


# ---- writing


def canonical_json(value: object) -> bytes:
    """Return JSON or a record as canonical JSON: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields_of
    )
    return text.encode()


def fields_of(record: DataclassInstance) -> JsonObject:
    """Return the fields of a record by name; records inside it stay records, which canonical_json writes too.

    A field with the metadata {"absent": VALUE} is left out if it has that value.
    """
    pairs = ((field, getattr(record, field.name)) for field in fields(record))
    return {field.name: value for field, value in pairs if value != field.metadata.get("absent", MISSING)}


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


def parse_json(data: bytes, place: str, is_signed: bool = False) -> object:
    """Return the JSON in the bytes of a file, of a signed one without its checksum.

    Args:
        data: the bytes of the file.
        place: the path of the file, for messages.
        is_signed: whether its last field is the checksum of the others, see sign.

    Raises FormatError if the file is damaged or not valid JSON.
    """
    if is_signed:
        import hashlib  # as in sha256_of_bytes

        end = data.rfind(_MARK)  # `data` is not sliced below: a manifest may have 34 MB
        with memoryview(data) as view:
            digest = hashlib.sha256(view[: max(0, end)]).hexdigest()
        if end < 0 or data[end + len(_MARK) :] != digest.encode() + b'"}':
            raise FormatError(f"{place}: the checksum does not match its bytes; the file is damaged or incomplete")
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: it does not hold valid JSON; restore it") from error
    if is_signed:  # then it is an object: it ends with "}"
        del value["checksum"]
    return cast(object, value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def decode_record(kind: type[Record], value: object, place: str, field: str = "") -> Record:
    """Return JSON as a record; raises FormatError, which names the field, if one is missing or has another type.

    Args:
        kind: a dataclass whose fields are integers, floats, strings, booleans, records, NamedTuples, TypedDicts, lists
            and tuples of one type, dictionaries by string, or `object` for any JSON; a union of several types is any
            JSON too.
        value: as `json.loads` returns it; it may become part of the record.
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


def _decode(hint: Any, values: _Values, field: str) -> _Values:  # type: ignore[explicit-any]
    """Check and convert the same field of many records, which takes half of the time of one by one.

    Return `values` itself if they stay as they are.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind is object:
        return values
    if kind is Annotated:
        decoded = _decode(arguments[0], values, field)
        for rule in arguments[1:]:
            if decoded and not (rule.holds(decoded) if rule.of_all else all(map(rule.holds, decoded))):
                raise _Mismatch(field, rule.text)
        return decoded
    if kind in (UnionType, Union):
        kinds = [each for each in arguments if each is not NoneType]
        given = [value for value in values if value is not None]
        decoded = _decode(kinds[0] if len(kinds) == 1 else object, given, field)
        items = iter(decoded)
        return values if decoded is given else [None if value is None else next(items) for value in values]
    types, name = _JSON_TYPES[kind if kind in _JSON_TYPES else list if issubclass(kind, tuple) else dict]
    is_number = kind in (int, float) and values
    if not types.issuperset(map(type, values)) or (is_number and not -_MOST <= min(values) <= max(values) <= _MOST):
        raise _Mismatch(field, name)
    return values if hint in _JSON_TYPES else _decode_parts(kind, arguments, values, field)


def _decode_parts(kind: Any, arguments: Any, values: _Values, field: str) -> _Values:  # type: ignore[explicit-any]
    """Decode the items of lists and objects, or the fields of records; a NamedTuple is a list in JSON."""
    if arguments:
        hint = arguments[-1] if kind is dict else arguments[0]
        items = list(chain.from_iterable(map(dict.values, values) if kind is dict else values))
        runs = (items[start : start + _RUN_ITEMS] for start in range(0, len(items), _RUN_ITEMS))
        try:
            decoded = chain.from_iterable([_decode(hint, run, field) for run in runs])
        except _Mismatch:
            _refuse_item(hint, values, field)
            raise
        if kind is dict:
            return values if is_typeddict(hint) else [dict(zip(value, decoded, strict=False)) for value in values]
        return [kind(islice(decoded, len(value))) for value in values]
    hints, columns = _hints_of(kind, include_extras=True), []
    is_tuple = issubclass(kind, tuple)
    if is_tuple and not {len(hints)}.issuperset(map(len, values)):
        raise _Mismatch(field, f"a list of {len(hints)} values")
    for index, (name, hint) in enumerate(hints.items()):
        path = f"{field}.{name}" if field else name
        try:
            column = list(map(itemgetter(index if is_tuple else name), values))
        except KeyError:
            column = [value[name] if name in value else _default(kind, name, path) for value in values]
        columns.append(_decode(hint, column, path))
    return values if is_typeddict(kind) else list(map(kind, *columns))


def _refuse_item(hint: Any, values: _Values, field: str) -> None:  # type: ignore[explicit-any]
    """Raise the error of the first wrong item of lists or objects, with its index or name."""
    for value in values:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _decode(hint, [item], f"{field}.{key[:64]}" if isinstance(key, str) else f"{field}[{key}]")


def _default(kind: Any, name: str, path: str) -> object:  # type: ignore[explicit-any]
    """Return the value of a field that a record lacks; raise _Mismatch if it has no default."""
    if is_dataclass(kind):
        own = {each.name: each for each in fields(kind)}[name]
        if own.default is not MISSING:
            return own.default
        if own.default_factory is not MISSING:
            return own.default_factory()
    raise _Mismatch(path, "given")
