"""Datasets of the Hugging Face Hub, local folders of data files, and files through a builder of the package datasets.

The package says which data files a split has. Parquet, Arrow, JSON and CSV files are read and cut by the readers of
those kinds, not by the package's own: its parquet decodes whole row groups (1.6 GB of memory for a group of 450 MB,
whatever its batch_size; parquet.py takes 0.2 GB), its JSON turns the text "2020-01-01" into "2020-01-01 00:00:00", and
its CSV turns the text "NA" into null. Other files are read through the package as streams: a partition is a data file,
and `row` is the number of the row in it. With `take`, all files are one stream, the only partition of the first file;
`row` is the number of the row in the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokenloom.errors import BadRow, InputError
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.spec.wildcards import root_of
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.base import BATCH_BYTES, FileRange, Options, PartitionRange, Rows, SourceReader
from tokenloom.tasks.sources.datasets_package import (
    BUILDERS,
    Dataset,
    current_commit,
    is_on_hub,
    load,
    load_pinned,
    translate_package_errors,
)
from tokenloom.tasks.sources.files.finding import PINNED, FoundFile, check_names, found_file
from tokenloom.tasks.sources.files.opening import filesystem_of, input_bytes, is_local
from tokenloom.tasks.sources.rows.columns import Columns
from tokenloom.tasks.sources.rows.records import RawRow, RecordReader

_HUB_URL = re.compile(r"hf://datasets/[^@]+@([0-9a-f]{40})/")


class Reader(SourceReader):
    """Reads the datasets that the package datasets can stream.

    Args:
        options: see SourceReader; `name`, `config`, `split`, `revision`, `data_files` and `take` besides.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._take: int | None = options.get("take")
        self._columns = Columns(options)
        self._is_stream = bool(options.get("stream"))

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files: the data files of the split, at the commit that `revision` names now.

        Raises InputError if dataset, config, split, revision or files don't exist, or if the hub can't be reached.
        """
        name = str(self._options["name"])
        commit = current_commit(name, self._options.get("revision")) if is_on_hub(name) else None
        dataset = self._dataset(commit)
        if commit:
            with translate_package_errors(name):
                found = [_pinned(url, commit) for url in dataset.urls]
        else:
            check_names(dataset.urls)
            root = f"{Path(name).resolve()}/"
            if name in BUILDERS:
                root = root_of(filesystem_of(str(self._options["data_files"]))[1])
            found = [found_file(url.removeprefix(root), url, url) for url in dataset.urls]
        if dataset.kind is not None and self._take is None:
            return [replace(one, options={"kind": dataset.kind, "delimiter": dataset.delimiter}) for one in found]
        is_one = self._take is not None or dataset.num_shards() != len(dataset.urls)
        readme = Path(name, "README.md")  # says how the package reads the files
        sides = () if commit or name in BUILDERS or not readme.is_file() else (str(readme),)
        return [replace(one, options={"stream": True} if is_one else {}, sides=sides) for one in found]

    def _dataset(self, commit: str | None) -> Dataset:
        get = self._options.get
        open_it = load if commit is None else load_pinned  # local files may change
        return open_it(str(get("name")), get("config"), str(get("split") or "train"), get("data_files"), commit)

    def _opened(self, url: str) -> tuple[Dataset, int]:
        """Return the dataset that a file belongs to, and the file's position in it."""
        found = _HUB_URL.match(url)
        dataset = self._dataset(found[1] if found else None)
        if url not in dataset.urls:
            raise InputError(f"{url}: no longer a data file of {self._options['name']}; build again")
        return dataset, dataset.urls.index(url)

    def place(self, url: str, row: int) -> str:
        """See SourceReader.place."""
        return f"{url}{' and the files after it' if self._is_stream else ''}, row {row}"

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions: one for each file; if all are one stream, one for the first file."""
        dataset, index = self._opened(url)
        if self._is_stream and index > 0:
            return []
        with translate_package_errors(url):
            num_bytes = sum(map(input_bytes, dataset.urls if self._is_stream else [url]))
        return [PartitionRange(0, 1, num_bytes, None)]

    def read(self, url: str, part: FileRange) -> Iterator[Rows]:
        """See SourceReader.read."""
        with nullcontext() if is_local(url) else translate_package_errors(url):
            yield from self._read(url)

    def _read(self, url: str) -> Iterator[Rows]:
        dataset, index = self._opened(url)
        if dataset.kind is None:
            yield from self._streamed(dataset, url, None if self._is_stream else index)
        else:
            reader = make_reader({**self._options, "kind": dataset.kind, "delimiter": dataset.delimiter})
            yield from _read_first(reader, dataset.urls, self._take or 0)

    def _streamed(self, dataset: Dataset, url: str, index: int | None) -> Iterator[Rows]:
        row, schema = 0, None
        for table in _gathered(dataset.tables(url, index, self._take)):
            if table.schema != schema:
                self._columns.needed(table.schema, url)
                schema = table.schema
            for batch in table.to_batches():
                yield from self._columns.rows(batch, row, url)
                row += len(batch)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the whole file or stream."""
        return [FileRange(0, 1)]


def _pinned(url: str, commit: str) -> FoundFile:
    found = _HUB_URL.match(url)
    if found is None or found[1] != commit:
        raise InputError(
            f"{url}: a data file outside of the dataset's commit {commit}; download the dataset, and give its folder"
        )
    return FoundFile(url[found.end() :], url, input_bytes(url), PINNED + commit)


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join neighbouring tables of one schema into tables of about BATCH_BYTES."""
    pending: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        if pending and (num_bytes + table.nbytes > BATCH_BYTES or table.schema != pending[0].schema):
            yield pa.concat_tables(pending).combine_chunks()
            pending, num_bytes = [], 0
        pending.append(table)
        num_bytes += table.nbytes
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _read_first(reader: SourceReader, urls: Sequence[str], num_rows: int) -> Iterator[Rows]:
    """Yield the first `num_rows` rows of files, counted through all of them, before any filter.

    Args:
        reader: the reader of the files; numbers rows by their position, or is a RecordReader.
        urls: the files, in order.
        num_rows: how many rows to read.
    """
    if isinstance(reader, RecordReader):
        records = islice(_records(reader, urls), num_rows)
        return reader.batches(records, lambda row: f"{urls[0]} and the files after it, row {row}")
    return _first(_joined(reader, urls), num_rows)


def _records(reader: RecordReader, urls: Sequence[str]) -> Iterator[RawRow]:
    """Yield the records of all files, numbered in sequence."""
    parts = ((url, part) for url in urls for part in reader.partitions(url))
    raw_rows = (raw for url, part in parts for raw in reader.raw_rows(url, part.start, part.end))
    for number, (_, value, num_bytes) in enumerate(raw_rows):
        yield RawRow(number, value.changed(row=number) if isinstance(value, BadRow) else value, num_bytes)


def _joined(reader: SourceReader, urls: Sequence[str]) -> Iterator[Rows]:
    """Yield the rows of all files, numbered in sequence."""
    first_row = 0
    for url in urls:
        num_rows = 0
        for part in reader.partitions(url):
            for rows in reader.read(url, part):
                num_rows += rows.num_read
                bad = tuple(one.changed(row=one.row + first_row) for one in rows.bad)
                yield replace(rows, rows=rows.rows + np.uint64(first_row), bad=bad)
        first_row += num_rows


def _first(batches: Iterator[Rows], num_rows: int) -> Iterator[Rows]:
    start = 0
    for rows in batches:
        end = start + rows.num_read
        if end >= num_rows:
            yield rows if end == num_rows else _cut(rows, start, num_rows)
            return
        yield rows
        start = end


def _cut(rows: Rows, start: int, end: int) -> Rows:
    """Return the part before row `end` of a batch that accounts for the rows from `start` on."""
    count = int(np.searchsorted(rows.rows, np.uint64(end)))
    bad = tuple(one.changed(num_rows=min(one.num_rows, end - one.row)) for one in rows.bad if one.row < end)
    num_filtered = end - start - count - sum(one.num_rows for one in bad)
    not_read = min(rows.num_not_read, num_filtered)
    return replace(rows.head(count), num_filtered=num_filtered, num_not_read=not_read, bad=bad)
