"""Dirty input: what docs/guides/rows.md says of it, by the tables of tests/builders/dirty_files.py and tests."""

from __future__ import annotations

import csv
import io
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import build, make_spec, write_jsonl, write_parquet
from tests.builders.dirty_files import BAD_ROWS, READ, REFUSED, DirtyFile
from tests.builders.refusals import assert_refused, spec_of
from tests.counts import count
from tests.tasks import test_sources
from tokenloom.errors import BadRow, InputError
from tokenloom.tasks.sources import Rows, make_reader
from tokenloom.tasks.sources.naming import naming_source


def texts_of(path: Path, kind: str = "jsonl", **options: Any) -> list[str | None]:
    """Return the texts of a file, partition by partition."""
    return [text for _, text in test_sources.read_file(kind, path, **{"delimiter": ",", **options})]


def written(path: Path, data: bytes | str) -> Path:
    """Write a file, return its path."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def batches_of(file: DirtyFile, path: Path, **options: Any) -> Iterator[Rows]:
    """Write a file, and yield its batches."""
    path.write_bytes(file.data)
    reader = make_reader({"text": "text", "max_bytes": 2**28, "delimiter": ",", **file.source, **options})
    with naming_source(None):
        for part in reader.partitions(str(path)):
            yield from reader.read(str(path), part)


@pytest.mark.parametrize("what", READ)
def test_it_is_read(what: str, tmp_path: Path) -> None:
    for file in READ[what]:
        rows: list[Any] = []
        for batch in batches_of(file, tmp_path / file.name):
            rows += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        assert rows == file.wanted or [text for _, text in rows] == file.wanted, (file.name, rows)


@pytest.mark.parametrize("what", BAD_ROWS)
def test_its_rows_are_bad(what: str, tmp_path: Path) -> None:
    for file in BAD_ROWS[what]:
        path = tmp_path / file.name
        batches = list(batches_of(file, path, on_error="skip"))
        assert [text for batch in batches for text in batch.texts.to_pylist()] == file.wanted, file
        assert [(bad.row, bad.reason) for batch in batches for bad in batch.bad] == file.bad, file
        with pytest.raises(BadRow, match=f"^{path}.*{file.message}") as raised:
            list(batches_of(file, path))
        assert (raised.value.row, raised.value.reason) == file.bad[0]
        assert len(str(raised.value).encode()) < 1000  # a message that can't be encoded would hide the error


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "text"])
def test_an_archive_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a.zip", "a.jsonl.zip", "a.tar", "a.txt.tar.gz", "a.7z", "a.rar"):
        (tmp_path / "a" / name).write_bytes(b"anything")
    reader = make_reader({"kind": kind, "text": "text", "max_bytes": 100})
    for path in [*map(str, (tmp_path / "a").iterdir()), f"{tmp_path}/a/*", f"zip://a.jsonl::{tmp_path}/a/a.zip"]:
        with pytest.raises(InputError, match="the files in an archive are not read; extract it"):
            reader.files(path)


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(what: str, tmp_path: Path) -> None:
    for i, file in enumerate(REFUSED[what]):
        path = tmp_path / str(i) / file.name
        path.parent.mkdir()
        for on_error in ("fail", "skip"):
            with pytest.raises(InputError, match=file.message) as raised:
                list(batches_of(file, path, on_error=on_error))
            assert not isinstance(raised.value, BadRow)
            assert str(path) in str(raised.value)
            str(raised.value).encode()  # can be printed


# Encodings


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "text"])
def test_a_file_in_another_encoding_is_refused_by_name(kind: str, encoding: str, tmp_path: Path) -> None:
    data = {"jsonl": '{"text": "été"}\n', "csv": "text\nété\n", "text": "été"}[kind]
    path = written(tmp_path / "a", data.encode(encoding))
    with pytest.raises(InputError, match=r"/a[,:].*(UTF-8|not valid JSON|no column)"):
        texts_of(path, kind)


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


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'{"text": "a"}\n\n{"text": 5}\n', "line 3 at byte 15"),
        (b'[\n{"text":\n"a"},\n{"text": 5}]', "line 4, value 1 of its JSON array"),
    ],
)
def test_a_bad_row_of_json_names_its_line(data: bytes, place: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}])
    with pytest.raises(BadRow, match=rf"a\.jsonl, {place}: 'text' is a number"):
        build(spec)


def test_a_line_of_100_mb_above_the_limit_costs_no_memory_and_is_named_or_skipped(large_line: Path) -> None:
    tracemalloc.start()
    with pytest.raises(BadRow, match=r"line at byte 18: more than .*documents\.max_bytes") as raised:
        texts_of(large_line, max_bytes=1000)
    assert texts_of(large_line, max_bytes=1000, on_error="skip") == ["first", "last"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (raised.value.row, raised.value.reason) == (18, "too_large")
    assert peak < 30_000_000


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
    assert_refused(spec, f"{tmp_path}/b.jsonl, line 2 at byte 16", "'text' is a number, not text")
    skipping = spec_of(tmp_path / "*.jsonl", "jsonl", documents={"on_error": "skip"})
    assert build(skipping).rows["quarantined"] == 1
