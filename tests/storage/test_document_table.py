"""The document table beside a shard: its bytes do not depend on how it was written, and any row is read alone."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.builders.datasets import open_documents
from tokenloom.errors import FormatError
from tokenloom.storage.formats.document_table import BATCH_ROWS, SCHEMA, DocumentTable
from tokenloom.storage.formats.keys import order_keys
from tokenloom.storage.formats.shard_writer import DocumentTableWriter
from tokenloom.storage.stores.local import LocalStore

GOLDEN = Path(__file__).parent / "golden" / "format-1.docs"
NUM_ROWS = 2 * BATCH_ROWS + 77
NUM_INPUTS = 4
GOLDEN_PYARROW = "26.0.1"  # the release whose bytes the golden table has


def columns(
    num_documents: int,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return num_tokens, inputs, rows, and words of which content and keys are made."""
    index = np.arange(num_documents, dtype=np.uint64)
    words = (index + 1) * np.uint64(0x9E3779B97F4A7C15)
    return (index % 7 + 1).astype(np.uint32), (index % 3).astype(np.uint32), index * 10, words


def write(path: Path, num_documents: int, cuts: Sequence[int] = ()) -> Path:
    """Write a table; `cuts` are where one append ends and the next begins."""
    num_tokens, inputs, rows, words = columns(num_documents)
    content = np.stack([words, ~words], axis=1)
    with path.open("w+b") as file:
        writer = DocumentTableWriter(file)
        for a, b in itertools.pairwise([0, *cuts, num_documents]):
            writer.append(num_tokens[a:b], inputs[a:b], rows[a:b], content[a:b], words[a:b])
        entry, data = writer.finish(), path.read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return path


def expected_rows(num_documents: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    start = 0
    for i in range(num_documents):
        word = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
        content = word.to_bytes(8, "big") + (2**64 - 1 - word).to_bytes(8, "big")
        row = {"start": start, "num_tokens": i % 7 + 1, "input": i % 3, "row": 10 * i, "content": content, "key": word}
        rows.append(row)
        start += i % 7 + 1
    return rows


@pytest.mark.parametrize(
    "cuts", [[], [1], [0, 0], [BATCH_ROWS], [BATCH_ROWS - 1, BATCH_ROWS + 1], [7, 70_000, 130_000]]
)
def test_bytes_do_not_depend_on_the_appends(tmp_path: Path, cuts: list[int]) -> None:
    num_documents = 2 * BATCH_ROWS + 5
    whole = write(tmp_path / "whole.docs", num_documents)
    parts = write(tmp_path / "parts.docs", num_documents, cuts)
    assert parts.read_bytes() == whole.read_bytes()


def test_a_table_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.docs"
    num_tokens, inputs, rows, words = columns(BATCH_ROWS)
    with path.open("w+b") as file:
        DocumentTableWriter(file).append(num_tokens, inputs, rows, np.stack([words, words], axis=1), words)
    assert path.stat().st_size > BATCH_ROWS
    with pytest.raises(FormatError, match="not a readable document table"):
        DocumentTable(LocalStore(tmp_path), "a.docs", BATCH_ROWS, 3)


def test_the_golden_table_stays_readable_and_is_still_written_to_the_byte(tmp_path: Path) -> None:
    # golden/format-1.docs was made by `write(path, 40)`, with the release of pyarrow named above.
    table = open_documents(GOLDEN)
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == expected_rows(40)
    assert open_documents(write(tmp_path / "empty.docs", 0)).to_pylist() == []
    if pa.__version__ == GOLDEN_PYARROW:  # the bytes of .docs are promised for one release, the one in constraints.txt
        assert write(tmp_path / "a.docs", 40, [11]).read_bytes() == GOLDEN.read_bytes()


@pytest.fixture(scope="module")
def content() -> np.ndarray:
    """(n, 2) contents, sorted by key, one of them three times and with the key of another."""
    words = np.random.default_rng(0).integers(0, 2**64, (NUM_ROWS, 2), np.uint64)
    words[BATCH_ROWS - 1 : BATCH_ROWS + 2] = words[BATCH_ROWS]
    return words[np.argsort(order_keys(words, 0), kind="stable")]


@pytest.fixture(scope="module")
def store(content: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    folder = tmp_path_factory.mktemp("table")
    numbers = np.arange(NUM_ROWS)
    with (folder / "a.docs").open("w+b") as file:
        writer = DocumentTableWriter(file)
        keys = order_keys(content, 0)
        writer.append(
            (numbers % 9 + 1).astype("u4"), (numbers % NUM_INPUTS).astype("u4"), numbers.astype("u8"), content, keys
        )
        writer.finish()
    return LocalStore(folder)


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (5, 5), (BATCH_ROWS - 2, BATCH_ROWS + 3), (NUM_ROWS - 1, NUM_ROWS), (10, 2 * BATCH_ROWS + 10)],
)
def test_any_rows_are_those_of_the_whole_table(store: LocalStore, content: np.ndarray, start: int, end: int) -> None:
    table = DocumentTable(store, "a.docs", NUM_ROWS, NUM_INPUTS)
    rows = table.rows(start, end)
    assert rows.num_rows == end - start
    assert rows.row.tolist() == list(range(start, end))
    assert (rows.content == content[start:end]).all()
    assert [batch.num_rows for batch in table.batches()] == [BATCH_ROWS, BATCH_ROWS, 77]


def test_every_content_is_found_by_its_key(store: LocalStore, content: np.ndarray) -> None:
    keys = order_keys(content, 0)
    table = DocumentTable(store, "a.docs", NUM_ROWS, NUM_INPUTS)
    for row in [0, 1, BATCH_ROWS - 1, BATCH_ROWS, NUM_ROWS - 1, *range(100, NUM_ROWS, 9999)]:
        same = np.flatnonzero((content == content[row]).all(axis=1)).tolist()
        assert list(table.find(int(keys[row]), content[row])) == same
    assert not table.find(int(keys[7]), content[8])
    assert not table.find(0, content[0])
    assert not table.find(2**64 - 1, content[0])


def test_a_table_of_another_shard_is_refused(store: LocalStore) -> None:
    for count in (NUM_ROWS + 1, 5):
        with pytest.raises(FormatError, match="another number of rows"):
            list(DocumentTable(store, "a.docs", count, NUM_INPUTS).batches())
