"""Datasets of the Hugging Face Hub, local folders of data files, and files through a builder of the package datasets.

The package says which data files a split has. Parquet, Arrow, JSON and CSV files are read and cut by the readers of
those kinds, not by the package's own: its parquet decodes whole row groups (1.6 GB of memory for a group of 450 MB,
whatever its batch_size; parquet.py takes 0.2 GB), its JSON turns the text "2020-01-01" into "2020-01-01 00:00:00", and
its CSV turns the text "NA" into null. Other files are read through the package as streams: a partition is a data file,
and `row` is the number of the row in it. With `take`, all files are one stream, the only partition of the first file;
`row` is the number of the row in the stream.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import InputError, named_message_of
from tokenloom.spec.syntax import escaped, root_of
from tokenloom.storage.work.fingerprints import joined_fingerprint, remote_fingerprint
from tokenloom.tasks.sources import arrow, make_reader, parquet
from tokenloom.tasks.sources.base import (
    INDEX,
    MASK,
    FileRange,
    Options,
    PartitionRange,
    RowBatch,
    numbered,
)
from tokenloom.tasks.sources.columns import Columns
from tokenloom.tasks.sources.files import filesystem_of, input_bytes, is_local, waiting_if_told
from tokenloom.tasks.sources.hub import commit_of, current_commit, pinned
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, found_file
from tokenloom.tasks.sources.reader import SourceReader
from tokenloom.tasks.sources.token_ids import ATTENTION, BESIDE, IDS, IdColumns
from tokenloom.tasks.sources.values import shown_names

BUILDERS = ("arrow", "csv", "json", "parquet", "text")  # names of the package for data files without a dataset
_KINDS = {"ArrowConfig": "arrow", "CsvConfig": "csv", "JsonConfig": "jsonl", "ParquetConfig": "parquet"}
_HARMLESS = {  # options of a README.md that change neither rows nor texts, or that our reader of CSV has, too
    *("name", "version", "data_dir", "data_files", "description", "features", "chunksize", "batch_size", "block_size"),
    *("use_threads", "fragment_scan_options", "memory_map", "verbose", "sep", "delimiter"),
}
_EXTRACTED = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.zst", ".xz", ".lz4", ".7z", ".rar")  # may be nested
_STREAM_ROWS = 256  # rows that the package gives at a time: few, since each may be a large text
_SETTINGS = ("README.md", ".huggingface.yaml", "dataset_infos.json")  # the package takes options from them


class Reader(SourceReader):
    """Reads the datasets that the package datasets can stream.

    Args:
        options: see SourceReader; `name`, `config`, `split`, `revision`, `data_files` and `take` besides.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._take: int | None = options.get("take")
        self.columns = Columns(options)
        self._is_stream = bool(options.get("stream"))

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files: the data files of the split, at the commit that `revision` names now.

        Raises InputError if dataset, config, split, revision or files don't exist, or if the hub can't be reached.
        """
        name = str(self._options["name"])
        _library(name)  # raises if the package is missing
        options: dict[str, Any] = {}
        commit = None
        root = f"{Path(name).resolve()}/"
        if name in BUILDERS:
            options = {"data_files": pinned(str(self._options["data_files"]))}
            root = root_of(filesystem_of(options["data_files"])[1])
        elif not name.startswith("/"):
            commit = current_commit(name, self._options.get("revision"))
        dataset = _dataset({**self._options, **options}, commit)
        if commit:
            found = [_hub_file(url, commit) for url in dataset.urls]
        else:
            paths = [filesystem_of(url)[1] for url in dataset.urls]
            found = [found_file(path.removeprefix(root), path, dataset.urls[0]) for path in paths]
        if dataset.kind is not None and self._take is None:
            options |= {"kind": dataset.kind, "delimiter": dataset.delimiter}
            if dataset.delimiter == ",":  # nothing that a file of settings says decides how we read
                return [replace(file, options=options) for file in found]
        elif self._take is not None or dataset.num_shards() != len(dataset.urls):
            options["stream"] = True
        if commit is None:
            return [replace(file, options=options, sides=_local_settings(name)) for file in found]
        settings = _hub_settings(name, commit)
        return [
            replace(file, options=options, fingerprint=joined_fingerprint([str(file.fingerprint), *settings]))
            for file in found
        ]

    def _opened(self, url: str) -> tuple[Dataset, int]:
        """Return the dataset of a file, and the position of the file in it."""
        is_of_builder = self._options["name"] in BUILDERS
        dataset = _dataset(self._options, None if is_of_builder else commit_of(url))
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

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches."""
        dataset, index = self._opened(url)
        if dataset.kind is None:
            yield from self._streamed(dataset, url, None if self._is_stream else index)
            return
        reader = make_reader({**self._options, "kind": dataset.kind, "delimiter": dataset.delimiter})
        parts = ((one, part) for one in dataset.urls for part in reader.partitions(one))
        yield from _first_rows((batch for one, part in parts for batch in reader.batches(one, part)), self._take or 0)

    def _streamed(self, dataset: Dataset, url: str, index: int | None) -> Iterator[RowBatch]:
        row = 0
        for table in dataset.tables(url, index, self._take):
            self.columns.needed(table.schema, url)  # raises if a column is missing
            for batch in table.to_batches():
                yield numbered(batch, row)
                row += len(batch)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the whole file or stream."""
        return [FileRange(0, 1)]


def _dataset(options: Options, commit: str | None) -> Dataset:
    """Open a dataset as the options of a source say; that of a commit once in a process, as it can't change."""
    open_it = load if commit is None else load_pinned
    split = str(options.get("split") or "train")
    return open_it(str(options["name"]), options.get("config"), split, options.get("data_files"), commit)


def _hub_file(url: str, commit: str) -> FoundFile:
    """Return the record of a data file of a dataset on the Hub; raises InputError for a file outside of the commit."""
    if commit_of(url) != commit:
        raise InputError(
            f"{url}: a data file outside of the dataset's commit {commit}; download the dataset, and give its folder"
        )
    info = _ask_hub("info", url)  # one request for all files of a folder
    return FoundFile(url.partition(f"@{commit}/")[2], url, int(info["size"]), remote_fingerprint(info, url))


def _hub_settings(name: str, commit: str) -> list[str]:
    """Return the fingerprints of the files of settings of a dataset on the Hub."""
    root = f"hf://datasets/{name}@{commit}"
    infos = _ask_hub("ls", root)
    return sorted(remote_fingerprint(info, root) for info in infos if PurePosixPath(info["name"]).name in _SETTINGS)


def _ask_hub(method: str, url: str) -> Any:
    filesystem, name = filesystem_of(url)
    with translate_package_errors(url):
        return waiting_if_told(lambda: getattr(filesystem, method)(name))


def _local_settings(name: str) -> tuple[str, ...]:
    """Return the files of settings in a local folder; none for files that a builder reads."""
    if name in BUILDERS:
        return ()
    return tuple(str(path) for path in (Path(name, setting) for setting in _SETTINGS) if path.is_file())


def _first_rows(batches: Iterator[RowBatch], num_rows: int) -> Iterator[RowBatch]:
    """Yield the first `num_rows` rows, before any filter, numbered through all files."""
    start = 0
    for batch in batches:
        order = np.sort(np.concatenate([batch.rows, np.array([one.row for one in batch.bad], np.uint64)]))
        numbers = start + np.searchsorted(order, batch.rows).astype(np.uint64)
        bad = [one.changed(row=start + int(np.searchsorted(order, one.row))) for one in batch.bad]
        count = int(np.searchsorted(numbers, num_rows))
        yield replace(
            batch.slice(0, count),
            rows=numbers[:count],
            bad=tuple(one.changed(num_rows=min(one.num_rows, num_rows - one.row)) for one in bad if one.row < num_rows),
            num_not_read=min(batch.num_not_read, num_rows - start),
        )
        start += batch.num_rows
        if start >= num_rows:
            return


class TokenRows(SourceReader):
    """Rows of ids, read as the kinds `arrow` and `parquet` read rows: saved datasets, Arrow and parquet files.

    `attention_mask` says what is padding; columns that say nothing of the ids are not read.

    Args:
        options: as of TokenFormat.
    """

    def __init__(self, options: Options) -> None:
        beside = [name for name in BESIDE if name in options["has"]] if "has" in options else None
        self.columns = IdColumns(options, beside)
        self._arrow = arrow.Reader(options, self.columns)
        self._parquet = parquet.Reader(options, self.columns)

    def _reader(self, url: str) -> arrow.Reader | parquet.Reader:
        return self._parquet if url.endswith(".parquet") else self._arrow

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; reads the names of the first file's columns. Rows say where documents are."""
        found = self._reader(path).files(path, leave_out)
        names = self._reader(found[0].url).schema(found[0].url).names
        beside = [name for name in BESIDE if name in names]
        has = [INDEX, *[MASK] * any(name != ATTENTION for name in beside), *beside]
        return [replace(file, options={"has": has}) for file in found]

    def notes(self, url: str) -> list[str]:
        """See SourceReader.notes."""
        others = [name for name in self._reader(url).schema(url).names if name not in (IDS, *BESIDE)]
        return [f"{url}: its other columns are not read: {shown_names(others)}"] if others else []

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count row groups or record batches."""
        return self._reader(url).partitions(url)

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches."""
        return self._reader(url).batches(url, part)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate."""
        return self._reader(url).locate(url, rows)


class Dataset:
    """One split of a dataset.

    Attributes:
        urls: its data files.
        kind: the kind of source that reads the files; None if only the package reads them.
        delimiter: the character between the columns of CSV files.

    Args:
        builder: the package's builder of the dataset.
        split: its name.
        name: the dataset's name, for messages.
    """

    def __init__(self, builder: Any, split: str, name: str) -> None:
        files = {str(key): list(map(str, urls)) for key, urls in (builder.config.data_files or {}).items()}
        if not files.get(split):
            raise InputError(
                f"{name}: no split {split!r} with data files; its splits are: {', '.join(files) or 'none'}. Set split: "
                "to one of them, or check data_files in the spec and in README.md"
            )
        self.urls = files[split]
        self._builder = builder
        self._split = split
        self.delimiter = str(getattr(builder.config, "sep", ","))
        self.kind = _kind(builder.config, self.urls, self.delimiter)

    def num_shards(self) -> int:
        """Return the number of parts into which the package can cut the split, 0 if it can't say."""
        try:
            return int(self._stream(self.urls[0]).num_shards)
        except RuntimeError:  # the package: "Sharding is ambiguous"
            return 0

    def tables(self, url: str, index: int | None, take: int | None) -> Iterator[pa.Table]:
        """Yield the rows as tables of a few rows.

        Args:
            url: the URL of the file, or of the first one, for messages.
            index: the index of the file whose rows to read; None for all files.
            take: how many rows to read; None for all rows.
        """
        rows = self._stream(url)
        if index is not None:
            rows = rows.shard(num_shards=len(self.urls), index=index)
        tables = (rows if take is None else rows.take(take)).with_format("arrow").iter(batch_size=_STREAM_ROWS)
        with translate_package_errors(url if index is not None else f"{url} or a file after it"):
            yield from tables

    def _stream(self, url: str) -> Any:
        with translate_package_errors(url):
            return self._builder.as_streaming_dataset(self._split)


def _kind(config: Any, urls: list[str], delimiter: str) -> str | None:
    """Return the kind of source that reads the files of a config; None if only the package reads them as it says."""
    changes = [field.name for field in fields(config) if getattr(config, field.name) != field.default]
    if not _HARMLESS.issuperset(changes) or len(delimiter) != 1 or delimiter in '"\r\n\0':
        return None
    if any(url.endswith(_EXTRACTED) or "::" in url for url in urls):
        return None
    return _KINDS.get(type(config).__name__)


def _library(name: str) -> Any:
    """Return the package datasets, without progress bars and without reports of downloads over the network.

    Raises InputError if it is not installed.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: Hugging Face datasets need a package that is not installed: pip install 'tokenloom[build]'"
        ) from error
    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets


def load(name: str, config: str | None, split: str, data_files: str | None, commit: str | None) -> Dataset:
    """Open a dataset; raises InputError if it can't be opened or lacks the split."""
    if name.startswith("/") and escaped(name) != name:
        raise InputError(f"{name}: the package datasets takes *, ? and [ in its name as wildcards; rename the folder")
    if Path(name, "state.json").exists() or Path(name, "dataset_dict.json").exists():
        raise InputError(f"{name}: written by datasets.save_to_disk; read it with kind: arrow and path: {name}")
    for path in Path(name).iterdir() if name.startswith("/") and Path(name).is_dir() else ():
        if path.exists() and not (path.is_file() or path.is_dir()):  # the package would open a pipe, and wait
            raise InputError(f"{path}: not a regular file; remove it")
    library = _library(name)
    try:
        with tempfile.TemporaryDirectory() as folder:  # a cache that stays empty here
            options = {"data_files": data_files, "revision": commit, "cache_dir": folder}
            builder = waiting_if_told(lambda: library.load_dataset_builder(name, config, **options))
    except Exception as error:  # its errors have no common base class
        raise InputError(
            f"{name}, config {config or 'default'}: not a dataset that can be opened: {named_message_of(error)[:500]}. "
            "Check name, config and data_files"
        ) from error
    return Dataset(builder, split, name)


load_pinned = lru_cache(maxsize=8)(load)  # the files of a commit don't change


@contextmanager
def translate_package_errors(url: str) -> Iterator[None]:
    """Translate errors of the package or the network in the block into InputErrors that name the file."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # builders' and HTTP errors have no common base class
        step = "check the file" if is_local(url) else "check the network and the file, and build again"
        raise InputError(f"{url}: can't be read: {named_message_of(error)[:500]}; {step}") from error
