"""Dirty input: checks of the table in docs/input.md, and those of its tests that no other file contains."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import os
import re
import tempfile
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import build, write_jsonl, write_parquet
from tests.builders.refusals import assert_nothing_visible, assert_refused, spec_of
from tests.counts import count
from tests.tasks import test_sources
from tokenloom.errors import BadRow, InputError, TokenloomError
from tokenloom.tasks.encoding.tokenization import tokenize_partition
from tokenloom.tasks.sources import FileRange, make_reader

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "input.md"
Compress = Callable[[bytes], bytes]
COMPRESS: dict[str, Compress] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}


def texts_of(path: Path, kind: str = "jsonl", **options: Any) -> list[str | None]:
    """Return the texts of a file, partition by partition."""
    return [text for _, text in test_sources.read_file(kind, path, **{"delimiter": ",", **options})]


def written(path: Path, data: bytes | str) -> Path:
    """Write a file, return its path."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def bad_rows(path: Path, kind: str = "jsonl", **options: Any) -> list[tuple[int, str]]:
    """Return (row, reason) of the rows of a file that are skipped."""
    reader = make_reader(
        {"kind": kind, "text": "text", "max_bytes": 2**28, "delimiter": ",", "on_error": "skip"} | options
    )
    parts = reader.partitions(str(path))
    return [(bad.row, bad.reason) for p in parts for rows in reader.read(str(path), p) for bad in rows.bad]


# The table


def _rows_of_the_table() -> list[list[str]]:
    section = PAGE.read_text(encoding="utf-8").split("\n## How dirty input is handled\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def test_every_test_that_the_page_names_exists() -> None:
    rows = _rows_of_the_table()
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 3, row
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[2])
        assert named, row
        for file, name in named:
            assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, name)


def test_every_test_of_this_file_is_in_the_table() -> None:
    named = {name for row in _rows_of_the_table() for name in re.findall(r"test_dirty_input\.py::(test_\w+)", row[2])}
    tests = set(re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {name for name in tests if "_page_" not in name and "_table" not in name}


# Bytes and characters

MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"text": "two"}\n'),
        ("a.jsonl.gz", b'{"text": "one"}\n{"text": "two"}\n'),
        ("a.json", b' [{"text": "one"}, {"text": "two"}]'),
        ("a.csv", b"text\none\ntwo\n"),
        ("a.csv.zst", b'"text","n"\none,1\ntwo,2\n'),
    ],
)
def test_a_byte_order_mark_at_the_start_is_skipped(name: str, data: bytes, tmp_path: Path) -> None:
    compress = COMPRESS.get(Path(name).suffix, bytes)
    path = written(tmp_path / name, compress(MARK + data))
    assert texts_of(path, "csv" if ".csv" in name else "jsonl") == ["one", "two"]


def test_a_byte_order_mark_is_text_in_a_text_file_and_in_a_field(tmp_path: Path) -> None:
    assert texts_of(written(tmp_path / "a.txt", MARK + b"one"), "text") == ["\ufeffone"]
    assert texts_of(written(tmp_path / "b.txt", MARK + b"one|two"), "text", separator="|") == ["\ufeffone", "two"]
    assert texts_of(written(tmp_path / "a.csv", b'text\n"' + MARK + b'one"\n'), "csv") == ["\ufeffone"]
    assert texts_of(written(tmp_path / "a.jsonl", '{"text": "\ufeffone"}')) == ["\ufeffone"]


def test_a_byte_order_mark_before_a_later_line_is_bad_json(tmp_path: Path) -> None:
    """`cat` leaves one there when it joins files that begin with a byte order mark."""
    path = written(tmp_path / "a.jsonl", 2 * (MARK + b'{"text": "one"}\n'))
    assert texts_of(path, on_error="skip") == ["one"]
    assert bad_rows(path) == [(19, "invalid_json")]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "text"])
def test_a_file_in_another_encoding_is_refused_by_name(kind: str, encoding: str, tmp_path: Path) -> None:
    data = {"jsonl": '{"text": "été"}\n', "csv": "text\nété\n", "text": "été"}[kind]
    path = written(tmp_path / "a", data.encode(encoding))
    with pytest.raises(InputError, match=r"/a[,:].*(UTF-8|not valid JSON|no column)"):
        texts_of(path, kind)


ODD = "".join(chr(i) for i in [*range(32), *range(127, 160), 0xAD, 0x200B, 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF])


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "text"])
def test_control_characters_come_back_exactly(kind: str, tmp_path: Path) -> None:
    path, text = tmp_path / "a", f"start {ODD} end"
    if kind == "parquet":
        write_parquet(path, [text])
    elif kind == "jsonl":
        write_jsonl(path, [text])
    else:
        written(path, text if kind == "text" else f'text\n"{text}"\n')
    assert texts_of(path, kind) == [text]


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_invalid_utf8_is_replaced_in_every_form(form: str, tmp_path: Path) -> None:
    values = {
        b'"a\xffb"': "a\ufffdb",
        b'"a\xe2\x82b"': "a\ufffdb",
        b'"a\\ud800b"': "a\ufffdb",
        b'"\\udc80"': "\ufffd",
        b'"\\ud83d\\ude00"': "\U0001f600",  # a surrogate pair is one character
    }
    for value, wanted in values.items():
        line = form.replace("{}", '{"text": VALUE}').encode().replace(b"VALUE", value)
        assert texts_of(written(tmp_path / "a", line), encoding_errors="replace") == [wanted], value


def test_invalid_utf8_counts_anywhere_in_a_line_but_only_in_the_text_of_an_array_value(tmp_path: Path) -> None:
    value = b'{"other": "\xff", "text": "one"}'
    assert bad_rows(written(tmp_path / "a.jsonl", value)) == [(0, "invalid_utf8")]
    assert texts_of(written(tmp_path / "a.json", b"[" + value + b"]")) == ["one"]
    assert texts_of(written(tmp_path / "a.csv", b"other,text\n\xff,one\n"), "csv") == ["one"]
    lone = b'{"other": "\\ud800", "text": "one"}'
    assert texts_of(written(tmp_path / "b.jsonl", lone)) == ["one"]


# JSON


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
@pytest.mark.parametrize("key", [r"\ud800", "k" * 100_000])
def test_keys_that_can_not_be_printed_are_reported_in_printable_form(key: str, form: str, tmp_path: Path) -> None:
    """A message that no log can encode would hide the error."""
    path = written(tmp_path / "a", form.replace("{}", f'{{"{key}": "one"}}'))
    with pytest.raises(BadRow, match=r"no key 'text'; its keys are: [^ ]+\. Set text:") as raised:
        texts_of(path)
    assert len(str(raised.value).encode()) < 1000


def test_line_ends_other_than_newlines_do_not_end_a_json_line(tmp_path: Path) -> None:
    for end in ("\r", "\u2028", "\u0085", "\x0b", "\x0c"):
        path = written(tmp_path / "a.jsonl", '{"text": "one"}' + end + '{"text": "two"}\n')
        assert bad_rows(path) == [(0, "invalid_json")]


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_the_last_of_duplicate_keys_counts(form: str, tmp_path: Path) -> None:
    value = '{"text": "first", "id": 1, "text": "last", "id": 2}'
    path = written(tmp_path / "a", form.replace("{}", value))
    reader = make_reader({"kind": "jsonl", "text": "text", "id": "id", "max_bytes": 100})
    (rows,) = reader.read(str(path), FileRange(0, 10**6))
    assert rows.texts.to_pylist() == ["last"]
    assert rows.ids is not None
    assert rows.ids.to_pylist() == ["2"]


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-0", "9" * 4000, "1." + "3" * 9000])
def test_odd_numbers_beside_the_text_are_accepted(number: str, form: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a", form.replace("{}", '{"n": ' + number + ', "text": "one"}'))
    assert texts_of(path) == ["one"]


def test_an_integer_of_more_than_4300_digits_is_bad_json(tmp_path: Path) -> None:
    value = '{"n": ' + "9" * 4301 + ', "text": "one"}'
    assert bad_rows(written(tmp_path / "a.jsonl", value)) == [(0, "invalid_json")]
    with pytest.raises(InputError, match=r"a\.json, value 0 of its JSON array: not valid JSON.*4300 digits"):
        texts_of(written(tmp_path / "a.json", f"[{value}]"))


def test_a_first_line_that_is_a_list_makes_the_file_an_array(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '["one"]\n{"text": "two"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl, value 1 of its JSON array: text after the end of the array"):
        texts_of(path, on_error="skip")


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_deep_json_beside_the_text_is_read_or_named(form: str, tmp_path: Path) -> None:
    for depth, is_read in ((500, True), (200_000, False)):
        value = '{"text": "one", "n": ' + "[" * depth + "]" * depth + "}"
        path = written(tmp_path / "a", form.replace("{}", value))
        if is_read:
            assert texts_of(path) == ["one"]
            continue
        with pytest.raises(InputError, match="nested too deep"):
            texts_of(path)


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_a_list_of_texts_is_its_lines(form: str, tmp_path: Path) -> None:
    wanted = {'["a", "b"]': "a\nb", "[]": "", '["a", null, "b"]': "a\nb", "[null]": "", '[""]': ""}
    for value, text in wanted.items():
        assert texts_of(written(tmp_path / "a", form.replace("{}", f'{{"text": {value}}}'))) == [text]


LARGE = 100_000_000


@pytest.fixture(scope="module")
def large_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three lines, the second with a text of 100 MB."""
    path = tmp_path_factory.mktemp("large") / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "first"}\n{"text": "')
        for _ in range(LARGE // 1_000_000):
            file.write(b"x" * 999_998 + b"\\n")
        file.write(b'"}\n{"text": "last"}\n')
    return path


def test_a_line_of_100_mb_is_read_right_with_a_few_times_its_size(large_line: Path) -> None:
    tracemalloc.start()
    texts = texts_of(large_line)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    large = ("x" * 999_998 + "\n") * (LARGE // 1_000_000)
    assert [text if text != large else "large" for text in texts] == ["first", "large", "last"]
    assert peak < 4.5 * LARGE


def test_a_line_of_100_mb_above_the_limit_costs_no_memory_and_is_named_or_skipped(large_line: Path) -> None:
    tracemalloc.start()
    with pytest.raises(BadRow, match=r"line at byte 18: more than .*documents\.max_bytes") as raised:
        texts_of(large_line, max_bytes=1000)
    assert texts_of(large_line, max_bytes=1000, on_error="skip") == ["first", "last"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (raised.value.row, raised.value.reason) == (18, "too_large")
    assert bad_rows(large_line, max_bytes=1000) == [(18, "too_large")]
    assert peak < 30_000_000


def test_a_value_of_an_array_far_above_the_limit_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", '[{"text": "one"}, {"text": "' + "x" * 10_000_000 + '"}]')
    with pytest.raises(InputError, match=r"value 1 of its JSON array: more than 4,194,504 bytes.*max_bytes") as raised:
        texts_of(path, max_bytes=100, on_error="skip")
    assert not isinstance(raised.value, BadRow)


# CSV

fields = st.text(st.sampled_from("ab\",;\t \r\n'\0é\u2028"), max_size=6)


@settings(max_examples=count(150, 3000), deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1), st.sampled_from(",;\t|"), st.sampled_from(["\n", "\r\n", "\r"]))
def test_fields_with_quotes_line_ends_and_delimiters_come_back(
    rows: list[tuple[str, str]], delimiter: str, end: str
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("other", "text"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder, "a.csv"), text.getvalue())
        found = test_sources.read_file("csv", path, delimiter=delimiter)
    assert found == [(i, one) for i, (_, one) in enumerate(rows)]


def test_csv_with_mixed_line_ends_blank_lines_and_no_last_newline_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"text,n\r\none,1\n\n\r\ntwo,2\rthree,3\n,4\nfive,5")
    assert test_sources.read_file("csv", path, delimiter=",") == [
        (0, "one"),
        (1, "two"),
        (2, "three"),
        (3, ""),
        (4, "five"),
    ]


@pytest.mark.parametrize(
    ("data", "options", "parts"),
    [
        (b"text,n,text\na,1,b\n", {}, "two columns 'text'.* set text:"),
        (b"text,n,n\na,1,2\n", {"id": "n"}, "two columns 'n'.* set id:"),
        (b"text,n\na,1\n", {"id": "no"}, "no column 'no'; its columns are: text, n. .* set id:"),
        (
            b"text,n\na,1\n",
            {"filter": "score > 1"},
            "no column 'score', which the filter names; its columns are: text, n. .* change filter: to name one",
        ),
        (
            b"first row,1\nsecond row,2\n",
            {},
            "no column 'text'; its columns are: \"first row\", 1. Set header: false if this is a row of data, ",
        ),
        (b"text;n\na;1\n", {}, "no column 'text'; its columns are: \"text;n\". .*check delimiter, or set text:"),
        (b"Text ,n\na,1\n", {}, "no column 'text'; its columns are: \"Text \", n. .* set text:"),
        (b"t\xff,n\na,1\n", {}, r"no column 'text'; its columns are: .t\\udcff., n. .* set text:"),
        (b"\n\n", {}, "no column 'text'; its columns are: none"),
    ],
)
def test_a_header_that_does_not_fit_is_named_with_its_columns(
    data: bytes, options: dict[str, str], parts: str, tmp_path: Path
) -> None:
    for on_error in ("fail", "skip"):
        with pytest.raises(InputError, match=rf"a\.csv: {parts}") as raised:
            texts_of(written(tmp_path / "a.csv", data), "csv", on_error=on_error, **options)
        assert not isinstance(raised.value, BadRow)
        str(raised.value).encode()  # can be printed


@pytest.mark.parametrize("data", [b'text\n"open\n', b'text\n"a"b\n', b'"text\na\n'])
def test_quotes_that_do_not_fit_are_named_by_their_line(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.csv(, line \d: not valid CSV: .*set delimiter|: no column)"):
        texts_of(written(tmp_path / "a.csv", data), "csv", on_error="skip")


def test_a_quote_inside_an_unquoted_field_is_text(tmp_path: Path) -> None:
    assert texts_of(written(tmp_path / "a.csv", b'text,n\nan 11" disk,1\n'), "csv") == ['an 11" disk']


# Text files with a separator


def test_a_separator_is_matched_byte_for_byte_from_the_left(tmp_path: Path) -> None:
    def split(data: str, separator: str) -> list[tuple[int, str | None]]:
        return test_sources.read_file("text", written(tmp_path / "a.txt", data), separator=separator)

    assert split("one\n\ntwo\n\n\nthree\n\n", "\n\n") == [(0, "one"), (5, "two"), (10, "three")]
    assert split("one\r\n\r\ntwo", "\n\n") == [(0, "one\r\n\r\ntwo")]
    assert split("aXXXb", "XX") == [(0, "a"), (3, "Xb")]
    assert split("\n one \n|\t|\n|", "|") == [(0, " one "), (8, "\t")]


# Compressed files

CONTENT = b"".join(json.dumps({"text": f"{i} " + "é" * (i % 50)}).encode() + b"\n" for i in range(300))
TEXTS = [json.loads(line)["text"] for line in CONTENT.splitlines()]


@pytest.mark.parametrize("suffix", list(COMPRESS))
@pytest.mark.parametrize("cuts", [[1], [5, 5000, 5001], [len(CONTENT) - 1]])
def test_several_compressed_members_are_one_file(suffix: str, cuts: list[int], tmp_path: Path) -> None:
    bounds = [0, *cuts, len(CONTENT)]
    members = [COMPRESS[suffix](CONTENT[a:b]) for a, b in pairwise(bounds)]
    assert texts_of(written(tmp_path / f"a.jsonl{suffix}", b"".join(members))) == TEXTS


@pytest.mark.parametrize("suffix", list(COMPRESS))
@pytest.mark.parametrize(
    "damage", ["garbage behind", "nothing in it", "not compressed", "half", "another codec", "no bytes"]
)
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(suffix: str, damage: str, tmp_path: Path) -> None:
    data = COMPRESS[suffix](CONTENT)
    other = COMPRESS[".bz2" if suffix == ".gz" else ".gz"]
    damaged = {
        "garbage behind": data + b"garbage",
        "nothing in it": COMPRESS[suffix](b""),
        "not compressed": CONTENT,
        "half": data[: len(data) // 2],
        "another codec": other(CONTENT),
        "no bytes": b"",
    }
    path = written(tmp_path / f"a.jsonl{suffix}", damaged[damage])
    assert_refused(spec_of(path, "jsonl", documents={"on_error": "skip"}), str(path))


def test_compressed_members_without_content_are_skipped_or_reported(tmp_path: Path) -> None:
    for suffix, compress in COMPRESS.items():
        members = [b"", CONTENT[:5000], b"", b"", CONTENT[5000:], b""]
        path = written(tmp_path / f"a.jsonl{suffix}", b"".join(map(compress, members)))
        if suffix != ".bz2":
            assert texts_of(path) == TEXTS
            continue
        with pytest.raises(InputError, match=r"a\.jsonl\.bz2: broken bz2"):  # Arrow's decoder stops at such a stream
            texts_of(path)


def test_a_compressed_file_without_the_suffix_is_refused(tmp_path: Path) -> None:
    for suffix, compress in COMPRESS.items():
        path = written(tmp_path / f"a{suffix}.jsonl", compress(CONTENT))
        with pytest.raises(InputError, match=r"its first bytes are those of (gzip|bz2|zstd); end its name in"):
            texts_of(path)


@pytest.mark.parametrize(
    ("kind", "name"), [("parquet", "a.jsonl"), ("arrow", "a.parquet"), ("arrayrecord", "a.json"), ("csv", "a.jsonl")]
)
def test_a_file_of_another_kind_is_refused_by_name(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"(?i)/{name}: (not a readable {kind}|no column 'text')"):
        texts_of(written(tmp_path / name, CONTENT), kind)


# Parquet


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".", "no column '.'; its columns are: .*Set text: to one of them"),
        ("body.x", "no column 'body.x': column 'body' is string, which has no fields. Set text: to a column"),
        ("meta.x", "no column 'meta.x': the fields of 'meta' are: a. Set text: to a column"),
        ("meta.a.x", "no column 'meta.a.x': column 'meta.a' is string, which has no fields"),
    ],
)
def test_a_column_that_is_not_there_is_named_in_plain_words(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "": ["y"], "meta": [{"a": "z"}]}), path)
    with pytest.raises(InputError, match=message):
        texts_of(path, "parquet", text=text)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("score", "no column 'score', which the filter names; its columns are: body, meta. Change filter: to name one"),
        ("meta.x", "no column 'meta.x', which the filter names: the fields of 'meta' are: a. Change filter: to name a"),
    ],
)
def test_a_missing_column_of_a_filter_is_not_called_the_value_of_filter(
    column: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "meta": [{"a": "z"}]}), path)
    with pytest.raises(InputError, match=message):
        texts_of(path, "parquet", text="body", filter=f"{column} == 1")


def test_nulls_inside_structs_and_lists_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"meta": {"body": "one"}}, {"meta": None}, {"meta": {"body": None}}, {"meta": {"body": "two"}}]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    assert texts_of(path, "parquet", text="meta.body") == ["one", None, None, "two"]
    lists = [["one", None, "two"], None, [], [None], ["", ""], ["three"]]
    pq.write_table(pa.table({"text": pa.array(lists, pa.list_(pa.string()))}), path, row_group_size=2)
    assert texts_of(path, "parquet") == ["one\ntwo", None, "", "", "\n", "three"]


def test_a_parquet_file_without_row_groups_has_no_rows(tmp_path: Path) -> None:
    pq.ParquetWriter(tmp_path / "a.parquet", pa.schema({"text": pa.string()})).close()
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 0
    assert texts_of(tmp_path / "a.parquet", "parquet") == []
    write_parquet(tmp_path / "b.parquet", ["one"])
    assert build(spec_of(tmp_path / "*.parquet")).rows["read"] == 1


def test_rows_of_null_type_have_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"column 'text' is null"):
        texts_of(tmp_path / "a.parquet", "parquet")


# Several files, and files that change


def test_a_file_whose_name_is_not_utf8_is_reported_in_printable_form(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    write_jsonl(tmp_path / os.fsdecode(b"b\xff.jsonl"), ["two"])
    with pytest.raises(InputError, match=r"b\\udcff\.jsonl': its name is not UTF-8.*rename it") as raised:
        build(spec_of(tmp_path / "*.jsonl", "jsonl"))
    str(raised.value).encode()


def test_a_column_that_changes_its_type_from_file_to_file_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["one"])
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "b.parquet")
    assert_refused(spec_of(tmp_path / "*.parquet"), str(tmp_path / "b.parquet"), "column 'text' is int64")
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    written(tmp_path / "b.jsonl", b'{"text": "two"}\n{"text": 3}\n')
    spec = spec_of(tmp_path / "*.jsonl", "jsonl")
    assert_refused(spec, f"{tmp_path}/b.jsonl, line at byte 16", "'text' is a number, not text")
    skipping = spec_of(tmp_path / "*.jsonl", "jsonl", documents={"on_error": "skip"})
    assert build(skipping).rows["quarantined"] == 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.txt", "b.txt", "a.parquet"])
def test_a_file_that_grows_while_it_is_read_is_named(
    name: str, on_error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    data = {"a.jsonl.gz": gzip.compress(CONTENT), "a.json": b'[{"text": "one"}]', "a.csv": b"text\none\n"}
    written(path, data.get(name, CONTENT))
    if name == "a.parquet":
        write_parquet(path, TEXTS)
    kind = {".csv": "csv", ".txt": "text", ".parquet": "parquet"}.get(path.suffix, "jsonl")
    spec = spec_of(path, kind, documents={"on_error": on_error})
    if name == "b.txt":
        spec = spec.model_copy(update={"sources": [spec.sources[0].model_copy(update={"separator": "\n"})]})
    whole = path.read_bytes()

    def grow(job: Any) -> Any:
        with path.open("ab") as file:
            file.write(b'{"text": "new"}\n' if ".gz" not in name else gzip.compress(b'{"text": "new"}\n'))
        return tokenize_partition(job)

    with monkeypatch.context() as patch:
        patch.setattr("tokenloom.flows.build_steps.tokenize_partition", grow)
        with pytest.raises(TokenloomError, match=re.escape(str(path))):
            build(spec)
    assert_nothing_visible(spec)
    path.write_bytes(whole)
    assert build(spec).published
