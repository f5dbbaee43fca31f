"""Datasets opened with the package `datasets`: the files of a split, and their rows as tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenloom.errors import InputError, named_message_of
from tokenloom.spec.wildcards import escaped
from tokenloom.tasks.sources.files.compressed import too_large_window
from tokenloom.tasks.sources.files.opening import HUB_STEP, input_bytes, is_local, translate_input_errors

BUILDERS = ("arrow", "csv", "json", "parquet", "text")  # names of the package for data files without a dataset
_KINDS = {"ArrowConfig": "arrow", "CsvConfig": "csv", "JsonConfig": "jsonl", "ParquetConfig": "parquet"}
_HARMLESS = {  # options of a README.md that change neither rows nor texts, and what our reader of CSV takes
    *("name", "version", "data_dir", "data_files", "description", "features", "chunksize", "batch_size", "block_size"),
    *("use_threads", "fragment_scan_options", "memory_map", "verbose", "sep", "delimiter"),
}
_EXTRACTED = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.zst", ".xz", ".lz4", ".7z", ".rar")  # may be nested
_STREAM_ROWS = 16  # rows that the package gives at a time: few, since each may be a large text
_HUB_SECONDS = 30


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
        if split not in files:
            raise InputError(f"{name}: no split {split!r}; its splits are: {', '.join(files) or 'none'}. Set split:")
        if not files[split]:
            raise InputError(f"{name}: split {split!r} has no data file; check data_files in the spec and in README.md")
        self.urls = files[split]
        self._builder, self._split = builder, split
        self.kind = _kind(builder.config, self.urls)
        self.delimiter = str(getattr(builder.config, "sep", ","))

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
        if is_local(url) and not input_bytes(url):  # the package fails on an empty file
            raise InputError(f"{url}: the file is empty; leave it out")
        try:
            return self._builder.as_streaming_dataset(self._split)
        except Exception as error:  # the errors of the package's builders have no common base class
            raise _read_error(url, error) from error


def _kind(config: Any, urls: list[str]) -> str | None:
    """Return the kind of source that reads the files of a config; None if only the package reads them as it says."""
    sep, given = str(getattr(config, "sep", ",")), {field.name: field.default for field in fields(config)}
    is_own = all(getattr(config, name) == default for name, default in given.items() if name not in _HARMLESS)
    if not is_own or len(sep) != 1 or sep in '"\r\n\0' or any(url.endswith(_EXTRACTED) or "::" in url for url in urls):
        return None
    return _KINDS.get(type(config).__name__)


def is_on_hub(name: str) -> bool:
    """Return whether a name is that of a dataset on the hub, not of a local folder or a builder."""
    return name not in BUILDERS and not name.startswith("/")


def _library(name: str) -> Any:
    """Return the package datasets; raises InputError if it is not installed."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: Hugging Face datasets need a package that is not installed: pip install 'tokenloom[build]'"
        ) from error
    return datasets


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Stop the package, in the block, from showing progress bars and from reporting downloads over the network."""
    has_bars, counts = not library.are_progress_bars_disabled(), library.config.HF_UPDATE_DOWNLOAD_COUNTS
    library.disable_progress_bars()
    library.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        library.config.HF_UPDATE_DOWNLOAD_COUNTS = counts
        if has_bars:
            library.enable_progress_bars()


def current_commit(name: str, revision: str | None) -> str:
    """Return the commit that a revision of a dataset on the hub names now."""
    _library(name)
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision, timeout=_HUB_SECONDS).sha)
    except Exception as error:  # also of its HTTP library, whose errors have another base class
        raise InputError(
            f"{name}, revision {revision or 'main'}: its commit can't be read from the Hugging Face Hub: "
            f"{_said(error)}; check name, revision and HF_TOKEN; {HUB_STEP}"
        ) from error


def load(name: str, config: str | None, split: str, data_files: str | None, commit: str | None) -> Dataset:
    """Open a dataset; raises InputError if it can't be opened or lacks the split."""
    if not is_on_hub(name) and name not in BUILDERS:
        _check_folder(name)
    library = _library(name)
    try:
        with tempfile.TemporaryDirectory() as folder, _quiet(library):  # a cache that stays empty here
            builder = library.load_dataset_builder(
                name, config, data_files=data_files, revision=commit, cache_dir=folder
            )
    except Exception as error:  # its errors have no common base class
        raise InputError(
            f"{name}, config {config or 'default'}: not a dataset that can be opened: {_said(error)}. Check name, "
            "config and data_files"
        ) from error
    return Dataset(builder, split, name)


load_pinned = lru_cache(maxsize=8)(load)  # the files of a commit don't change


def _check_folder(name: str) -> None:
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"{name}: no such folder; check name, or give the name of a dataset on the hub: org/name")
    if escaped(name) != name:
        raise InputError(
            f"{name}: the package datasets takes *, ? and [ in the name of a folder as wildcards, and would read other "
            "files; rename the folder"
        )
    with translate_input_errors(name):
        odd = next((path for path in folder.iterdir() if _is_special(path)), None)
    if odd:
        raise InputError(f"{odd}: not a regular file; remove it")  # the package would wait for what a pipe gives
    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        raise InputError(f"{name}: written by datasets.save_to_disk; read it with kind: arrow and path: {name}")


def _is_special(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _said(error: Exception) -> str:
    return named_message_of(error)[:500]


def _read_error(url: str, error: Exception) -> InputError:
    if window := too_large_window(str(error)):
        return InputError(f"{url}: {window}")
    step = "check the file" if is_local(url) else "check the network and the file, and build again"
    return InputError(f"{url}: can't be read: {_said(error)}; {step}")


@contextmanager
def translate_package_errors(place: str) -> Iterator[None]:
    """Translate errors of the package or the network in the block into InputErrors that name the place."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # of builders and of the HTTP library, without a common base class
        raise _read_error(place, error) from error
