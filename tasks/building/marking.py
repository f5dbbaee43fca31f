"""Mark: evaluate the marks of an input's documents, and write how many copies of each a version has.

It reads document tables of spills and files of marks, and no text: another threshold encodes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import UInt8s, UInt64s, offsets_of, ranges_of, runs_of
from tokenloom.storage.formats.keys import KEY_SPACE, copy_keys
from tokenloom.storage.formats.statistics import DocumentCounts, MarkCounts, added
from tokenloom.storage.work.marked import MarkedPartition, find_marked, write_copies
from tokenloom.storage.work.records import (
    PartitionRecord,
    SpillCounts,
    find_partition_records,
    partition_record_path,
    spill_path,
    write_work_record,
)
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.storage.work.spill import Spill, SpillDocuments, write_spill
from tokenloom.tasks.building.inputs import InputFile
from tokenloom.tasks.building.marks.evaluation import Verdict, row_numbers
from tokenloom.tasks.building.marks.files import MarkRules
from tokenloom.tasks.building.marks.tables import Documents, check_length, load_table
from tokenloom.tasks.building.plan import Build, BuildPlan, Partition
from tokenloom.tasks.running import progress
from tokenloom.tasks.sources import make_reader
from tokenloom.tokenizers.base import text_bytes
from tokenloom.wording import counted

_COPIED_TOKENS = 2**24  # in a spill of copies, about
#: the partitions of an input file, in order, with the records of their spills, and the names of their marks
MarkJob = list[tuple[Partition, PartitionRecord, str]]


def mark_jobs(plan: BuildPlan) -> tuple[list[str], list[MarkJob]]:
    """Return the names of all marks in work/, and a job for each input file whose partitions are not all marked."""
    store, marks = plan.build.store, plan.build.marks
    assert marks is not None
    _check_aligned(marks, plan.inputs)
    records = find_partition_records(store, (part.spill_name for part in plan.partitions))
    parts: MarkJob = []
    for part in plan.partitions:
        if record := records.get(part.spill_name):  # assign reports one that is missing
            parts.append((part, record, marks.name(part.spill_name, record, part.file)))
    names = [name for *_, name in parts]
    done = find_marked(store, names)
    files = (list(of_file) for _, of_file in groupby(parts, key=lambda each: each[0].input_index))
    return names, [job for job in files if any(name not in done for *_, name in job)]


def _check_aligned(rules: MarkRules, inputs: Sequence[InputFile]) -> None:
    """Raise InputError if two inputs have one file of marks, or a file belongs to none: their names do not fit."""
    for marks in (one for one in rules.marks if one.is_aligned):
        of: dict[str, str] = {}
        for file in (file for file in inputs if marks in rules.of(file.source)):
            if (url := marks.beside(file).url) and of.setdefault(url, file.url) != file.url:
                raise InputError(f"{url}: the marks of {of[url]} and of {file.url}; check the names, or name `source:`")
        if left := [file.url for file in marks.files if file.url not in of]:
            raise InputError(f"{left[0]}: no input has the name of this file of marks; check `path`, or remove it")


def unused_keys(rules: MarkRules, counts: Iterable[MarkCounts]) -> Iterator[str]:
    """Yield a line for each table or list with keys that no document has, from the counts of all sources."""
    found = added((each.found for each in counts), dict[str, int]())
    for marks in rules.marks:
        if not marks.is_aligned and (unused := len(load_table(marks)[0]) - found.get(marks.label, 0)) > 0:
            yield f"{marks.label}: at least {counted(unused, 'key')} of {marks.key} that no document has"


def mark_file(build: Build, job: MarkJob) -> None:
    """Mark the documents of an input file; writes a record for each of its partitions, the last file of each.

    Raises:
        InputError: a file of marks does not fit its input, or a mark that a document needs is missing or null.
        WorkError: a spill is missing or damaged.
    """
    file, num_rows = job[0][0].file, 0
    assert build.marks is not None
    progress.report(progress.Working(f"marking the documents of {file.url}"))
    aligned = [marks for marks in build.marks.of(file.source) if marks.is_aligned]
    without = sum(record.encoded.rows - record.encoded.documents for _, record, _ in job)
    if without and (positions := next((marks for marks in aligned if marks.has_positions), None)):
        raise InputError(  # datatrove does not count rows without text
            f"{file.url}: not a document in each row ({without:,} have none), so {positions.label} may count others; "
            "build again without a filter, from the files that datatrove read, or remove documents by id"
        )
    reader = make_reader(file.options)
    for part, record, name in job:
        rows = row_numbers(reader, file.url, part) if aligned else None
        _mark_partition(build, part, record, name, rows, num_rows)
        num_rows += 0 if rows is None else len(rows)
        progress.report(progress.Advanced(done=part.num_bytes))
    for marks in aligned if build.limit is None else ():
        check_length(marks, file, num_rows)


def _mark_partition(
    build: Build, part: Partition, record: PartitionRecord, name: str, rows: UInt64s | None, num_before: int
) -> None:
    """Mark the documents of a partition, whose rows have these numbers, behind others of the input."""
    assert build.marks is not None
    counts, spills, files = list[MarkCounts](), list[SpillCounts](), dict[str, int]()
    num_splits = len(build.rules.shares)
    for index, recorded in enumerate(record.spills):
        spill = Spill(build.store, part.spill_name, index, recorded.bytes, recorded.checksum)
        table = np.concatenate([spill.documents(i, 0, KEY_SPACE)[1] for i in range(num_splits)])
        split = np.repeat(np.arange(num_splits, dtype=np.uint8), recorded.documents)
        positions = np.searchsorted([] if rows is None else rows, table["row"]) + num_before
        documents = Documents(part.file, table, split, spill.ids(table) if build.has_ids else None, positions)
        verdict = Verdict(build.marks, documents)
        counts.append(_counts(build, documents, verdict))
        files |= write_copies(build.store, name, index, verdict.copies)
        for copies in _further_copies(spill, documents, verdict.copies):
            spills.append(write_spill(build.store, name, len(spills), copies, num_splits, {}))
    files |= {spill_path(name, index): written.bytes for index, written in enumerate(spills)}
    total = added(counts, MarkCounts({}, DocumentCounts(0, 0), {}, {}))
    write_work_record(build.store, partition_record_path(name), MarkedPartition(name, total, spills, files))


def _counts(build: Build, documents: Documents, verdict: Verdict) -> MarkCounts:
    def counted(times: NDArray[Any]) -> DocumentCounts:
        return DocumentCounts(int(times.sum()), int((times * documents.table["num_tokens"]).sum()))

    copies, names = verdict.copies.astype(np.int64), verdict.marks.schema.names
    return MarkCounts(
        splits={name: counted(copies * (documents.split == i)) for i, (name, _) in enumerate(build.rules.shares)},
        copies=counted(copies - (copies > 0)),
        removed={reason: counted(verdict.why == i) for i, reason in enumerate(verdict.reasons) if reason},
        values={name: found for name, column in zip(names, verdict.marks, strict=True) if (found := _tally(column))},
        found=verdict.found,
    )


def _tally(column: pa.Array) -> dict[str, int]:
    """Return how many documents have each value of a mark, numbers rounded to two digits; {} for other marks."""
    counts: Counter[str] = Counter()
    if pa.types.is_floating(column.type):
        column = pa.array(_two_digits(column.cast(pa.float64()).to_numpy(zero_copy_only=False)), from_pandas=True)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        for item in pc.value_counts(column).to_pylist():
            counts["null" if item["values"] is None else f"{item['values']:.2g}"] += item["counts"]
    return dict(counts)


def _two_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to two digits, so that few values are left to format: a tenth of the time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = 10.0 ** (np.floor(np.log10(np.abs(values))) - 1)
        return np.where(np.isfinite(unit) & (unit > 0), np.round(values / unit) * unit, values)


def _further_copies(spill: Spill, documents: Documents, copies: UInt8s) -> Iterator[SpillDocuments]:
    """Yield the copies of documents behind the first, about _COPIED_TOKENS at a time."""
    table, further = documents.table, np.maximum(copies, 1).astype(np.int64) - 1
    if not further.any():
        return
    which, number = np.repeat(np.arange(len(table)), further), (ranges_of(further) + 1).astype(np.uint64)
    lengths, all_tokens = table["num_tokens"], (0, int(table["num_tokens"].sum(dtype=np.int64)))
    tokens = as_segments(np.concatenate(list(spill.tokens(*all_tokens))), lengths)
    has_classes = spill.has_classes
    classes = as_segments(np.concatenate(list(spill.classes(*all_tokens))), lengths) if has_classes else None
    ids = pa.repeat("", len(table)) if documents.ids is None else documents.ids.fill_null("")
    for start, end in runs_of(offsets_of(lengths[which]), _COPIED_TOKENS):
        of = which[start:end]
        rows, (id_bytes, offsets) = table[of], text_bytes(ids.take(pa.array(of)).cast(pa.large_string()))
        yield SpillDocuments(
            split=documents.split[of],
            key=copy_keys(rows["key"], number[start:end]),
            content=np.stack([rows["content_high"], rows["content_low"]], axis=1),
            row=rows["row"],
            num_tokens=rows["num_tokens"],
            tokens=take_segments(tokens, of, spill.dtype),
            id_bytes=np.diff(offsets).astype(np.uint32),
            ids=id_bytes,
            classes=None if classes is None else take_segments(classes, of, np.dtype(np.uint8)),
        )
