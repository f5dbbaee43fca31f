"""Arrow IPC: streams, files with a footer, and folders of them that datasets.save_to_disk wrote.

`row` is the number of the row in its file; partitions are runs of record batches. A file with a footer holds a stream
after its first 8 bytes, and is read as one. A partition is read from the first byte of its own first batch on. Only a
stream with dictionaries is decoded from its beginning each time, since any batch may add to them. Local files are
mapped into memory. No value of a batch is used before the batch's offsets are checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import escaped, first_wildcard
from tokenloom.tasks.running.memory import no_memory
from tokenloom.tasks.sources.base import (
    REPAIR,
    FileRange,
    Group,
    Options,
    PartitionRange,
    RowBatch,
    cut_groups,
    locate_groups,
    numbered,
)
from tokenloom.tasks.sources.columns import Columns
from tokenloom.tasks.sources.files import input_bytes, is_local, local_path, open_input
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, found_file, match, url_of
from tokenloom.tasks.sources.reader import SourceReader
from tokenloom.tasks.sources.values import check_batch

_FILE_MAGIC = b"ARROW1"
_STREAM_START = 8  # in a file with a footer
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_WHOLE = FileRange(0, 0)  # reading begins here and ends with the file
_STATE, _DICT = "state.json", "dataset_dict.json"
_NO_DATA = (_STATE, _DICT, "dataset_info.json")  # files of save_to_disk beside the data


class Reader(SourceReader):
    """Reads Arrow files and saved datasets.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` may be dotted, into structs.
        columns: takes the documents from record batches; by default texts or conversations, as the options say.
    """

    def __init__(self, options: Options, columns: Columns | None = None) -> None:
        self.columns = columns or Columns(options)
        self._max_bytes = int(options.get("max_bytes", 0))

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; of a folder that datasets.save_to_disk wrote, its data files in its order.

        Raises InputError if nothing matches, or if a folder is not a saved dataset.
        """
        pattern = path.rstrip("/")
        root, found = match(pattern, leave_out)
        files: dict[str, FoundFile] = {}  # "**" matches a folder, and its files again
        for name, info in found:
            is_folder = info["type"] == "directory"
            if not is_folder and PurePosixPath(name).name in _NO_DATA:
                continue
            for data in _data_files(name, pattern) if is_folder else [name]:
                if not (is_folder and leave_out and leave_out.excludes(data.removeprefix(root))):
                    files.setdefault(data, found_file(data.removeprefix(root), data, pattern))
        if not files:
            raise InputError(f"{path}: no Arrow file and no saved dataset matches; check the path")
        return list(files.values())

    def schema(self, url: str) -> pa.Schema:
        """Return the columns of a file."""
        with _open_source(url) as source:
            return _open_reader(source, url).schema

    def _groups(self, url: str) -> list[Group]:
        """Return the size of each record batch, and its first byte if a reader may begin there."""
        batches = _batches(url, _WHOLE, self.columns, self._max_bytes)
        return [Group(batch.get_total_buffer_size(), batch.num_rows, first) for _, batch, first in batches]

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count record batches."""
        return cut_groups(self._groups(url), self.columns.partition_bytes)

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches; `start` and `end` count record batches."""
        assert part.first_row is not None or part.start == 0
        row = part.first_row or 0
        next_index = part.start
        for index, batch, _ in _batches(url, part, self.columns, self._max_bytes):
            with _translate_batch_errors(url, index, self._max_bytes):
                check_batch(batch)
            yield numbered(batch, row)
            row += batch.num_rows
            next_index = index + 1
            if next_index == part.end:
                return
        if next_index < part.end:
            raise InputError(
                f"{url}: no record batch {next_index}, but {part.end} were planned; the file changed: build again"
            )

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate: the record batches that hold `rows`."""
        return locate_groups(rows, self._groups(url))


#: the needed columns of a record batch, with its number, and its first byte if a reader may begin there
_Batch = tuple[int, pa.RecordBatch, int | None]


@contextmanager
def _open_source(url: str) -> Iterator[Any]:
    """Open a file for pyarrow, mapped into memory if it is local."""
    with open_input(url) as file:
        if not is_local(url):
            yield pa.PythonFile(file, "r")
            return
        if input_bytes(url) == 0:
            raise InputError(f"{url}: the file is empty, so it is not an Arrow file; {REPAIR}")
    with pa.memory_map(local_path(url)) as source:
        yield source


def _open_reader(source: Any, url: str, included: list[int] | None = None) -> Any:
    """Return pyarrow's reader of a file with the top columns at the `included` positions, with all of them by default.

    Raises InputError.
    """
    source.seek(0)
    source.seek(_STREAM_START if source.read(len(_FILE_MAGIC)) == _FILE_MAGIC else 0)
    try:
        reader = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=included, use_threads=False))
        for field in reader.schema:
            _decode_names(field)
        return reader
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name is not UTF-8
        raise InputError(f"{url}: not a readable Arrow file: {message_of(error)}; {REPAIR}") from error


def _decode_names(field: pa.Field) -> None:
    """Raise ValueError if the name of a column, or of a field in it, is not UTF-8: pyarrow decodes it at each use."""
    _name = field.name
    kind = field.type
    for i in range(kind.num_fields):
        _decode_names(kind.field(i))


def _batches(url: str, part: FileRange, columns: Columns, max_bytes: int) -> Iterator[_Batch]:
    """Yield the record batches of a file, from the first of `part` on; checks the end of the file."""
    with _open_source(url) as source:
        schema = _open_reader(source, url).schema
        names = [name if name in schema.names else name.split(".")[0] for name in columns.needed(schema, url)]
        reader = _open_reader(source, url, [i for i, name in enumerate(schema.names) if name in names])
        can_begin_anywhere = not any(map(_has_dictionary, schema.types))
        index = 0
        if part.first_byte is not None:
            source.seek(part.first_byte)  # pyarrow's reader reads on from there
            index = part.start
        while True:
            first_byte = source.tell() if can_begin_anywhere else None
            with _translate_batch_errors(url, index, max_bytes):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    _check_end(source, url)
                    return
            if index >= part.start:
                yield index, batch.select(list(dict.fromkeys(names))), first_byte
            index += 1


def _has_dictionary(kind: pa.DataType) -> bool:
    """Return whether a type is a dictionary, or holds one."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


@contextmanager
def _translate_batch_errors(url: str, index: int, max_bytes: int) -> Iterator[None]:
    """Translate errors of pyarrow in the block into InputErrors that name the record batch."""
    try:
        yield
    except pa.ArrowMemoryError as error:
        raise InputError(f"{url}, record batch {index}: {no_memory(max_bytes)}") from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{url}, record batch {index}: can't be read: {message_of(error)}; {REPAIR}") from error


def _check_end(source: Any, url: str) -> None:
    """Check that a stream ends where its file ends, or where its footer begins: a stream that is cut off between two
    batches reads like a shorter one.

    Raises InputError.
    """
    end = source.tell()
    size = source.size()
    source.seek(max(0, end - len(_END_OF_STREAM)))
    has_end = source.read(len(_END_OF_STREAM)) == _END_OF_STREAM
    rest = source.read()
    source.seek(0)
    is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    if not has_end or (is_file and not rest.endswith(_FILE_MAGIC)):
        raise InputError(f"{url}: no end of stream after its last record batch: the file is cut off; {REPAIR}")
    if rest and not is_file:
        raise InputError(f"{url}: {size - end:,} bytes after its end of stream, such as another stream; {REPAIR}")


def _data_files(folder: str, pattern: str) -> list[str]:
    """Return the data files of a saved dataset, or none for another folder that a wildcard matched."""
    url = url_of(folder, pattern)
    found = {PurePosixPath(name).name for name, _ in match(f"{escaped(url)}/*.json")[1]}
    if _STATE not in found:
        if first_wildcard(pattern) is not None and _DICT not in found:
            return []
        raise InputError(
            f"{folder}: no {_STATE}, so datasets.save_to_disk did not write one split there; give the folder of a "
            f"split, or {folder}/*.arrow to mean its files"
        )
    with open_input(f"{url}/{_STATE}") as file:
        try:
            state = json.loads(file.read())
            names = [f"{folder}/{entry['filename']}" for entry in state["_data_files"]]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise InputError(f"{url}/{_STATE}: no list of data files; save the dataset again") from error
    if state.get("_indices_data_files"):  # an old release of datasets selects rows by these
        raise InputError(f"{url}/{_STATE}: it selects rows by indices; save the dataset as parquet, and read that")
    return names
