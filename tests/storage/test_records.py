"""Records: what the decoder accepts, and its errors about JSON of another shape."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pytest

from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.records import Mismatch, Rule, decode_record


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
    colors: dict[Annotated[str, Rule(str.islower, "names in lower case")], int] | None = None


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
    assert decode_record(Drawing, VALUE) == drawing
    assert canonical_json(drawing) == canonical_json(VALUE | {"width": 1, "colors": None})
    assert decode_record(Drawing, json.loads(canonical_json(drawing))) == drawing


def test_keys_that_the_record_does_not_have_are_ignored() -> None:
    assert decode_record(Line, {"name": "a", "points": [], "color": "red"}) == Line("a", [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lines": None}, "lines must be a list"),
        ({"layers": {"top": 10**30}}, "layers.top must be an integer of 64 bits"),
        ({"scale": float("nan")}, "scale must be a number"),
        ({"lines": [[]]}, "lines[] must be an object"),
        ({"lines": [{"name": "a"}]}, "lines[].points must be given"),
        ({"lines": [{"name": 1, "points": []}]}, "lines[].name must be text"),
        ({"lines": [{"name": "a", "points": [[1]]}]}, "lines[].points[] must be a list of 2 values"),
        ({"lines": [{"name": "a", "points": [[1, "2"]]}]}, "lines[].points[].y must be an integer"),
        ({"scale": True}, "scale must be a number"),
        ({"layers": []}, "layers must be an object"),
        ({"layers": {"top": True}}, "layers.top must be an integer"),
        ({"pairs": [[1, None]]}, "pairs[][] must be an integer"),
        ({"width": 0}, "width must be a width above 0"),
        ({"colors": {"Red": 1}}, "colors must be names in lower case, not 'Red'"),
    ],
)
def test_a_field_of_another_type_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Mismatch) as caught:
        decode_record(Drawing, VALUE | change)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_record_that_is_not_an_object_is_refused(value: Any) -> None:
    with pytest.raises(Mismatch, match="it must be an object"):
        decode_record(Line, value)
