"""Arrow IPC files, streams or files with a footer, and folders of them that datasets.save_to_disk wrote.

`row` is the number of the row in its file; partitions are runs of record batches. Local files are mapped into memory,
so that batches that are not wanted cost next to nothing, but for compressed ones: those are decompressed to be gone
over. Nothing of a batch is looked at before its offsets are checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from tokenloom.errors import InputError, said
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.tasks.running.memory import no_memory
from tokenloom.tasks.sources.base import PartitionRange, Rows, cut_groups, groups_of
from tokenloom.tasks.sources.files.finding import FoundFile, found_file, match
from tokenloom.tasks.sources.files.opening import filesystem_of, input_bytes, is_local, local_path, open_input
from tokenloom.tasks.sources.rows.arrow_checks import check_batch
from tokenloom.tasks.sources.rows.columns import Columns

_FILE_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_STATE, _DICT = "state.json", "dataset_dict.json"
_NO_DATA = (_STATE, _DICT, "dataset_info.json")  # what save_to_disk writes beside the data
_REPAIR = "repair the file, make it again or leave it out"


class Reader:
    """Reads Arrow files and saved datasets.

    Args:
        options: see SourceReader; `text`, `id` and the columns of `filter` may be dotted, into structs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._columns = Columns(options)
        self._max_bytes = int(options.get("max_bytes", 0))

    def place(self, url: str, row: int) -> str:
        """See SourceReader.place."""
        return f"{url}, row {row}"

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; a folder that datasets.save_to_disk wrote stands for its data files, in its order.

        Raises InputError if nothing matches, or a folder that is no saved dataset.
        """
        pattern = path.rstrip("/")
        root, found = match(pattern, leave_out)
        files: dict[str, FoundFile] = {}  # "**" matches a folder, and its files again
        for name, info in found:
            is_folder = info["type"] == "directory"
            if not is_folder and PurePosixPath(name).name in _NO_DATA:
                continue
            for data in _saved(name, pattern) if is_folder else [name]:
                if is_folder and leave_out and leave_out.takes(data.removeprefix(root)):
                    continue
                files.setdefault(data, found_file(data.removeprefix(root), data, pattern))
        if not files:
            raise InputError(f"{path}: no Arrow file and no saved dataset matches; check the path")
        return list(files.values())

    @contextmanager
    def _open(self, url: str) -> Iterator[Iterator[pa.RecordBatch]]:
        """Open a file: its record batches, with the top columns that are needed."""
        with _open_source(url) as source:
            is_file = _has_footer(source, url)
            names = self._columns.needed(_reader(source, url, is_file).schema, url)
            yield _batches(source, url, is_file, names, self._max_bytes)

    def _num_rows(self, url: str) -> tuple[list[int], list[int]]:
        """Return the rows and the bytes of each record batch."""
        with self._open(url) as batches:
            counts = [(batch.num_rows, sum(map(_num_bytes, batch.columns))) for batch in batches]
        return [num_rows for num_rows, _ in counts], [num_bytes for _, num_bytes in counts]

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `start` and `end` count record batches."""
        num_rows, num_bytes = self._num_rows(url)
        return cut_groups(list(zip(num_bytes, num_rows, strict=True)))

    def read(self, url: str, start: int, end: int) -> Iterator[Rows]:
        """See SourceReader.read; `start` and `end` count record batches."""
        with self._open(url) as batches:
            row = index = 0
            for index, batch in enumerate(batches, start=1):
                if index > start:
                    try:
                        check_batch(batch)
                    except pa.ArrowException as error:
                        raise InputError(
                            f"{url}, record batch {index - 1}: damaged: {said(error)}; {_REPAIR}"
                        ) from error
                    yield from self._columns.rows(batch, row, url)
                row += batch.num_rows
                if index == end:
                    return
            if index < end:
                raise InputError(f"{url}: {index} record batches where {end} were planned; it changed: build again")

    def locate(self, url: str, rows: Sequence[int]) -> list[tuple[int, int]]:
        """See SourceReader.locate: the record batches that hold `rows`."""
        return groups_of(rows, self._num_rows(url)[0])


def _saved(folder: str, pattern: str) -> list[str]:
    """Return the data files of a saved dataset, none for another folder where a wildcard matched it."""
    filesystem, _ = filesystem_of(pattern)
    if filesystem.exists(f"{folder}/{_DICT}"):
        splits = _json(filesystem, f"{folder}/{_DICT}").get("splits") or ["?"]
        raise InputError(
            f"{folder}: several splits, saved by datasets: {', '.join(map(str, splits))}; give one: "
            f"path: {folder}/{splits[0]}"
        )
    if not filesystem.exists(f"{folder}/{_STATE}"):
        if any(c in pattern for c in "*?["):
            return []
        raise InputError(
            f"{folder}: a folder without {_STATE}, so datasets.save_to_disk did not write it; write {folder}/*.arrow "
            "to mean its files"
        )
    state = _json(filesystem, f"{folder}/{_STATE}")
    if state.get("_indices_data_files"):
        raise InputError(f"{folder}: saved with indices, by an old release of datasets; load it and save it again")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in state.get("_data_files") or []]
    if not names or not all(isinstance(name, str) and name == PurePosixPath(name).name for name in names):
        raise InputError(f"{folder}/{_STATE}: no list of data files; save the dataset again")
    return [f"{folder}/{name}" for name in names]


def _json(filesystem: Any, name: str) -> dict[str, Any]:
    try:
        value = json.loads(filesystem.cat_file(name))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: can't be read: {said(error)}; save the dataset again") from error
    return value if isinstance(value, dict) else {}


@contextmanager
def _open_source(url: str) -> Iterator[Any]:
    """Open a file for pyarrow, mapped into memory if it is local."""
    with open_input(url) as file:
        if not is_local(url):
            yield pa.PythonFile(file, "r")
            return
        if input_bytes(url) == 0:
            raise InputError(f"{url}: the file is empty, which no Arrow file is; {_REPAIR}")
    with pa.memory_map(local_path(url)) as source:
        yield source


def _has_footer(source: Any, url: str) -> bool:
    """Return whether a file is one with a footer; else it is a stream."""
    magic = source.read(len(_FILE_MAGIC))
    if magic.startswith(_FEATHER_1):
        raise InputError(f"{url}: Feather version 1, which Arrow no longer reads; write it again with version 2")
    return bool(magic == _FILE_MAGIC)


def _reader(source: Any, url: str, is_file: bool, included: list[int] | None = None) -> Any:
    """Return pyarrow's reader of a file with all columns, or with the `included` ones."""
    source.seek(0)
    options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
    try:
        reader = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source, options=options)
        _check_names(reader.schema)
        return reader
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a column's name is no UTF-8
        raise InputError(f"{url}: not a readable Arrow file: {said(error)}; {_REPAIR}") from error


def _check_names(fields: pa.Schema | pa.StructType) -> None:
    """Look at the name of each column, also inside of structs: one that is no UTF-8 raises ValueError."""
    for field in fields:
        if isinstance(field.name, str) and pa.types.is_struct(field.type):
            _check_names(field.type)


def _batches(source: Any, url: str, is_file: bool, names: list[str], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the record batches with the columns that hold the dotted `names`; checks the end of a stream."""
    reader = _reader(source, url, is_file)
    fields = reader.schema.names
    tops = list(dict.fromkeys(name if name in fields else name.split(".")[0] for name in names))
    included = [i for i, field in enumerate(fields) if field in tops]
    has_all = is_file and _lies_mapped(source, reader)
    if not has_all:
        reader = _reader(source, url, is_file, included)
    index = 0
    while not is_file or index < reader.num_record_batches:
        try:
            batch = reader.get_batch(index) if is_file else reader.read_next_batch()
        except StopIteration:
            _check_end(source, url)
            return
        except pa.ArrowMemoryError as error:
            raise InputError(f"{url}, record batch {index}: {no_memory(max_bytes)}") from error
        except (pa.ArrowException, OSError) as error:
            if has_all:  # another column may be what is damaged
                reader, has_all = _reader(source, url, is_file, included), False
                continue
            raise InputError(f"{url}, record batch {index}: can't be read: {said(error)}; {_REPAIR}") from error
        yield batch.select(tops)
        index += 1


def _lies_mapped(source: Any, reader: Any) -> bool:
    """Return whether the batches of a file with a footer are used where they are mapped.

    Then all columns cost nothing, while pyarrow copies those that it is asked for: 450 MB for a batch of that size.
    """
    if not isinstance(source, pa.MemoryMappedFile) or not reader.num_record_batches:
        return False
    try:
        columns = reader.get_batch(0).columns
    except (pa.ArrowException, OSError):
        return False  # told where the batch is read
    source.seek(0)
    mapped = source.read_buffer()
    buffers = [buffer for column in columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(mapped.address <= buffer.address < mapped.address + mapped.size for buffer in buffers)


def _check_end(source: Any, url: str) -> None:
    """Check that a stream ends where its file does: one that is cut between two batches reads like a shorter one."""
    end, size = source.tell(), source.size()
    source.seek(max(0, end - len(_END_OF_STREAM)))
    if source.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
        raise InputError(f"{url}: no end of stream after its last record batch: the file is cut off; {_REPAIR}")
    if end != size:
        raise InputError(f"{url}: {size - end:,} bytes after its end of stream, such as another stream; {_REPAIR}")


def _num_bytes(column: pa.Array) -> int:
    """Return the bytes of a column by its buffers alone, which are not checked yet."""
    num_bytes = sum(int(buffer.size) for buffer in column.buffers() if buffer is not None)
    if isinstance(column, pa.DictionaryArray) and len(column.dictionary):
        num_bytes += len(column) * _num_bytes(column.dictionary) // len(column.dictionary)
    return num_bytes
