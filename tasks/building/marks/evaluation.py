"""Evaluate marks: how many copies of each document a version has, and what drops the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import InputError, WorkError
from tokenloom.spec.syntax import REMOVE, Comparison, columns_of, parse_filter
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.document_table import Origin
from tokenloom.storage.formats.keys import KEY_SPACE, Purpose, mix64, order_keys, split_indices, words_of
from tokenloom.storage.formats.records import canonical_json
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.work.fingerprints import FingerprintMemory
from tokenloom.storage.work.records import find_assignments
from tokenloom.storage.work.spill import TABLE_DTYPE, Spill
from tokenloom.tasks.building.inputs import find_input
from tokenloom.tasks.building.marks.files import MarkRules, examine, list_marks, rules_of
from tokenloom.tasks.building.marks.tables import Documents, find, kept_by, names_of
from tokenloom.tasks.sources import PartitionRange, SourceReader, make_reader
from tokenloom.tasks.sources.filters import number_of
from tokenloom.tasks.sources.reader import RecordReader

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec


class Verdict:
    """What marks decide of n documents.

    Attributes:
        marks: of all documents, null for those without them.
        copies: (n,), how many of each a version has.
        why: (n,), what drops a document, as an index into `reasons`; 0 drops nothing.
        found: how many keys of each table or list the documents have, and how many documents each key of `repeat` has.

    Raises InputError if a document lacks a mark that it must have.
    """

    def __init__(self, rules: MarkRules, documents: Documents) -> None:
        self._documents, self.found, self.reasons = documents, dict[str, int](), {"": 0}
        self.copies, self.why = np.ones(len(documents.table), np.uint8), np.zeros(len(documents.table), np.uint8)
        self._lacks: dict[str, NDArray[np.bool_]] = {}  # by mark, the documents that no expression with it decides
        self.marks = self._join(rules)
        if rules.keep is not None:
            tree = parse_filter(rules.keep)
            if (where := self._decided(rules, columns_of(tree))).any():
                self._drop(where & ~kept_by(self.marks, tree, documents.file.url), "keep")
        if rules.repeat is not None and (where := self._decided(rules, [rules.repeat["by"]])).any():
            self._repeat(rules, where, **rules.repeat)

    def _drop(self, where: NDArray[np.bool_], reason: str) -> None:
        self.why[where & (self.why == 0)] = self.reasons.setdefault(reason, len(self.reasons))
        self.copies[where] = 0

    def _join(self, rules: MarkRules) -> pa.RecordBatch:
        """Return the marks of the documents, and drop those that a list, or a missing mark, drops."""
        columns: dict[str, pa.Array] = {}
        for marks in rules.of(self._documents.file.source):
            rows, table = find(marks, self._documents)
            is_missing = rows < 0
            if not marks.is_aligned:
                self.found[marks.label] = len(np.unique(rows[~is_missing]))
            if marks.as_ == REMOVE:
                self._drop(~is_missing, marks.label)
            lacking = is_missing & (self.copies > 0)
            if lacking.any() and marks.missing == "fail":
                place = self._documents.place(lacking)
                raise InputError(f"{place}: no mark in {marks.label}; check that file, or set `missing: keep`")
            if marks.missing == "drop":
                self._drop(is_missing, marks.label)
            found = {marks.as_: pa.array(~is_missing)} if marks.as_ not in (None, REMOVE) else {}
            if not marks.as_:
                taken = table.take(pa.array(rows, mask=is_missing))
                found = {name: taken[name].combine_chunks() for name in taken.column_names}
                self._lacks |= dict.fromkeys(found, is_missing)
            if twice := columns.keys() & found.keys():
                raise InputError(f"{marks.label}: another file has the mark {min(twice)!r} too; rename one of them")
            columns |= found
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _decided(self, rules: MarkRules, names: list[str]) -> NDArray[np.bool_]:
        """Return which documents these marks decide, (n,); raises InputError for an unknown mark, null or NaN."""
        where, known, source = self.copies > 0, self.marks.schema.names, self._documents.file.source
        for name in names:
            if name not in known and not any(name in names_of(marks) for marks in rules.marks if marks.as_ != REMOVE):
                raise InputError(
                    f"source {source}: no mark {name!r}; check it; its marks are: {', '.join(known) or None}"
                )
            where &= name in known and ~self._lacks.get(name, np.zeros(len(where), bool))
        for name in names if where.any() else ():
            bad = where & self.marks[name].is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
            if bad.any():
                raise InputError(f"{self._documents.place(bad)}: its mark {name!r} is null; repair the marks")
        return where

    def _repeat(
        self, rules: MarkRules, where: NDArray[np.bool_], by: str, times: dict[str, float], splits: list[str]
    ) -> None:
        """Set the numbers of copies by the value of a mark; a hash of the content decides fractions."""
        table, kind, wanted = self._documents.table, self.marks[by].type, np.ones(len(where))
        for text, number in times.items():
            value = text if "string" in str(kind) else number_of(text)
            assert value is not None  # number_of returns None for a blank text alone, and rules_of has none
            has = kept_by(self.marks, Comparison(by, "==", value), self._documents.file.url)
            self.found[f"repeat/{text}"] = int(has.sum())
            wanted[has] = number
        is_repeated = np.isin([name for name, _ in rules.shares], splits)
        wanted[~is_repeated[self._documents.split]] = 1
        draw = mix64(Purpose.REPEAT, rules.seed, (table["content_high"], table["content_low"]))
        copies = np.floor(wanted) + ((draw >> np.uint64(11)) * 2.0**-53 < wanted % 1)
        self.copies[where] = copies[where]
        self._drop(self.copies == 0, "repeat")


def explain(spec: BuildSpec, tables: VersionTables, document: Origin) -> tuple[str, dict[str, Any]]:
    """Return what drops a document of a row, "" if nothing does, and its marks by name; {} if the marks are others now.

    Raises InputError as mark_file.
    """
    rules = rules_of(spec, map(examine, list_marks(spec, FingerprintMemory(tables.store))))
    file = find_input(spec, tables.store, document["source"], document["path"])
    if not rules or not file or canonical_json(rules.identity().get("marks")) != canonical_json(tables.rules.marks):
        return "", {}
    table, content = np.zeros(1, TABLE_DTYPE), words_of(bytes.fromhex(document["content"]))
    table["row"], table["content_high"], table["content_low"] = document["row"], *content
    rows, reader = np.empty(0, np.uint64), make_reader(file.options)
    if any(marks.is_aligned for marks in rules.of(file.source)):
        rows = np.concatenate([row_numbers(reader, file.url, part) for part in reader.partitions(file.url)])
    split = split_indices(content[np.newaxis], rules.shares).astype(np.uint8)
    ids = pa.array([document.get("id")], pa.large_string())
    verdict = Verdict(rules, Documents(file, table, split, ids, np.searchsorted(rows, table["row"])))
    return list(verdict.reasons)[verdict.why[0]], verdict.marks.to_pylist()[0] if verdict.marks.num_columns else {}


def rows_in_spills(tables: VersionTables, content: str) -> Iterator[Origin]:
    """Yield the rows with a content, 32 hexadecimal digits, as long as the spills of the version's build are there."""
    words = words_of(bytes.fromhex(content))
    split = int(split_indices(words[np.newaxis], tables.spec.splits)[0])
    key = int(order_keys(words[np.newaxis], tables.spec.seed)[0])
    keys = (key, key + 1) if tables.rules.deduplicate else (0, KEY_SPACE)
    assignments = find_assignments(tables.store, tables.manifest.version)
    with suppress(WorkError):
        for entry in assignments[-1].spills if assignments else ():
            if entry.is_copy:
                continue
            spill = Spill(tables.store, entry.name, entry.index, entry.num_bytes, entry.checksum)
            rows, file = spill.documents(split, *keys)[1], tables.inputs[entry.input_index]
            for row in rows[(rows["content_high"] == words[0]) & (rows["content_low"] == words[1])]:
                own = spill.ids(row.reshape(1))[0].as_py()
                yield Origin(source=file.source, path=file.path, row=int(row["row"]), content=content, id=own)


def row_numbers(reader: SourceReader, url: str, part: PartitionRange) -> UInt64s:
    """Return the number of each row of a part, as the document table has them."""
    if part.num_rows is not None:
        first = part.start if part.first_row is None else part.first_row
        return np.arange(first, first + part.num_rows, dtype=np.uint64)
    if not isinstance(reader, RecordReader):
        raise InputError(f"{url}: its rows have no numbers from 0 on; mark its documents by id or content")
    return np.fromiter((row.row for row in reader.raw_rows(url, part.start, part.end)), np.uint64)
