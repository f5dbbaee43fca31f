"""A document table is read at any row, and a content is found by its key, as if the whole table were in memory."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.errors import FormatError
from tokenloom.storage.formats.document_table import BATCH_ROWS, DocumentTable, DocumentTableWriter
from tokenloom.storage.formats.keys import order_keys
from tokenloom.storage.stores.local import LocalStore

NUM_ROWS = 2 * BATCH_ROWS + 77
NUM_INPUTS = 4


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
    with (folder / "a.docs").open("w+b") as file, DocumentTableWriter(file) as writer:
        keys = order_keys(content, 0)
        writer.append(
            (numbers % 9 + 1).astype("u4"), (numbers % NUM_INPUTS).astype("u4"), numbers.astype("u8"), content, keys
        )
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


def test_batches_are_the_whole_table(store: LocalStore, content: np.ndarray) -> None:
    table = DocumentTable(store, "a.docs", NUM_ROWS, NUM_INPUTS)
    found = list(table.batches())
    assert [batch.num_rows for batch in found] == [BATCH_ROWS, BATCH_ROWS, 77]
    assert (np.concatenate([batch.content for batch in found]) == content).all()


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
