"""Read marks, and find those of documents: by their row, their id or their content.

Marks that are aligned with the rows of an input are read in row groups. All others are tables in memory, sorted by keys
of 16 bytes, which a worker reads once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import Filter, columns_of, comparisons_of, is_table, parse_filter
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.keys import DIGEST_DTYPE, Digests, content_hashes, digests_of
from tokenloom.tasks.building.inputs import InputFile
from tokenloom.tasks.building.marks.files import (
    EXCLUDED,
    MarkFiles,
    MarkRules,
    comparing,
    fingerprint_of,
    open_table,
)
from tokenloom.tasks.rules import read_list
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.files import open_decompressed, open_input
from tokenloom.tasks.sources.filters import check_comparable, kept_rows
from tokenloom.tasks.sources.values import pick, plain
from tokenloom.tokenizers.base import text_bytes

_BATCH_ROWS = 2**13  # read at a time: 64 MB if each has 8 KB
_NO_MARKS = pa.RecordBatch.from_pydict({})  # of a list


@dataclass(frozen=True)
class Documents:
    """n documents of a spill, and what marks know them by.

    Args:
        file: their input.
        table: (n,) of the spill's TABLE_DTYPE.
        split: (n,) uint8, the index of each document's split.
        ids: (n,) large_string, null without one.
        positions: (n,), the position of each one's row among all rows of the input; needed by aligned marks alone.
    """

    file: InputFile
    table: NDArray[Any]
    split: NDArray[np.uint8]
    ids: pa.Array
    positions: Int64s

    def place(self, where: NDArray[np.bool_]) -> str:
        """Return how a message names the first row of some of the documents."""
        return make_reader(self.file.options).place(self.file.url, int(self.table["row"][where].min()))


def find(marks: MarkFiles, documents: Documents) -> tuple[Int64s, pa.Table]:
    """Return the row of each document in a table of marks, (n,), -1 for one that has no marks, and the table.

    Raises InputError if a file of marks can't be read, or does not fit its input.
    """
    if marks.is_aligned:
        return _find_aligned(marks, documents)
    keys, table = load_table(marks)
    wanted = _wanted_keys(marks, documents)
    rows, order = np.empty(len(wanted), np.int64), np.argsort(wanted, kind="stable")
    rows[order] = np.searchsorted(keys, wanted[order])  # a search in order takes a quarter of the time
    found = rows < len(keys)
    found[found] = keys[rows[found]] == wanted[found]
    return np.where(found, rows, -1), table


def _wanted_keys(marks: MarkFiles, documents: Documents) -> Digests:
    table, file = documents.table, documents.file
    if marks.key == "content":
        return digests_of(np.stack([table["content_high"], table["content_low"]], axis=1))
    if marks.key == "row":
        return _hashed(pa.repeat(file.path, len(table)), pa.array(table["row"]))
    if not file.options.get("id"):
        raise InputError(f"source {file.source}: marks by id need the ids of its rows; give it `id: COLUMN`")
    return _hashed(documents.ids.fill_null("\0"))  # no key: an empty one is of no document without an id


def _hashed(*columns: pa.Array) -> Digests:
    """Return the hashes of texts, or of those of several columns together, (n,)."""
    texts = [column.cast(pa.large_string()) for column in columns]
    joined = pc.binary_join_element_wise(*texts, pa.scalar("\0", pa.large_string()))
    return digests_of(content_hashes(*text_bytes(joined)))


@lru_cache(maxsize=8)
def load_table(marks: MarkFiles) -> tuple[Digests, pa.Table]:
    """Return the sorted keys of marks, each once, and their marks; a list has none.

    Raises InputError if a file can't be read, has changed since the plan, or lacks the column of its keys, or if a key
    has two different marks.
    """
    place = marks.files[0].url
    with marks.reading(place), comparing(() if marks.label == EXCLUDED else marks.files):
        parts = [part for file in marks.files for part in _keyed(marks, file.url)]
        keys = np.concatenate([np.empty(0, DIGEST_DTYPE), *(keys for keys, _ in parts)])
        if marks.label == EXCLUDED and fingerprint_of(keys) != marks.files[0].fingerprint:
            raise InputError(f"{place}: it changed while it was read; build again when it is complete")
        if marks.as_ is not None:
            keys.sort(kind="stable")
            return keys, pa.Table.from_batches([_NO_MARKS])
        try:
            table = pa.concat_tables([pa.Table.from_batches([b]) for _, b in parts], promote_options="default")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"{marks.label}: files with other columns: {message_of(error)}") from error
        del parts
        if not table.num_columns:
            raise InputError(f"{marks.label}: it has no marks, only keys; leave it out, or give it `as`")
        if not place.endswith(".parquet"):
            table = pa.table([pc.fill_null(column, 0.0) for column in table.columns], table.column_names)
        order = np.argsort(keys, kind="stable")
        keys, table = keys[order], table.take(order)
        again = np.flatnonzero(keys[1:] == keys[:-1]) + 1
        if not table.take(again).equals(table.take(again - 1)):
            raise InputError(f"{marks.label}: a key has two different marks; correct the file: one row for each key")
        first = np.delete(np.arange(len(keys)), again)
        return keys[first], table.take(first)


def num_keys(marks: MarkFiles) -> int:
    """Return how many keys a table or list has, each once; 0 for aligned marks."""
    return 0 if marks.is_aligned else len(load_table(marks)[0])


def names_of(marks: MarkFiles) -> Sequence[str]:
    """Return the names of the marks in files."""
    if marks.is_aligned:
        return _marks_in(list(marks.columns))
    return [marks.as_] if marks.as_ else load_table(marks)[1].column_names


def _keyed(marks: MarkFiles, url: str) -> Iterator[tuple[Digests, pa.RecordBatch]]:
    """Yield keys and marks of a file, some at a time."""
    key = marks.key
    is_parquet, is_list = url.endswith(".parquet"), marks.as_ is not None
    if not is_table(url) or (key == "content" and not is_parquet):
        yield read_list(url, key), _NO_MARKS
        return
    for batch in _batches(url) if is_parquet else _json_lines(url, is_list=is_list):
        names = batch.schema.names
        needed = ["path", "row"] if key == "row" else names if is_list and len(names) == 1 else [key]  # as Curator's
        if bad := next((name for name in needed if name not in names or batch[name].null_count), None):
            raise InputError(f"{url}: `key: {key}` needs the column {bad!r}, without nulls; correct that")
        columns = [batch[name] for name in needed]
        yield _contents(*columns) if key == "content" else _hashed(*columns), batch.select(_marks_in(names))


def _marks_in(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in ("path", "row", "id", "content")]


def _contents(column: pa.Array) -> Digests:
    """Return the contents that a column has as hashes, 32 hexadecimal digits, or as texts."""
    texts = column.cast(pa.large_string())
    is_hash = pc.match_substring_regex(texts, "^[0-9a-fA-F]{32}$").to_numpy(zero_copy_only=False)
    found = digests_of(content_hashes(*text_bytes(texts)))
    hashes = texts.filter(pa.array(is_hash)).to_pylist()
    found[is_hash] = np.frombuffer(bytes.fromhex("".join(hashes)), DIGEST_DTYPE)
    return found


def _json_lines(url: str, *, is_list: bool) -> Iterator[pa.RecordBatch]:
    """Read the `id` of each line and, unless it is a list, dolma's {"attributes": {name: [[start, end, score], ...]}}.

    A mark is the score of the first span, 0 without one: dolma leaves out an attribute that found nothing.
    """
    rows: list[dict[str, str | float]] = []
    with open_decompressed(url) as file:
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line)
                found = {} if is_list else value["attributes"]
                marks = {name: float(spans[0][2]) if spans else 0.0 for name, spans in found.items()}
                rows.append(marks | {"id": str(value["id"])})
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise InputError(
                    f"{url}, line {number}: no id or attributes: {message_of(error)}; recreate it"
                ) from error
            if len(rows) == _BATCH_ROWS:
                yield _batch_of(rows)
                rows.clear()
    yield _batch_of(rows)


def _batch_of(rows: list[dict[str, str | float]]) -> pa.RecordBatch:
    types = {name: pa.float64() for row in rows for name in row} | {"id": pa.large_string()}
    return pa.RecordBatch.from_pylist(rows, pa.schema(types))


def _find_aligned(marks: MarkFiles, documents: Documents) -> tuple[Int64s, pa.Table]:
    file, positions = marks.beside(documents.file), documents.positions
    if marks.has_positions:
        return np.where(np.isin(positions, _removed(file)), 0, -1), pa.Table.from_batches([_NO_MARKS])
    if marks.as_ is not None:
        raise InputError(
            f"{file.url}: marks for each row, not a list: leave `as` out; give a list `key: id` or content"
        )
    start = int(positions.min(initial=0))
    with marks.reading(file.url):
        rows, table = positions - start, _read_rows(file, start, int(positions.max(initial=-1)) + 1)
    if "id" in table.column_names and documents.file.options.get("id"):
        _compare_ids(documents, table["id"].take(pa.array(rows)), file)
    return rows, table.select(_marks_in(table.column_names))


def _compare_ids(documents: Documents, theirs: pa.ChunkedArray, file: InputFile) -> None:
    """Raise InputError for the first row whose id differs from that in an aligned file of marks."""
    mine, theirs = documents.ids.fill_null(""), theirs.cast(pa.large_string()).fill_null("")
    differs = pc.not_equal(mine, theirs).to_numpy(zero_copy_only=False)
    if differs.any():
        first = np.argmin(np.where(differs, documents.table["row"], np.iinfo(np.uint64).max))
        problem = f"its id is {str(mine[first])!r}, and the marks have {str(theirs[first])!r}"
        raise InputError(f"{documents.place(differs)}: {problem}: recreate {file.url} in the order of the rows")


@lru_cache(maxsize=4)
def _removed(file: InputFile) -> Int64s:
    with open_input(file.url) if file.url else BytesIO() as data:
        found = data.read()
    if len(found) % 4:
        raise InputError(f"{file.url}: not whole numbers of 4 bytes; recreate it")
    return np.frombuffer(found, "<u4").astype(np.int64)


def _read_rows(file: InputFile, start: int, end: int) -> pa.Table:
    """Return rows [start, end) of a file of marks."""
    with open_table(file.url) as table:
        offsets = np.cumsum([0, *(table.metadata.row_group(i).num_rows for i in range(table.num_row_groups))])
        first, last = np.searchsorted(offsets, start, side="right") - 1, np.searchsorted(offsets, end)
        found = table.read_row_groups(list(range(first, last))).slice(start - offsets[first], end - start)
        return pa.table([plain(column.combine_chunks()) for column in found.columns], found.column_names)


def check_length(marks: MarkFiles, input_file: InputFile, num_rows: int, *, is_tryout: bool) -> None:
    """Raise InputError if a file of marks has fewer rows than its input, or more: a try-out reads the first alone."""
    file = marks.beside(input_file)
    if marks.has_positions:  # it has those to remove
        found = max(num_rows, int(_removed(file).max(initial=-1)) + 1)
    else:
        with open_table(file.url) as table:
            found = table.metadata.num_rows
    if found < num_rows or (found > num_rows and not is_tryout):
        raise InputError(f"{file.url}: {found:,} rows for the {num_rows:,} of its input; recreate the marks")


def _batches(url: str, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    with open_table(url) as table:
        for batch in table.iter_batches(_BATCH_ROWS, columns=names):
            yield pa.record_batch(list(map(plain, batch.columns)), batch.schema.names)
        if not table.metadata.num_rows:
            yield pa.RecordBatch.from_pylist([], table.schema_arrow)


def kept_by(batch: pa.RecordBatch, tree: Filter, url: str) -> NDArray[np.bool_]:
    """Return which of n rows of marks a filter keeps, (n,); raises InputError if it can't compare a column."""
    for part in comparisons_of(tree):
        check_comparable(batch.schema, part, url)
        if isinstance(getattr(part, "value", None), bool) and (kind := pick(batch, part.column).type) != pa.bool_():
            raise InputError(f"{url}: mark {part.column} is {kind}, not boolean; correct to: {part.column} > 0")
    return kept_rows(batch, tree)


def count_kept(rules: MarkRules) -> tuple[int, int] | None:
    """Return how many rows of marks `keep` keeps, and of how many, from these files alone.

    None if no entry of `marks` has all of its columns.
    """
    for marks in rules.marks if rules.keep else ():
        tree = parse_filter(rules.keep or "")
        if marks.as_ is None and {*columns_of(tree)} <= marks.columns.keys():
            counts = np.zeros(2, np.int64)
            for file in marks.files:
                with marks.reading(file.url):
                    for batch in _batches(file.url, columns_of(tree)):
                        counts += [kept_by(batch, tree, file.url).sum(), len(batch)]
            return int(counts[0]), int(counts[1])
    return None
