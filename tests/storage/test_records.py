"""Records: canonical JSON, its signature, and the errors about JSON of another shape."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import count
from tokenloom.errors import FormatError
from tokenloom.storage.formats.records import Rule, canonical_json, decode_record, parse_json, sha256_of, sign

PROPERTY = settings(deadline=None, database=None, max_examples=count(30, 3000))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text().filter(lambda key: key != "checksum"), JSON, min_size=1, max_size=5)


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Line:
    name: str | None
    points: list[Point]


@dataclass(frozen=True, slots=True)
class Drawing:
    lines: list[Line]
    scale: float
    layers: dict[str, int]
    pairs: list[tuple[int, ...]]
    note: object
    width: Annotated[int, Rule(lambda value: value > 0, "a width above 0")] = 1
    colors: (
        Annotated[dict[str, int], Rule(lambda colors: all(map(str.islower, colors)), "names in lower case")] | None
    ) = None


INTEGER = "an integer of 64 bits"
VALUE: dict[str, Any] = {
    "lines": [{"name": None, "points": [[1, 2], [3, 4]]}, {"name": "b", "points": []}],
    "scale": 2,
    "layers": {"top": 1},
    "pairs": [[1, 2], []],
    "note": {"any": ["JSON"]},
}


def test_a_record_is_decoded_from_its_own_bytes() -> None:
    drawing = Drawing(
        [Line(None, [Point(1, 2), Point(3, 4)]), Line("b", [])], 2, {"top": 1}, [(1, 2), ()], VALUE["note"]
    )
    assert decode_record(Drawing, VALUE, "d.json") == drawing
    assert canonical_json(drawing) == canonical_json(VALUE | {"width": 1, "colors": None})
    assert decode_record(Drawing, json.loads(canonical_json(drawing)), "d.json") == drawing


def test_keys_that_the_record_does_not_have_are_ignored() -> None:
    assert decode_record(Line, {"name": "a", "points": [], "color": "red"}, "d.json") == Line("a", [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lines": None}, "lines must be a list"),
        ({"layers": {"top": 10**30}}, "layers.top must be an integer of 64 bits"),
        ({"scale": float("nan")}, "scale must be a number"),
        ({"lines": [[]]}, "lines[0] must be an object"),
        ({"lines": [{"name": "a"}]}, "lines[0].points must be given"),
        ({"lines": [{"name": "a", "points": [[1]]}]}, "lines[0].points[0] must be a list of 2 values"),
        ({"lines": [*VALUE["lines"], {"name": "a", "points": [[1, "2"]]}]}, f"lines[2].points[0].y must be {INTEGER}"),
        ({"scale": True}, "scale must be a number"),
        ({"layers": []}, "layers must be an object"),
        ({"pairs": [[1, None]]}, f"pairs[0][1] must be {INTEGER}"),
        ({"width": 0}, "width must be a width above 0"),
        ({"colors": {"Red": 1}}, "colors must be names in lower case"),
    ],
)
def test_a_field_of_another_type_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_record(Drawing, VALUE | change, "d.json")
    assert str(caught.value) == f"d.json: {message}; restore it"


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_record_that_is_not_an_object_is_refused(value: Any) -> None:
    with pytest.raises(FormatError, match=r"d\.json: it must be an object"):
        decode_record(Line, value, "d.json")


@PROPERTY
@given(OBJECTS, st.randoms(use_true_random=False))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert canonical_json({key: value[key] for key in keys}) == canonical_json(value)
    assert sha256_of(value) == hashlib.sha256(canonical_json(value)).hexdigest()
    assert json.loads(canonical_json(value)) == value


def test_canonical_json_is_sorted_without_spaces_in_utf_8_and_has_no_nan() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "ż"}) == '{"a":"ż","b":[1,2.5]}'.encode()
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})


@PROPERTY
@given(OBJECTS)
def test_a_signed_value_round_trips(value: dict[str, Any]) -> None:
    assert parse_json(sign(value), "here", is_signed=True) == value


def test_checksum_is_the_last_field_and_covers_all_bytes_before_it() -> None:
    data = sign({"z": 1, "a": '","checksum":"'})
    body = data[: data.rindex(b',"checksum"')]
    assert list(json.loads(data)) == ["a", "z", "checksum"]
    assert json.loads(data)["checksum"] == hashlib.sha256(body).hexdigest()
    assert parse_json(data, "here", is_signed=True) == {"z": 1, "a": '","checksum":"'}


@PROPERTY
@given(OBJECTS, st.integers(1, 255))
def test_a_signed_file_changed_or_cut_at_any_byte_is_refused(value: dict[str, Any], flip: int) -> None:
    data = sign(value)
    damaged = [data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :] for at in range(len(data))]
    damaged += [data + b"\n", *(data[:num_bytes] for num_bytes in range(len(data)))]
    for each in damaged:
        with pytest.raises(FormatError, match=r"store/manifest\.json"):
            parse_json(each, "store/manifest.json", is_signed=True)
