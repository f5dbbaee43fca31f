"""The marks of a spec: which files say something about which documents, and what follows from it.

`documents.exclude` is a list of this kind too: it removes contents, is counted apart, and names versions as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import REMOVE, parse_filter
from tokenloom.storage.formats.keys import Digests, words_of
from tokenloom.storage.formats.records import sha256_of, sha256_of_bytes
from tokenloom.storage.work.fingerprints import FingerprintMemory
from tokenloom.tasks.building.inputs import InputFile, check_unchanged, files_of, input_file
from tokenloom.tasks.rules import read_list
from tokenloom.tasks.running.memory import bounded
from tokenloom.tasks.sources.files import input_bytes, open_decompressed, open_input, sharing_files
from tokenloom.tasks.sources.filters import number_of
from tokenloom.tasks.sources.listing import find_files
from tokenloom.tasks.sources.values import value_type

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec
    from tokenloom.storage.work.records import PartitionRecord

EXCLUDED = "excluded"  # counts what documents.exclude removes
_OPTIONS = ("key", "as_", "missing", "source")
_KEY_BYTES = 64  # of memory for a key while its file is read, at most
_BLOCK_BYTES = 2**20
_FORMAT = 2  # of the files of copies in work/
_POSITIONS = ".remove"  # of datatrove: little-endian uint32, the positions of rows to remove


@contextmanager
def comparing(files: Iterable[InputFile]) -> Iterator[None]:
    """Raise InputError if a file that the block reads has changed since the plan, whatever else the block raises."""
    compared = [file for file in files if file.url]  # a file of positions may be missing
    for file in compared:
        if file.stamps:  # a look at a remote file is a request, and the one below is enough
            check_unchanged(file)
    try:
        yield
    finally:
        for file in compared:
            check_unchanged(file)


@dataclass(frozen=True)
class MarkFiles:
    """An entry of `documents.marks`, see its model, and its files; messages and counts name it by its label.

    `memory` is how many bytes of it a worker may hold; `only_hashes` says that a list has no texts. `columns` are those
    of its first file, if that is parquet, and whether they hold texts; see examine.
    """

    key: str
    as_: str | None
    missing: str
    source: list[str] = field(hash=False)
    files: tuple[InputFile, ...]
    label: str
    memory: int
    only_hashes: bool = False
    columns: dict[str, bool] = field(default_factory=dict, hash=False)

    @property
    def is_aligned(self) -> bool:
        """Whether there is a file of marks for each input file, with a row for each of its rows."""
        return self.key == "row" and not {"path", "row"} <= self.columns.keys()

    def reading(self, url: str) -> AbstractContextManager[None]:
        """Limit the memory of a worker that reads a file of the entry; raises InputError if that is not enough."""
        return bounded(self.memory // 4, url, "raise runner.memory")

    @property
    def has_positions(self) -> bool:
        """Whether the files have positions of rows to remove; there is none for an input that loses no row."""
        return self.files[0].url.endswith(_POSITIONS)

    def beside(self, file: InputFile) -> InputFile:
        """Return the file of marks for an input: the same path but for suffixes; raises InputError without one."""
        path, by_stem = PurePosixPath(file.path), _by_stem(self)
        for stem in (path, path.with_suffix(""), path.with_suffix("").with_suffix("")):  # such as .jsonl.gz
            if found := by_stem.get(stem):
                return found
        if self.has_positions:
            return InputFile("", file.path, "", 0, "", {}, {})
        problem = f"no file of marks for the input {file.path}; check the path, or name `source:`"
        raise InputError(f"{self.files[0].url}: {problem}; lists of keys are `key: id` or `key: content`")


@contextmanager
def open_table(url: str) -> Iterator[pq.ParquetFile]:
    """Open a parquet file of marks in the block; raises InputError if it can't be read."""
    try:
        with open_input(url) as data:
            yield pq.ParquetFile(data)
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise InputError(f"{url}: not a readable parquet file: {message_of(error)}; recreate it") from error


@lru_cache(maxsize=8)
def _by_stem(marks: MarkFiles) -> dict[PurePosixPath, InputFile]:
    return {PurePosixPath(file.path).with_suffix(""): file for file in marks.files}


@dataclass(frozen=True)
class MarkRules:
    """What decides how many copies of a document a version has: `excluded` contents, and the spec's `documents`.

    `seed` and `shares` of the splits are those of the build: they decide fractions of `repeat`, and what it repeats.
    """

    excluded: MarkFiles | None
    marks: tuple[MarkFiles, ...]
    keep: str | None
    repeat: dict[str, Any] | None
    seed: int
    shares: list[tuple[str, float]]

    def of(self, source: str) -> list[MarkFiles]:
        """Return the marks of the documents of a source."""
        excluded = (self.excluded,) if self.excluded else ()
        return [one for one in (*excluded, *self.marks) if not one.source or source in one.source]

    def identity(self) -> dict[str, Any]:
        """Return the part of a version's identity, as fields of `documents`."""
        found: dict[str, Any] = {"exclude": self.excluded.files[0].fingerprint} if self.excluded else {}
        return found | ({"marks": self._identity(self.marks)} if self.marks else {})

    def name(self, spill_name: str, record: PartitionRecord, file: InputFile) -> str:
        """Return the name of the marks of an encoded partition in work/: a hash of all that decides them."""
        marks = [replace(m, files=(m.beside(file),)) if m.is_aligned else m for m in self.of(file.source)]
        spills = [spill.checksum for spill in record.spills]  # another encoder gives other spills of the same name
        place = [file.source, file.path, spill_name]
        decides = {"place": place, "spills": spills, "marks": self._identity(marks), "format": _FORMAT}
        return sha256_of(decides)[:32]

    def _identity(self, marks: Sequence[MarkFiles]) -> dict[str, Any]:
        return {
            "files": [
                [{n: getattr(m, n) for n in _OPTIONS}, [[f.path, f.fingerprint] for f in m.files]] for m in marks
            ],
            "keep": None if self.keep is None else asdict(parse_filter(self.keep)),
            "repeat": self.repeat,
        }


def list_marks(spec: BuildSpec, memory: FingerprintMemory) -> list[MarkFiles]:
    """Return the entries of `documents.marks` with their files, and that of the exclusions last; reads none of them.

    Raises InputError if a pattern matches no file.
    """
    rules = spec.documents
    worker_bytes = spec.runner.memory
    marks: list[MarkFiles] = []
    for entry in rules.marks:
        files = tuple(input_file(file, "", {}, memory) for file in find_files(entry.path))
        label = files[0].url.rpartition("/")[2]
        if label in {EXCLUDED, "keep", "repeat", *(one.label for one in marks)}:
            label = f"marks.{len(marks)}"
        made = MarkFiles(**entry.options(), files=files, label=label, memory=worker_bytes)
        if made.has_positions:
            made = replace(made, files=_by_task(files, spec, entry.source))
        marks.append(made)
    if rules.exclude:
        file = InputFile("", EXCLUDED, rules.exclude, input_bytes(rules.exclude), "", {}, {})
        only_hashes = bool(spec.ids_options())
        marks.append(MarkFiles("content", REMOVE, "keep", [], (file,), EXCLUDED, worker_bytes, only_hashes))
    return marks


def rules_of(spec: BuildSpec, examined: Iterable[MarkFiles | None]) -> MarkRules | None:
    """Return what marks decide, from the entries of list_marks after `examine`; None if there are none.

    Raises InputError if two keys of `repeat` are one value.
    """
    marks = [entry for entry in examined if entry]
    if not marks:
        return None
    excluded = marks.pop() if marks[-1].label == EXCLUDED else None
    repeat = spec.documents.repeat.model_dump(mode="json") if spec.documents.repeat else None
    if repeat:
        repeat["times"] = _typed(marks, repeat["by"], repeat["times"])
    return MarkRules(excluded, tuple(marks), spec.documents.keep, repeat, spec.seed, spec.split_shares())


def examine(marks: MarkFiles) -> MarkFiles | None:
    """Return an entry with its columns; exclusions with a hash of their contents, None if there are none.

    Raises InputError if a file can't be read, or has more keys than a worker can hold.
    """
    first = marks.files[0]
    with marks.reading(first.url), sharing_files():
        if first.url.endswith(".parquet"):
            with open_table(first.url) as table:
                columns = {column.name: "string" in str(value_type(column.type)) for column in table.schema_arrow}
            marks = replace(marks, columns=columns)
        if not marks.is_aligned:
            _check_keys(marks)
        if marks.label != EXCLUDED:
            return marks
        contents = read_list(first.url, "content", only_hashes=marks.only_hashes)
        file = replace(first, fingerprint=fingerprint_of(contents))
        return replace(marks, files=(file,)) if len(contents) else None


def _check_keys(marks: MarkFiles) -> None:
    """Raise InputError if a worker can't hold the keys of files; it reads the footers of tables, and counts lines."""
    num_keys = sum(map(_num_keys, marks.files))
    num_bytes = _KEY_BYTES * num_keys
    if num_bytes > marks.memory:
        problem = f"{num_keys:,} keys need {num_bytes:,} bytes in each worker, which has {marks.memory:,}"
        raise InputError(f"{marks.files[0].url}: {problem}; raise runner.memory, or give marks by row")


def _num_keys(file: InputFile) -> int:
    """Return how many keys a file has: the rows of a table, or the lines of a list, also of a compressed one."""
    if file.url.endswith(".parquet"):
        with open_table(file.url) as table:
            return int(table.metadata.num_rows)
    with open_decompressed(file.url) as data:
        return sum(block.count(b"\n") for block in iter(partial(data.read, _BLOCK_BYTES), b""))


def fingerprint_of(contents: Digests) -> str:
    """Return the fingerprint of excluded contents, (n,), sorted: any order and form of a list has the same."""
    return sha256_of_bytes(words_of(contents.tobytes()).astype("<u8").tobytes())


def _typed(marks: Sequence[MarkFiles], by: str, times: dict[str, float]) -> dict[str, float]:
    """Return `times` by the values of the mark `by`, sorted: a number has one name, however it is spelled.

    Raises InputError if two keys are one value.
    """
    typed: dict[str, float] = {}
    values = set()  # true and 1 are one value
    is_text = any(entry.columns.get(by) for entry in marks)
    for text in sorted(times):
        value = text if is_text else _number(text)
        if value in values:
            raise InputError(f"documents.repeat.times: two keys of one value of {by}, {value}; correct the keys")
        values.add(value)
        typed[str(value)] = times[text]
    return typed


def _number(text: str) -> object:
    """Return the number that a key spells, an integer where it is whole; the text itself if it is blank."""
    number = number_of(text)
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return text if number is None else number


def _by_task(files: Sequence[InputFile], spec: BuildSpec, sources: Sequence[str]) -> tuple[InputFile, ...]:
    """Give each file of positions the path of the input that datatrove's task of its number read."""
    name, *others = sources or spec.source_names()
    if others:
        raise InputError(f"{files[0].url}: positions of one source; leave the others out: `source: {name}`")
    inputs, found = files_of(spec, name)[1], []
    for file in files:
        task = PurePosixPath(file.url).stem
        if not task.isdigit() or int(task) >= len(inputs):
            raise InputError(f"{file.url}: no task 0 to {len(inputs) - 1}; recreate it with a task for each input file")
        found.append(replace(file, path=inputs[int(task)].path))
    return tuple(found)
