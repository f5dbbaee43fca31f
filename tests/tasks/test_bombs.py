"""Small files that claim or contain far more than memory: a worker reads or refuses them within its limit.

The limit is 1 GB and four times the largest document, here of 1 MB; each file is read in a worker process as a build
reads it, with a minute's time.
"""

from __future__ import annotations

import bz2
import gzip
import io
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.builders import raw_parquet as raw
from tests.builders.good_files import zstd
from tests.counts import count
from tests.drivers.mutants import MAX_BYTES, Case, Children, Outcome, read_as_built

pytestmark = pytest.mark.slow
MILLION = 1_000_000


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()


def outcome(children: Children, path: Path, data: bytes, max_bytes: int = MAX_BYTES, **options: Any) -> Outcome:
    """Read a file in a worker; its memory stays within the limit, and it needs less than a minute."""
    path.write_bytes(data)
    kinds = {".parquet": "parquet", ".arrow": "arrow", ".txt": "text", ".csv": "csv"}
    kind = next((kind for suffix, kind in kinds.items() if suffix in path.name), "jsonl")
    case = Case(str(path), {"kind": kind, "delimiter": ",", "max_bytes": max_bytes, **options})
    found = children.call(partial(read_as_built, keep_texts=False), case)
    assert not found.is_hang
    assert not found.fault
    assert found.peak <= 1000 * MILLION + 4 * max_bytes, found
    assert found.texts is not None or str(path) in found.said, found
    return found


def refused(children: Children, path: Path, data: bytes, *parts: str, **options: Any) -> None:
    """Check that a file is refused, with an error that contains `parts`."""
    found = outcome(children, path, data, **options)
    assert found.texts is None, found
    assert [part for part in parts if part not in found.said] == [], found.said


# Parquet

ONE = raw.page(raw.DICTIONARY_PAGE, 1, raw.plain([b"hello"]), raw.PLAIN)


def test_references_to_one_text_are_rows(tmp_path: Path, children: Children) -> None:
    num_rows = count(2, 50) * MILLION
    data = raw.file_of(
        [ONE, raw.page(raw.DATA_PAGE, num_rows, b"\1" + raw.run(num_rows), raw.RLE_DICTIONARY)], num_rows
    )
    assert len(data) < 200
    found = outcome(children, tmp_path / "a.parquet", data)
    assert (found.num_rows, found.texts) == (num_rows, [str(num_rows), str(5 * num_rows)]), found


@pytest.mark.parametrize("claimed", [None, 200 * MILLION])
def test_references_to_a_large_text_are_read_in_pieces_whatever_the_footer_claims(
    claimed: int | None, tmp_path: Path, children: Children
) -> None:
    """Rows of 1 MB each in a file of 1 MB, whose footer can claim rows of 200 bytes."""
    num_rows, text = count(1300, 20_000), b"x" * MILLION
    pages = [
        raw.page(raw.DICTIONARY_PAGE, 1, raw.plain([text]), raw.PLAIN),
        raw.page(raw.DATA_PAGE, num_rows, b"\1" + raw.run(num_rows), raw.RLE_DICTIONARY),
    ]
    data = raw.file_of(pages, num_rows, num_bytes=claimed and 200 * num_rows)
    found = outcome(children, tmp_path / "a.parquet", data)
    assert found.texts == [str(num_rows), str(num_rows * MILLION)], found


def _true_claims() -> dict[str, bytes]:
    """A claim costs nothing, because only two rows are requested."""
    few, most = raw.plain([b"hello", b"world"]), raw.MOST
    return {
        "bytes of a page": raw.file_of([raw.page(raw.DATA_PAGE, 2, few, raw.PLAIN, most)], 2),
        "values of a page": raw.file_of([raw.page(raw.DATA_PAGE, most, few, raw.PLAIN)], 2),
    }


@pytest.mark.parametrize("what", _true_claims())
def test_a_page_that_claims_more_than_the_footer_is_read_up_to_the_footers_size(
    what: str, tmp_path: Path, children: Children
) -> None:
    assert outcome(children, tmp_path / "a.parquet", _true_claims()[what]).texts == ["2", "10"]


def _claims() -> dict[str, bytes]:
    few, most = raw.plain([b"hello", b"world"]), raw.MOST
    data, dictionary = raw.DATA_PAGE, raw.DICTIONARY_PAGE
    references = raw.page(data, 10, b"\1" + raw.run(10), raw.RLE_DICTIONARY)
    lists = raw.levels(0, most, 1) + raw.levels(1, most, 1) + b"\1" + raw.run(most)
    items = raw.file_of([ONE, raw.page(data, most, lists, raw.RLE_DICTIONARY)], 1, num_values=most, is_list=True)
    return {
        "values of a page": raw.file_of([raw.page(data, most, few, raw.PLAIN)], most),
        "values of a page, few rows": raw.file_of([raw.page(data, most, few, raw.PLAIN)], 2, num_values=most),
        "lengths of a page": raw.file_of([raw.page(data, most, b"\x80\1\4\2\0\0", raw.DELTA_LENGTH)], most),
        "prefixes of a page": raw.file_of([raw.page(data, most, b"\x80\1\4\2\0\0", raw.DELTA_BYTES)], most),
        "bytes of a packed page": raw.file_of([raw.page(data, 2, zstd(few), raw.PLAIN, most)], 2, codec=raw.ZSTD),
        "bytes of a dictionary": raw.file_of(
            [raw.page(dictionary, 2, zstd(few), raw.PLAIN, most), references], 10, codec=raw.ZSTD
        ),
        "values of a dictionary": raw.file_of([raw.page(dictionary, most, few, raw.PLAIN), references], 10),
        "length of a text": raw.file_of([raw.page(data, 1, struct.pack("<I", most) + b"x", raw.PLAIN)], 1),
        "rows": raw.file_of([ONE, references], 2**60),
        **({"items of a list": items} if count(0, 1) else {}),  # takes ten seconds to reach the limit
    }


@pytest.mark.parametrize("what", _claims())
def test_a_file_that_claims_more_than_it_contains_is_refused(what: str, tmp_path: Path, children: Children) -> None:
    data = _claims()[what]
    assert len(data) < 500
    refused(children, tmp_path / "a.parquet", data, "leave it out")


_CODECS = {"zstd": raw.ZSTD, "gzip": raw.GZIP, "brotli": raw.BROTLI, "snappy": raw.SNAPPY, "lz4_raw": raw.LZ4}


@pytest.mark.parametrize("codec", list(_CODECS)[: count(1, len(_CODECS))])
def test_a_page_of_more_than_the_limit_is_refused_and_one_of_less_is_read(
    codec: str, tmp_path: Path, children: Children
) -> None:
    text = raw.plain([b"x" * MILLION])
    for num_rows, is_read in ((300, True), (1100, False)):
        packed = pa.compress(text * num_rows, codec, asbytes=True)
        page = raw.page(raw.DATA_PAGE, num_rows, packed, raw.PLAIN, num_rows * len(text))
        data = raw.file_of([page], num_rows, num_bytes=num_rows * len(text), codec=_CODECS[codec])
        if is_read:
            found = outcome(children, tmp_path / "a.parquet", data)
            assert found.texts == [str(num_rows), str(num_rows * MILLION)], found
        else:
            refused(children, tmp_path / "a.parquet", data, "row group 0", "bytes of memory", "max_bytes")


# Arrow


def _large(num_rows: int) -> pa.Table:
    """Return a table of texts of 1 MB each, one after the other in memory."""
    offsets = pa.py_buffer(MILLION * np.arange(num_rows + 1, dtype=np.int64))
    texts = pa.py_buffer(np.full(num_rows * MILLION, ord("x"), np.uint8))
    return pa.table({"text": pa.LargeStringArray.from_buffers(num_rows, offsets, texts)})


@pytest.mark.parametrize("is_file", [True, False])
def test_a_batch_of_more_than_the_limit_is_refused(is_file: bool, tmp_path: Path, children: Children) -> None:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = _large(1100)
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    refused(children, tmp_path / "a.arrow", sink.getvalue(), "bytes of memory", "max_bytes")


@pytest.mark.parametrize("claimed", [2**31, 2**40, 2**62, -2])
def test_a_buffer_that_claims_more_than_it_contains_is_refused(
    claimed: int, tmp_path: Path, children: Children
) -> None:
    sink = io.BytesIO()
    table = pa.table({"text": ["hello " * 1000] * 10})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    length = struct.pack("<q", 60_000)  # comes before the compressed texts
    assert data.count(length + b"\x28\xb5\x2f\xfd") == 1
    refused(children, tmp_path / "a.arrow", data.replace(length, struct.pack("<q", claimed)), "record batch 0")


# Endless compressed text

PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstd}


def _packed(suffix: str, head: bytes, piece: bytes, gigabytes: float) -> bytes:
    """Return a file of `head` and gigabytes of `piece`, in members of 10 MB."""
    member = piece * (10 * MILLION // len(piece))
    return PACKED[suffix](head) + PACKED[suffix](member) * int(gigabytes * 100)


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "parts.txt", "a.csv"])
def test_a_line_without_end_is_refused_by_its_length(
    name: str, suffix: str, tmp_path: Path, children: Children
) -> None:
    head = {"a.jsonl": b'{"text": "', "a.json": b'[{"text": "', "a.csv": b'text\n"'}.get(name, b"")
    said = "64,000,000 characters" if "csv" in name else "max_bytes"
    options = {"separator": "<|endoftext|>"} if name == "parts.txt" else {}
    data = _packed(suffix, head, b"x", count(1, 10) / (4 if suffix == "bz2" else 1))
    refused(children, tmp_path / f"{name}.{suffix}", data, said, **options)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_line_without_end_is_skipped_in_little_memory(name: str, tmp_path: Path, children: Children) -> None:
    data = _packed("zst", b'{"text": "', b"x", count(1, 10)) + zstd(b'"}\n<|>{"text": "good"}')
    options: dict[str, Any] = {"separator": "<|>"} if name == "a.txt" else {}
    found = outcome(children, tmp_path / f"{name}.zst", data, on_error="skip", **options)
    assert found.num_rows == 2
    assert found.peak < 300 * MILLION


def test_a_quote_without_end_is_refused(tmp_path: Path, children: Children) -> None:
    data = b'text\ngood\n"' + b"line after line\n" * count(6, 60) * MILLION
    refused(children, tmp_path / "a.csv", data, "line", "field")


# JSON


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":['])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_depth_is_refused(name: str, opening: str, tmp_path: Path, children: Children) -> None:
    for depth in (2000, 100_000, 1_000_000 // len(opening)):
        nested = (opening * depth).encode()
        data = b'{"text": "a", "b": ' + nested + b"}\n" if name == "a.jsonl" else b'[{"text": "a", "b": ' + nested
        refused(children, tmp_path / name, data, "nested too deep")


def test_a_line_whose_values_take_many_times_its_bytes_is_refused(tmp_path: Path, children: Children) -> None:
    """Three bytes of JSON become a list of 64 bytes, so a line within max_bytes takes more than the memory limit."""
    max_bytes = count(24 * MILLION, 2**28)
    for name, end in [("a.jsonl.zst", b"]}\n"), ("a.json.zst", b"]}]")][: count(1, 2)]:
        head = (b"[" if "json." in name else b"") + b'{"text": "a", "b": [[]'
        data = _packed("zst", head, b",[]", count(5, 40) / 100) + zstd(end)
        refused(children, tmp_path / name, data, "memory", max_bytes=max_bytes)


def test_numbers_of_any_size_are_read_or_refused(tmp_path: Path, children: Children) -> None:
    for number in (b"1e999999999999", b"-1E-999999999999", b"0." + b"1" * MILLION):
        assert outcome(children, tmp_path / "a.jsonl", b'{"text": "a", "b": ' + number + b"}\n").num_rows == 1
    refused(children, tmp_path / "a.jsonl", b'{"text": "a", "b": ' + b"9" * MILLION + b"}\n", "not valid JSON")
