"""The marks of a spec: which files say something about which documents, and what follows from it.

`documents.exclude` is a list of this kind too: it removes contents, is counted apart, and names versions as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.errors import InputError, message_of
from tokenloom.spec.syntax import REMOVE, parse_filter
from tokenloom.storage.formats.keys import words_of
from tokenloom.storage.formats.records import sha256_of, sha256_of_bytes
from tokenloom.storage.work.fingerprints import FingerprintMemory
from tokenloom.tasks.building.inputs import files_of
from tokenloom.tasks.rules import read_list
from tokenloom.tasks.sources.files import open_input
from tokenloom.tasks.sources.listing import find_files

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec
    from tokenloom.storage.work.records import PartitionRecord
    from tokenloom.tasks.building.inputs import InputFile

EXCLUDED = "excluded"  # counts what documents.exclude removes
_OPTIONS = ("key", "as_", "missing", "source")
_FORMAT = 2  # of what marks are in work/
_POSITIONS = ".remove"  # of datatrove: little-endian uint32, the positions of rows to remove


class MarkFile(NamedTuple):
    """A file of marks; `path` is relative to the root of its pattern."""

    path: str
    url: str
    fingerprint: str


@dataclass(frozen=True)
class MarkFiles:
    """An entry of `documents.marks`, see its model, and its files; messages and counts name it by its label."""

    key: str
    as_: str | None
    missing: str
    source: list[str] = field(hash=False)
    files: tuple[MarkFile, ...]
    label: str

    @property
    def is_aligned(self) -> bool:
        """Whether there is a file of marks for each input file, with a row for each of its rows."""
        return self.key == "row" and not {"path", "row"} <= set(column_names(self.files[0]))

    @property
    def has_positions(self) -> bool:
        """Whether the files have positions of rows to remove; there is none for an input that loses no row."""
        return self.files[0].url.endswith(_POSITIONS)

    def beside(self, file: InputFile) -> MarkFile:
        """Return the file of marks for an input: the same path but for suffixes; raises InputError without one."""
        path, by_stem = PurePosixPath(file.path), _by_stem(self)
        for stem in (path, path.with_suffix(""), path.with_suffix("").with_suffix("")):  # such as .jsonl.gz
            if found := by_stem.get(stem):
                return found
        if self.has_positions:
            return MarkFile(file.path, "", "")
        problem = f"no file of marks for the input {file.path}; check the path, or name `source:`"
        raise InputError(f"{self.files[0].url}: {problem}; lists of keys are `key: id` or `key: content`")


@lru_cache(maxsize=64)
def column_names(file: MarkFile) -> tuple[str, ...]:
    """Return the names of the columns of a parquet file; none of another."""
    if not file.url.endswith(".parquet"):
        return ()
    with open_table(file.url) as table:
        return tuple(table.schema_arrow.names)


@contextmanager
def open_table(url: str) -> Iterator[pq.ParquetFile]:
    """Open a parquet file of marks in the block; raises InputError if it can't be read."""
    try:
        with open_input(url) as data:
            yield pq.ParquetFile(data)
    except pa.ArrowException as error:
        raise InputError(f"{url}: not a readable parquet file: {message_of(error)}; recreate it") from error


@lru_cache(maxsize=8)
def _by_stem(marks: MarkFiles) -> dict[PurePosixPath, MarkFile]:
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


def find_marks(spec: BuildSpec, memory: FingerprintMemory) -> MarkRules | None:
    """Return what the files of marks and exclusions of a spec decide, None if it names none.

    Raises InputError if a pattern matches no file, or if the exclusions can't be read.
    """
    rules, marks = spec.documents, list[MarkFiles]()
    for entry in rules.marks:
        files = find_files(entry.path)
        found = tuple(MarkFile(each.path, each.url, each.fingerprint or memory.local(each.url)[0]) for each in files)
        label = files[0].url.rpartition("/")[2]
        if label in {EXCLUDED, "keep", "repeat", *(one.label for one in marks)}:
            label = f"marks.{len(marks)}"
        made = MarkFiles(**entry.options(), files=found, label=label)
        marks.append(replace(made, files=_by_task(found, spec, entry.source)) if made.has_positions else made)
    excluded = _excluded(rules.exclude, only_hashes=bool(spec.ids_options())) if rules.exclude else None
    if not marks and not excluded:
        return None
    repeat = rules.repeat.model_dump(mode="json") if rules.repeat else None
    return MarkRules(excluded, tuple(marks), rules.keep, repeat, spec.seed, spec.split_shares())


def _by_task(files: Sequence[MarkFile], spec: BuildSpec, sources: Sequence[str]) -> tuple[MarkFile, ...]:
    """Give each file of positions the path of the input that datatrove's task of its number read."""
    name, *others = sources or spec.source_names()
    if others:
        raise InputError(f"{files[0].url}: positions of one source; leave the others out: `source: {name}`")
    inputs, found = files_of(spec, name)[1], []
    for file in files:
        task = PurePosixPath(file.url).stem
        if not task.isdigit() or int(task) >= len(inputs):
            raise InputError(f"{file.url}: no task 0 to {len(inputs) - 1}; recreate it with a task for each input file")
        found.append(file._replace(path=inputs[int(task)].path))
    return tuple(found)


def _excluded(url: str, *, only_hashes: bool) -> MarkFiles | None:
    """Return the list of `documents.exclude`, None if it is empty; any order and form of it has one fingerprint."""
    contents = read_list(url, "content", only_hashes=only_hashes)
    digest = sha256_of_bytes(words_of(contents.tobytes()).astype("<u8").tobytes())
    files = (MarkFile(EXCLUDED, url, digest),)
    return MarkFiles("content", REMOVE, "keep", [], files, EXCLUDED) if len(contents) else None
