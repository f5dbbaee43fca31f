"""Row filters: their syntax, and that every reader keeps the rows that plain Python keeps."""

from __future__ import annotations

import csv
import json
import operator
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.raw_parquet import varint
from tests.counts import count
from tokenloom.errors import BadRow, InputError
from tokenloom.spec.syntax import Comparison, Junction, columns_of, comparisons_of, parse_filter
from tokenloom.tasks.sources import FileRange, Rows, make_reader
from tokenloom.tasks.sources.base import numbered
from tokenloom.tasks.sources.columns import Columns

Row = dict[str, Any]
Rule = tuple[str, Callable[[Row], bool]]  # a filter as in a spec, and its meaning in Python

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SMALL = st.integers(-3, 3)
_INTEGERS = _SMALL | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1])
_FLOATS = st.sampled_from([-1.5, -0.0, 0.0, 0.1, 0.8, 1.0, 2.5, 1e300])
_WORDS = st.sampled_from(["", "a", "b", "ab", "é", "漢", "😀", "\uffff", "it's", 'say "x"', "a\\b\n"])
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": _INTEGERS,
    "x": _FLOATS | _SMALL,
    "s": _WORDS,
    "flag": st.booleans(),
    "meta.lang": _WORDS,
    "meta.inner.n": _SMALL,
}
_NUMBERS = ("n", "x")
_OPTIONS = {"text": "text", "id": None, "on_error": "fail", "encoding_errors": "fail", "max_bytes": 10**6}
_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("flag", pa.bool_()),
        ("meta", pa.struct([("lang", pa.string()), ("inner", pa.struct([("n", pa.int8())]))])),
    ]
)


def value_of(row: Row, column: str) -> Any:
    """Return the value of a dotted column, None if the row lacks it."""
    value: Any = row
    for part in column.split("."):
        value = None if value is None else value[part]
    return value


def comparison(column: str, sign: str, value: Any) -> Rule:
    """Return `column sign value`, false for null."""
    return (
        f"{column} {sign} {value!r}",
        lambda row: value_of(row, column) is not None and _OPERATORS[sign](value_of(row, column), value),
    )


def membership(column: str, is_in: bool, values: list[Any]) -> Rule:
    """Return `column in values` or `column not in values`, false for null."""
    spelled = f"{column} {'in' if is_in else 'not in'} [{', '.join(map(repr, values))}]"
    return (
        spelled,
        lambda row: (
            value_of(row, column) is not None and any(value_of(row, column) == value for value in values) == is_in
        ),
    )


def junction(is_all: bool, parts: list[Rule]) -> Rule:
    """Return rules joined by `and` or `or`."""
    spelled = (" and " if is_all else " or ").join(f"({part})" for part, _ in parts)
    return spelled, lambda row: (all if is_all else any)([holds(row) for _, holds in parts])


def rules(columns: tuple[str, ...]) -> st.SearchStrategy[Rule]:
    """Return random filters over some columns, with their meaning in Python."""

    def leaf(column: str) -> st.SearchStrategy[Rule]:
        values = _VALUES[column]
        compared = st.builds(comparison, st.just(column), st.sampled_from(list(_OPERATORS)), values)
        return compared | st.builds(
            membership,
            st.just(column),
            st.booleans(),
            st.lists(values, min_size=1, max_size=3) | st.lists(values, min_size=17, max_size=17),  # as a set
        )

    return st.recursive(
        st.sampled_from(columns).flatmap(leaf),
        lambda inner: st.builds(junction, st.booleans(), st.lists(inner, min_size=2, max_size=3)),
        max_leaves=6,
    )


_FOUND_FLOATS = _FLOATS | _SMALL.map(float) | st.sampled_from([float("nan"), float("inf"), -float("inf")])
_ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.just("text"),
            "n": st.none() | _INTEGERS,
            "x": st.none() | _FOUND_FLOATS,
            "s": st.none() | _WORDS,
            "flag": st.none() | st.booleans(),
            "meta": st.none()
            | st.fixed_dictionaries(
                {"lang": st.none() | _WORDS, "inner": st.none() | st.fixed_dictionaries({"n": st.none() | _SMALL})}
            ),
        }
    ),
    max_size=12,
)


def kept_by_columns(options: Row, table: pa.Table) -> list[int]:
    """Return the rows of a table that the columnar reader keeps."""
    columns = Columns(options)
    columns.needed(table.schema, "a.parquet")
    batches = [numbered(batch, 0) for batch in table.combine_chunks().to_batches()]
    return [int(row) for batch in batches for rows in columns.rows(batch, "a.parquet", str) for row in rows.rows]


def kept_by_values(options: Row, rows: list[Row], kind: str = "jsonl") -> list[int]:
    """Return the rows that the reader of JSON lines or CSV keeps."""
    rows = [row | {"text": i} for i, row in enumerate(rows)]
    with tempfile.NamedTemporaryFile("w", suffix=f".{kind}", encoding="utf-8", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, list(rows[0]) if rows else ["text", *_NUMBERS])
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row | {"text": str(row["text"])}) + "\n" for row in rows)
        file.flush()
        reader = make_reader(options | {"kind": kind, "delimiter": ","})
        parts = reader.partitions(file.name)
        found = [batch.texts.to_pylist() for part in parts for batch in reader.read(file.name, part)]
    return [int(text) for texts in found for text in texts]


@settings(max_examples=count(100, 5000), deadline=None)
@given(rule=rules(tuple(_VALUES)), rows=_ROWS)
def test_a_filter_keeps_the_same_rows_for_values_for_columns_and_in_python(rule: Rule, rows: list[Row]) -> None:
    text, holds = rule
    options = _OPTIONS | {"filter": text}
    wanted = [i for i, row in enumerate(rows) if holds(row)]
    assert kept_by_values(options, rows) == wanted
    table = pa.Table.from_pylist(rows, _SCHEMA)
    assert kept_by_columns(options, table) == wanted
    if len(table):
        coded = table.set_column(3, "s", table["s"].combine_chunks().dictionary_encode())
        assert kept_by_columns(options, coded) == wanted


@settings(max_examples=count(60, 2000), deadline=None)
@given(rule=rules(_NUMBERS), rows=_ROWS)
def test_a_filter_compares_numbers_that_are_stored_as_text(rule: Rule, rows: list[Row]) -> None:
    text, holds = rule
    spelled = [{k: "" if row[k] is None else repr(row[k]) for k in _NUMBERS} for row in rows]
    wanted = [i for i, row in enumerate(rows) if holds(row)]
    assert kept_by_values(_OPTIONS | {"filter": text}, spelled, "csv") == wanted


@settings(max_examples=count(60, 2000), deadline=None)
@given(rule=rules(tuple(_VALUES)), rows=_ROWS, group_rows=st.integers(1, 4), sort=st.booleans())
def test_skipping_row_groups_keeps_the_same_rows(rule: Rule, rows: list[Row], group_rows: int, sort: bool) -> None:
    table = pa.Table.from_pylist(rows, _SCHEMA)
    if sort:  # so that row groups have different ranges
        table = table.sort_by("n")
    text, holds = rule
    wanted = [i for i, row in enumerate(table.to_pylist()) if holds(row)]
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(table, file.name, row_group_size=group_rows)
        batches = read_filtered(file.name, text)
    assert [int(row) for batch in batches for row in batch.rows] == wanted
    assert sum(batch.num_read for batch in batches) == len(rows)
    assert sum(batch.num_filtered for batch in batches) == len(rows) - len(wanted)


@pytest.mark.parametrize("others", [[], [0.25], [10**400, 0.25]])  # what stands beside a number changes nothing
@pytest.mark.parametrize("value", [2**63 + 5, 0.5])
@pytest.mark.parametrize("sign", list(_OPERATORS))
def test_integers_of_64_bits_are_compared_exactly_in_lines_too(
    sign: str, value: float, others: list[float], tmp_path: Path
) -> None:
    numbers = [2**63 + 4, 2**63 + 5, 2**63 + 6, 2**64 - 1, -(2**63), 2**64, *others]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "a", "c": {number}}}\n' for number in numbers))
    (tmp_path / "a.csv").write_text("text,c\n" + "".join(f"a,{number}\n" for number in numbers))
    wanted = sum(_OPERATORS[sign](number, value) for number in numbers)
    for kind in ("jsonl", "csv"):
        options = {"kind": kind, **_OPTIONS, "delimiter": ",", "filter": f"c {sign} {value}"}
        reader, path = make_reader(options), str(tmp_path / f"a.{kind}")
        parts = [FileRange(part.start, part.end) for part in reader.partitions(path)]
        assert sum(len(batch.rows) for part in parts for batch in reader.read(path, part)) == wanted


def test_many_values_cost_a_row_no_more_than_one(tmp_path: Path) -> None:
    options = _OPTIONS | {"filter": f"n in {list(range(0, 40_000, 2))}"}
    rows = [{"text": "one", "n": n} for n in range(4_000)]
    start = time.process_time()
    # one by one, 80 million comparisons took minutes
    assert kept_by_values(options, rows) == list(range(0, 4_000, 2))
    assert kept_by_columns(options, pa.Table.from_pylist(rows)) == list(range(0, 4_000, 2))
    assert time.process_time() - start < 20
    with pytest.raises(BadRow, match="'n' is 'one', which the filter can't compare with 0"):
        kept_by_values(options, [{"n": "one"}])
    with pytest.raises(InputError, match="the filter can't compare column 'text', which is string, with"):
        kept_by_columns(_OPTIONS | {"filter": f"text in {list(range(20))}"}, pa.Table.from_pylist(rows))


def test_only_rows_that_the_filter_keeps_need_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0, "text": 5}\n{"n": 1, "text": "one"}\n{"n": 0}\n')
    reader = make_reader(_OPTIONS | {"kind": "jsonl", "filter": "n >= 1"})
    batches = [batch for part in reader.partitions(str(path)) for batch in reader.read(str(path), part)]
    assert [text for batch in batches for text in batch.texts.to_pylist()] == ["one"]
    assert sum(batch.num_filtered for batch in batches) == 2


_MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))
_ZONES = st.sampled_from(["", "Z", "+05:30", "-08:00"])
_TENTHS = st.sampled_from([0.1, 0.9, 0.3, 2.5, 1e300, -1e300, 1e-9, 0, 1, 3, True])
_WHOLE = st.sampled_from([0, 1, -1, 2, 3, 0.5, 1.0, -0.5, 1e300, 2**63, True, False])
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def _nanoseconds(value: str) -> int:
    """Return the time of a literal by numpy, which knows no zones."""
    found = re.fullmatch(r"(.{10,}?)(Z|[+-]..:..)?", value)
    assert found
    shift = 0 if found[2] in (None, "Z") else int(found[2][:3]) * 60 + int(found[2][0] + found[2][4:])
    return int(np.datetime64(found[1], "ns").astype(np.int64)) - shift * 60 * 10**9


def _typed(kind: pa.DataType) -> tuple[st.SearchStrategy[Any], st.SearchStrategy[Any], Callable[[Any, Any], Any]]:
    """Return stored values of a type, values of a filter, and both of them as Python or numpy compares them."""
    types = pa.types
    if types.is_floating(kind):
        dtype = kind.to_pandas_dtype()
        near = st.sampled_from([0.1, 0.9, 0.3, -0.0, 2.5, float("nan"), float("inf"), 65504.0]) | st.integers(-3, 3)

        def as_numpy(found: Any, wanted: Any) -> Any:
            number = dtype(found)
            with np.errstate(over="ignore"):
                rounded = dtype(wanted)
            return (number, rounded) if np.isfinite(rounded) else (float(number), wanted)

        return near.map(float), _TENTHS, as_numpy
    if types.is_decimal(kind):
        stored = st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-kind.scale))
        return stored, _TENTHS, lambda found, wanted: (found, Decimal(repr(wanted + 0)))
    if types.is_boolean(kind):
        return st.booleans(), _WHOLE, lambda *pair: pair
    if types.is_integer(kind):
        largest = 2**64 - 1 if kind == pa.uint64() else 127
        return st.integers(0, 3) | st.sampled_from([largest, largest // 2 + 1]), _WHOLE, lambda *pair: pair
    days = st.dates(date(1700, 1, 1), date(2200, 1, 1))
    wanted = st.builds(lambda moment, zone: moment.isoformat() + zone, _MOMENTS, _ZONES) | days.map(str)
    if types.is_date(kind):
        return days, wanted, lambda found, text: (_nanoseconds(str(found)), _nanoseconds(text))
    size = _NANOSECONDS[kind.unit]
    ticks = _MOMENTS.map(lambda moment: _nanoseconds(moment.isoformat()) // size)
    return ticks, wanted, lambda found, text: (found * size, _nanoseconds(text))


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.int8(), pa.uint64(), pa.date32(), pa.date64()),
        *(pa.decimal128(5, 2), pa.decimal128(38, 3), pa.decimal256(70, 1)),
        *(
            pa.timestamp(unit, zone)
            for unit, zone in zip(_NANOSECONDS, (None, "UTC", "Europe/Berlin", None), strict=True)
        ),
    ],
    ids=str,
)
@settings(max_examples=count(25, 2000), deadline=None)
@given(data=st.data(), group_rows=st.integers(1, 3), sign=st.sampled_from(list(_OPERATORS)), is_many=st.booleans())
def test_a_literal_takes_the_type_of_its_column(
    kind: pa.DataType, data: st.DataObject, group_rows: int, sign: str, is_many: bool
) -> None:
    values, literals, pair = _typed(kind)
    found = data.draw(st.lists(st.none() | values, max_size=8))
    wanted = data.draw(literals)
    texts = [value for value in found if isinstance(value, date)]
    is_stored: bool = data.draw(st.booleans())
    if texts and is_stored:
        wanted = str(texts[0])
    others = data.draw(st.lists(literals, min_size=16, max_size=16)) if is_many and sign in ("==", "!=") else []

    def holds(value: Any) -> bool:
        each = [bool(_OPERATORS[sign](*pair(value, one))) for one in (wanted, *others)]
        return value is not None and (any(each) if sign == "==" else all(each))

    kept = [i for i, value in enumerate(found) if value is not None and holds(value)]
    text = f"c {sign} {wanted!r}" if not others else f"c {'in' if sign == '==' else 'not in'} {[wanted, *others]}"
    is_floating = pa.types.is_floating(kind)
    stored = pa.array(found, pa.float64()).cast(kind, safe=False) if is_floating else pa.array(found, kind)
    table = pa.table({"text": pa.nulls(len(found), pa.string()), "c": stored})
    if len(table):
        assert kept_by_columns(_OPTIONS | {"filter": text}, table) == kept
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(table, file.name, row_group_size=group_rows)
        batches = read_filtered(file.name, text)
    assert [int(row) for batch in batches for row in batch.rows] == kept
    if group_rows == 1 and not others and sign != "!=" and kind != pa.float16():
        known = [i for i, value in enumerate(found) if value is not None and value == value]
        assert sum(batch.num_not_read for batch in batches) == len(set(known) - set(kept))


def test_a_text_that_is_no_time_is_refused_with_its_place(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "ts": pa.array([0], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet")
    many = [f"2024-01-{day:02}" for day in range(1, 20)]
    for value in ("yesterday", "2024-13-01", 5, [*many, "2024-02-30"]):
        sign = "in" if isinstance(value, list) else ">="
        with pytest.raises(InputError, match=r"a\.parquet: .*'ts', which is timestamp\[us\].*\"2024-01-31T12:00:00Z\""):
            read_filtered(str(tmp_path / "a.parquet"), f"ts {sign} {value!r}")


def read_filtered(path: str, text: str) -> list[Rows]:
    """Return the batches of a parquet file that the filter `text` leaves."""
    reader = make_reader({"kind": "parquet", "filter": text} | _OPTIONS)
    return [batch for part in reader.partitions(path) for batch in reader.read(path, part)]


_ACCENTED = st.text(st.sampled_from("bz~é漢"), max_size=3)


@settings(max_examples=count(100, 5000), deadline=None)
@given(values=st.lists(_ACCENTED, min_size=1, max_size=5), value=_ACCENTED, sign=st.sampled_from(list(_OPERATORS)))
def test_a_writer_that_compares_bytes_as_signed_loses_no_row(values: list[str], value: str, sign: str) -> None:
    stored = [one.encode() for one in values]
    signed = sorted(stored, key=lambda data: bytes(byte ^ 0x80 for byte in data))
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(pa.table({"text": pa.nulls(len(values), pa.string()), "c": values}), file.name)
        data = Path(file.name).read_bytes()
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        right, wrong = (
            b"\x28" + varint(len(high)) + high + b"\x18" + varint(len(low)) + low  # as pyarrow writes them
            for low, high in ((min(stored), max(stored)), (signed[0], signed[-1]))
        )
        assert data[start:].count(right) == 1
        footer = data[start:-8].replace(right, wrong)
        Path(file.name).write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        batches = read_filtered(file.name, f"c {sign} {value!r}")
    wanted = [i for i, found in enumerate(values) if _OPERATORS[sign](found, value)]
    assert [int(row) for batch in batches for row in batch.rows] == wanted


# Syntax


def test_a_filter_is_parsed_to_a_tree_of_comparisons() -> None:
    tree = parse_filter(' a.b == "x" and (n not in [1, -2.5] or flag == True) ')
    members = Junction(True, (Comparison("n", "!=", 1), Comparison("n", "!=", -2.5)))
    assert tree == Junction(
        True, (Comparison("a.b", "==", "x"), Junction(False, (members, Comparison("flag", "==", True))))
    )
    assert [item.column for item in comparisons_of(tree)] == ["a.b", "n", "n", "flag"]
    assert columns_of(tree) == ["a.b", "n", "flag"]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("not (a < 1 and (b in [1, 2] or c))", "a >= 1 or (b not in [1, 2] and c != True)"),
        ("not not (a == 1 or b <= 'x')", "a == 1 or b <= 'x'"),
        ("not a.b and flag", "a.b != True and flag == True"),
        (f"not n in {list(range(20))}", f"n not in {list(range(20))}"),
    ],
)
def test_not_makes_each_comparison_its_opposite_and_a_bare_name_is_a_boolean(text: str, same: str) -> None:
    assert asdict(parse_filter(text)) == asdict(parse_filter(same))


@pytest.mark.parametrize(
    "text",
    [
        *("", "score >=", "0 < score < 1", "not", "-a", "not 1", '"en" == language', "a == b", "a is 1", "a = 1"),
        *("a in []", 'a in "en"', "a in [[1]]", "a == None", "a == b'x'", "a == 1j", "f(a) == 1", "a[0] == 1"),
        *("a == 1; b == 2", "a == 18446744073709551616", "a in [1, -9223372036854775809]", 'a == "\\ud800"'),
        "__import__('os').system('true') == 1",
        "(" * 5000 + "a == 1" + ")" * 5000,
        "a == " + "-" * 20000 + "1",
    ],
    ids=lambda text: text[:30],
)
def test_an_invalid_filter_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r'language == "en" and score >= 0\.5'):
        parse_filter(text)


@settings(max_examples=count(200, 5000), deadline=None)
@given(st.text(alphabet=st.sampled_from("ab .=<>!()[],'\"\\01andorit\n\ud800é"), max_size=30) | st.text(max_size=30))
def test_any_text_is_a_filter_or_raises_value_error(text: str) -> None:
    try:
        tree = parse_filter(text)
    except ValueError:
        return
    assert list(comparisons_of(tree))
