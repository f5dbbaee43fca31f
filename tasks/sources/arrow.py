"""Arrow IPC: streams, files with a footer, and folders of them that datasets.save_to_disk wrote.

`row` is the number of the row in its file; partitions are runs of record batches. A partition is read from its own
first batch on: a file with a footer finds it by its number, a stream by its first byte. Only a stream with
dictionaries is decoded from its beginning each time, since any batch may add to them. Local files are mapped into
memory. No value of a batch is used before the batch's offsets are checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import first_wildcard
from tokenloom.storage.stores.local_files import read_regular
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
from tokenloom.tasks.sources.files import filesystem_of, input_bytes, is_local, local_path, open_input
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, found_file, match
from tokenloom.tasks.sources.reader import SourceReader
from tokenloom.tasks.sources.values import check_batch

_FILE_MAGIC = b"ARROW1"
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

    @contextmanager
    def _open(self, url: str, part: FileRange) -> Iterator[Iterator[_Batch]]:
        """Open a file; provides its record batches from the first of `part` on."""
        with _open_source(url) as source:
            batches = _file_batches if _has_footer(source) else _stream_batches
            yield batches(source, url, part, self.columns, self._max_bytes)

    def schema(self, url: str) -> pa.Schema:
        """Return the columns of a file."""
        with _open_source(url) as source:
            open_it = pa.ipc.open_file if _has_footer(source) else pa.ipc.open_stream
            return _open_reader(open_it, source, url).schema

    def _groups(self, url: str) -> list[Group]:
        """Return the size of each record batch, and the first byte of each in a stream."""
        with self._open(url, _WHOLE) as batches:
            return [Group(_num_bytes(batch), batch.num_rows, first_byte) for _, batch, first_byte in batches]

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count record batches."""
        return cut_groups(self._groups(url))

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches; `start` and `end` count record batches."""
        assert part.first_row is not None or part.start == 0
        row, next_index = part.first_row or 0, part.start
        with self._open(url, part) as batches:
            for index, batch, _ in batches:
                with _translate_batch_errors(url, index, self._max_bytes):
                    check_batch(batch)
                yield numbered(batch, row)
                row, next_index = row + batch.num_rows, index + 1
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


def _has_footer(source: Any) -> bool:
    """Return whether a file has a footer; otherwise it is a stream."""
    return bool(source.read(len(_FILE_MAGIC)) == _FILE_MAGIC)


def _open_reader(open_it: Callable[..., Any], source: Any, url: str, included: list[int] | None = None) -> Any:
    """Return pyarrow's reader of a file with the `included` top columns, with all of them by default.

    Args:
        open_it: pyarrow's function for the form of the file.
        source: the open file.
        url: for messages.
        included: positions of top columns.
    """
    source.seek(0)
    try:
        reader = open_it(source, options=pa.ipc.IpcReadOptions(included_fields=included, use_threads=False))
        for field in reader.schema:
            _decode_names(field)
        return reader
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name is not UTF-8
        raise InputError(f"{url}: not a readable Arrow file: {message_of(error)}; {REPAIR}") from error


def _decode_names(field: pa.Field) -> None:
    """Raise ValueError if the name of a column, or of a field in it, is not UTF-8: pyarrow decodes it at each use."""
    _name, kind = field.name, field.type
    for i in range(kind.num_fields):
        _decode_names(kind.field(i))


def _needed_columns(schema: pa.Schema, columns: Columns, url: str) -> tuple[list[str], list[int]]:
    """Return the names and the positions of the top-level columns that contain the needed columns."""
    names = columns.needed(schema, url)
    tops = list(dict.fromkeys(name if name in schema.names else name.split(".")[0] for name in names))
    return tops, [i for i, name in enumerate(schema.names) if name in tops]


def _file_batches(source: Any, url: str, part: FileRange, columns: Columns, max_bytes: int) -> Iterator[_Batch]:
    """Yield the record batches of a file with a footer, from the first of `part` on."""
    whole = _open_reader(pa.ipc.open_file, source, url)
    names, included = _needed_columns(whole.schema, columns, url)
    is_mapped = _is_mapped(source, whole, part.start)
    reader = whole if is_mapped else _open_reader(pa.ipc.open_file, source, url, included)
    for index in range(part.start, whole.num_record_batches):
        with _translate_batch_errors(url, index, max_bytes):
            batch = reader.get_batch(index)
        yield index, batch.select(names), None


def _is_mapped(source: Any, reader: Any, index: int) -> bool:
    """Return whether the batches of a file with a footer are used in place, in the mapped file.

    If they are, reading all columns costs nothing, while pyarrow copies the columns of a selection: 450 MB for a batch
    of that size.

    Args:
        source: the open file.
        reader: the reader of all columns.
        index: the batch to look at.
    """
    if not isinstance(source, pa.MemoryMappedFile) or index >= reader.num_record_batches:
        return False
    try:
        columns = reader.get_batch(index).columns
    except (pa.ArrowException, OSError):
        return False  # reported when the batch is read
    source.seek(0)
    mapped = source.read_buffer()
    buffers = [buffer for column in columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(mapped.address <= buffer.address < mapped.address + mapped.size for buffer in buffers)


def _stream_batches(source: Any, url: str, part: FileRange, columns: Columns, max_bytes: int) -> Iterator[_Batch]:
    """Yield the record batches of a stream, from the first of `part` on; checks the end of the stream."""
    schema = _open_reader(pa.ipc.open_stream, source, url).schema
    names, included = _needed_columns(schema, columns, url)
    reader = _open_reader(pa.ipc.open_stream, source, url, included)
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
            yield index, batch.select(names), first_byte
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
    """Check that a stream ends where its file ends: a stream that is cut between two batches reads like a shorter one.

    Raises InputError.
    """
    end, size = source.tell(), source.size()
    source.seek(max(0, end - len(_END_OF_STREAM)))
    if source.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
        raise InputError(f"{url}: no end of stream after its last record batch: the file is cut off; {REPAIR}")
    if end != size:
        raise InputError(f"{url}: {size - end:,} bytes after its end of stream, such as another stream; {REPAIR}")


def _num_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch, by the lengths of its buffers, whose contents are not checked yet."""
    return sum(map(_column_bytes, batch.columns))


def _column_bytes(column: pa.Array) -> int:
    num_bytes = sum(int(buffer.size) for buffer in column.buffers() if buffer is not None)
    if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
        num_bytes += len(column) * _column_bytes(column.dictionary) // len(column.dictionary)
    return num_bytes


def _data_files(folder: str, pattern: str) -> list[str]:
    """Return the data files of a saved dataset, or none for another folder that a wildcard matched."""
    filesystem, _ = filesystem_of(pattern)
    read_json = partial(_read_json, None if is_local(pattern) else filesystem)
    if filesystem.exists(f"{folder}/{_DICT}"):
        splits = read_json(f"{folder}/{_DICT}").get("splits") or ["?"]
        raise InputError(
            f"{folder}: several splits, saved by datasets: {', '.join(map(str, splits))}; name one of them: "
            f"path: {folder}/{splits[0]}"
        )
    if not filesystem.exists(f"{folder}/{_STATE}"):
        if first_wildcard(pattern) is not None:
            return []
        raise InputError(
            f"{folder}: a folder without {_STATE}, so datasets.save_to_disk did not write it; write {folder}/*.arrow "
            "to mean its files"
        )
    state = read_json(f"{folder}/{_STATE}")
    if state.get(key := "_indices_data_files"):  # an old release of datasets selects rows by these
        raise InputError(f"{folder}/{_STATE}: {key!r} is not supported; save the dataset as parquet, and read that")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in state.get("_data_files") or []]
    if not names or not all(isinstance(name, str) and name == PurePosixPath(name).name for name in names):
        raise InputError(f"{folder}/{_STATE}: no list of data files; save the dataset again")
    return [f"{folder}/{name}" for name in names]


def _read_json(filesystem: Any, name: str) -> dict[str, Any]:
    try:
        value = json.loads(filesystem.cat_file(name) if filesystem else read_regular(name))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: can't be read: {message_of(error)}; save the dataset again") from error
    return value if isinstance(value, dict) else {}
