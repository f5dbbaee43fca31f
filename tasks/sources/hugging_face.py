"""Datasets of the Hugging Face hub, local folders of data files, and files through a builder of the package datasets.

The package says which data files a split has. Parquet, Arrow, JSON and CSV files are then read by the readers of those
kinds, and cut as they cut them. Of the package's own: its parquet decodes whole row groups (1.6 GB for one of 450 MB,
whatever its batch_size; parquet.py 0.2 GB), its JSON makes "2020-01-01 00:00:00" of a text "2020-01-01", its CSV makes
null of a text "NA". What else it knows is read through it as a stream: a partition is a data file, `row` the number of
the row in it. With `take`, all files are one stream: the first file's one partition, `row` counts through it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tokenloom.errors import InputError, said
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.base import BATCH_BYTES, FileRange, PartitionRange, Rows
from tokenloom.tasks.sources.files.finding import PINNED, FoundFile, found_file, match
from tokenloom.tasks.sources.files.opening import input_bytes, is_local
from tokenloom.tasks.sources.rows.columns import Columns
from tokenloom.tasks.sources.rows.take import read_first

_KINDS = {"ArrowConfig": "arrow", "CsvConfig": "csv", "JsonConfig": "jsonl", "ParquetConfig": "parquet"}
_NO_MATTER = {"name", "version", "data_dir", "data_files", "description", "features", "delimiter", "sep", "chunksize"}
_EXTRACTED = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.zst", ".xz", ".lz4", ".7z", ".rar")  # or nested
_BUILDERS = ("arrow", "csv", "json", "parquet", "text")
_STREAM_ROWS = 16  # at a time from the package: few, as each may be a large text
_HUB_SECONDS = 30
_Item = TypeVar("_Item")
_HUB_URL = re.compile(r"hf://datasets/[^@]+@([0-9a-f]{40})/")


class Reader:
    """Reads what the package datasets can stream.

    Args:
        options: see SourceReader; `name`, `config`, `split`, `revision`, `data_files` and `take` besides.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._take: int | None = options.get("take")
        self._columns = Columns(options)
        self._is_stream = bool(options.get("stream"))

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files: the data files of the split, at the commit that `revision` names now.

        Raises InputError if dataset, config, split, revision or files are not there, or the hub can't be reached.
        """
        name, data_files = str(self._options["name"]), self._options.get("data_files")
        if _is_on_hub(name):
            commit = _commit(name, self._options.get("revision"))
            dataset = self._dataset(commit)
            found = list(_told(name, (_pinned(url, commit) for url in dataset.urls)))
        else:
            dataset = self._dataset(None)
            root = _root(str(data_files)) if name in _BUILDERS else f"{Path(name).resolve()}/"
            found = [found_file(url.removeprefix(root), url, url) for url in dataset.urls]
        options = self._reading(dataset)
        return [replace(file, options=options) for file in found]

    def _reading(self, dataset: _Dataset) -> dict[str, Any]:
        """Return the options that say who reads the files: the reader of their kind, or this one, alone or as one."""
        if dataset.kind is not None and self._take is None:
            return {"kind": dataset.kind, "delimiter": dataset.delimiter}
        is_one = self._take is not None or dataset.num_shards() != len(dataset.urls)
        return {"stream": True} if is_one else {}

    def _dataset(self, commit: str | None) -> _Dataset:
        get = self._options.get
        load = _load if commit is None else _load_pinned  # what is on this machine may change
        return load(str(get("name")), get("config"), str(get("split") or "train"), get("data_files"), commit)

    def _opened(self, url: str) -> tuple[_Dataset, int]:
        """Return the dataset that a file belongs to, and the file's position in it."""
        found = _HUB_URL.match(url)
        dataset = self._dataset(found[1] if found else None)
        if url not in dataset.urls:
            raise InputError(f"{url}: no longer a data file of {self._options['name']}; build again")
        return dataset, dataset.urls.index(url)

    def place(self, url: str, row: int) -> str:
        """See SourceReader.place."""
        return f"{url}{' and the files behind it' if self._is_stream else ''}, row {row}"

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions: the file; of a stream, all files in the first."""
        dataset, index = self._opened(url)
        if not self._is_stream:
            return list(_told(url, (PartitionRange(0, 1, input_bytes(one), None) for one in [url])))
        sizes = list(_told(url, map(input_bytes, dataset.urls))) if index == 0 else []
        return [PartitionRange(0, 1, sum(sizes), None)] if sizes else []

    def read(self, url: str, part: FileRange) -> Iterator[Rows]:
        """See SourceReader.read."""
        yield from self._read(url) if is_local(url) else _told(url, self._read(url))

    def _read(self, url: str) -> Iterator[Rows]:
        dataset, index = self._opened(url)
        if dataset.kind is None:
            yield from self._streamed(dataset, url, None if self._is_stream else index)
        else:
            reader = make_reader({**self._options, "kind": dataset.kind, "delimiter": dataset.delimiter})
            yield from read_first(reader, self._options, dataset.urls, self._take or 0)

    def _streamed(self, dataset: _Dataset, url: str, index: int | None) -> Iterator[Rows]:
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


class _Dataset:
    """One split of a dataset, as the package's builder knows it."""

    def __init__(self, builder: Any, split: str, name: str) -> None:
        files = {str(key): list(map(str, urls)) for key, urls in (builder.config.data_files or {}).items()}
        if not files.get(split):
            raise InputError(f"{name}: no split {split!r}; its splits are: {', '.join(files) or 'none'}. Set split:")
        self.urls = files[split]
        self._builder, self._split = builder, split
        self.kind = _kind(builder.config, self.urls)
        self.delimiter = str(getattr(builder.config, "sep", ","))

    def num_shards(self) -> int:
        """Return into how many parts the package can cut the split."""
        try:
            return int(self._stream(self.urls[0]).num_shards)
        except RuntimeError:  # the package: "Sharding is ambiguous"
            return 0

    def tables(self, url: str, index: int | None, take: int | None) -> Iterator[pa.Table]:
        """Return tables of a few rows of one file, of all (`index` None), or of their first `take` rows."""
        rows = self._stream(url)
        if index is not None:
            rows = rows.shard(num_shards=len(self.urls), index=index)
        tables = iter((rows if take is None else rows.take(take)).with_format("arrow").iter(batch_size=_STREAM_ROWS))
        return _told(url if index is not None else f"{url} or a file behind it", tables)

    def _stream(self, url: str) -> Any:
        if is_local(url) and not input_bytes(url):  # the package stops at an empty file
            raise InputError(f"{url}: the file is empty; leave it out")
        try:
            return self._builder.as_streaming_dataset(self._split)
        except Exception as error:  # what the package's builders raise has no common root
            raise _not_read(url, error) from error


def _kind(config: Any, urls: list[str]) -> str | None:
    """Return our kind of source for the files of a config; None if they need what only the package does."""
    kind = _KINDS.get(type(config).__name__)
    if kind in ("parquet", None):
        return kind
    default = type(config)()
    is_special = any(
        getattr(config, field.name) != getattr(default, field.name)
        for field in fields(config)
        if field.name not in _NO_MATTER
    )
    return None if is_special or any(url.endswith(_EXTRACTED) or "::" in url for url in urls) else kind


def _is_on_hub(name: str) -> bool:
    return name not in _BUILDERS and not name.startswith("/")


def _library(name: str) -> Any:
    """Return the package, told to keep quiet: no progress bars, no counting of loads over the network."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: Hugging Face datasets need a package that is not installed: pip install 'tokenloom[build]'"
        ) from error
    datasets.disable_progress_bars()
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets


def _commit(name: str, revision: str | None) -> str:
    """Return the commit that a revision of a dataset on the hub names now: asked once, before its files are."""
    _library(name)
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision, timeout=_HUB_SECONDS).sha)
    except Exception as error:  # of its HTTP library too, whose errors have another root
        raise InputError(
            f"{name}, revision {revision or 'main'}: the Hugging Face hub can't say its commit: "
            f"{_said(error)}; check name, revision, network and HF_TOKEN, or download it and give its folder"
        ) from error


def _load(name: str, config: str | None, split: str, data_files: str | None, commit: str | None) -> _Dataset:
    """Open a dataset; raises InputError that says what there is."""
    if not _is_on_hub(name) and name not in _BUILDERS:
        _check_folder(name)
    library = _library(name)
    try:
        with tempfile.TemporaryDirectory() as folder:  # the package makes one, to cache what it is not asked for here
            builder = library.load_dataset_builder(
                name, config, data_files=data_files, revision=commit, cache_dir=folder
            )
    except Exception as error:  # its errors have no common root
        raise InputError(
            f"{name}, config {config or 'default'}: not a dataset that can be opened: {_said(error)}. Check name, "
            "config and data_files"
        ) from error
    return _Dataset(builder, split, name)


_load_pinned = lru_cache(maxsize=8)(_load)


def _check_folder(name: str) -> None:
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"{name}: no such folder; check name, or give the name of a dataset on the hub: org/name")
    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        raise InputError(f"{name}: written by datasets.save_to_disk; read it with kind: arrow and path: {name}")


def _pinned(url: str, commit: str) -> FoundFile:
    found = _HUB_URL.match(url)
    if found is None or found[1] != commit:
        raise InputError(f"{url}: a data file outside of the dataset's commit {commit}; download it, give its folder")
    return FoundFile(url[found.end() :], url, input_bytes(url), PINNED + commit)


def _root(data_files: str) -> str:
    """Return the start of the URLs of a builder's files: up to the last "/" before the first wildcard."""
    return match(data_files)[0]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {said(error)[:500]}"


def _not_read(url: str, error: Exception) -> InputError:
    step = "check the file" if is_local(url) else "check the network and the file, and build again"
    return InputError(f"{url}: can't be read: {_said(error)}; {step}")


def _told(place: str, items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield items, and tell any error of the package or the network as an InputError."""
    while True:
        try:
            item = next(items, None)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # of builders and of the HTTP library: no common root
            raise _not_read(place, error) from error
        if item is None:
            return
        yield item


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables of one schema to about BATCH_BYTES."""
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
