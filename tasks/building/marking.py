"""Mark: evaluate the marks of an input's documents, and write how many copies of each a version has.

It reads document tables of spills and files of marks, and no text: another threshold encodes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import UInt8s, offsets_of, ranges_of, runs_of
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
from tokenloom.storage.work.spill import COPIES_SHIFT, TABLE_DTYPE, Spill, SpillDocuments, write_spill
from tokenloom.tasks.building.inputs import InputFile, check_unchanged
from tokenloom.tasks.building.marks.evaluation import Verdict, row_numbers
from tokenloom.tasks.building.marks.files import MarkFiles, MarkRules, comparing, examine, rules_of
from tokenloom.tasks.building.marks.tables import Documents, check_length
from tokenloom.tasks.building.merge import documents_of
from tokenloom.tasks.building.plan import Build, BuildPlan, Partition, listed_marks
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Runner
from tokenloom.tasks.sources import make_reader
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec

_COPIED_TOKENS = 2**24  # in a spill of copies, about
_MarkedPart = tuple[Partition, PartitionRecord, str]
#: the partitions of an input file, in order, with the records of their spills, and the names of their marks
MarkJob = list[_MarkedPart]


def read_marks(spec: BuildSpec, runner: Runner) -> MarkRules | None:
    """Return what the marks and exclusions of a spec decide, None if it names none; workers read their files.

    Raises InputError if a pattern matches no file, or as examine and rules_of.
    """
    listed = runner.one("list marks", lambda: listed_marks(spec))
    return rules_of(spec, runner.examine(examine, listed))


def check_marks(plan: BuildPlan, runner: Runner) -> None:
    """Raise InputError if a file of marks or exclusions has changed since the plan."""
    before = plan.build.marks.identity() if plan.build.marks else None
    marks = read_marks(plan.spec, runner)
    after = marks.identity() if marks else None
    if after != before:
        raise InputError("documents: a file of marks or exclusions changed while the build ran; build again")


def mark_jobs(plan: BuildPlan) -> tuple[list[str], list[MarkJob]]:
    """Return the names of all marks in work/, and a job for each input file whose partitions are not all marked."""
    store, rules = plan.build.store, plan.build.marks
    assert rules is not None
    _check_aligned(rules, plan.inputs)
    _check_paths(rules, plan.inputs)
    records = find_partition_records(store, (part.spill_name for part in plan.partitions))
    # assign reports a record that is missing
    parts = [(p, r, rules.name(p.spill_name, r, p.file)) for p in plan.partitions if (r := records.get(p.spill_name))]
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


def _check_paths(rules: MarkRules, inputs: Sequence[InputFile]) -> None:
    """Raise InputError if a table by `path` and `row` could mean the rows of two inputs."""
    for marks in rules.marks:
        if marks.key != "row" or marks.is_aligned:
            continue
        paths: set[str] = set()
        for file in inputs:
            if marks not in rules.of(file.source):
                continue
            if file.path in paths:
                problem = f"two inputs have the path {file.path}, so its rows are not clear; name one in `source:`"
                raise InputError(f"{marks.files[0].url}: {problem}")
            paths.add(file.path)


def unused_keys(rules: MarkRules, counts: Iterable[MarkCounts], numbers: Sequence[int]) -> Iterator[str]:
    """Yield a line for each table or list, and for `repeat.times`, with keys that no document has.

    Args:
        rules: what marks decide.
        counts: those of all sources.
        numbers: how many keys each entry of marks has, see num_keys.
    """
    found = added((each.found for each in counts), dict[str, int]())
    for marks, number in zip(rules.marks, numbers, strict=True):
        if (unused := number - found.get(marks.label, 0)) > 0:
            yield f"{marks.label}: at least {counted(unused, 'key')} of {marks.key} that no document has"
    times = rules.repeat["times"] if rules.repeat else ()
    missing = [text for text in times if not found.get(f"repeat/{text}")]
    if missing:
        yield f"documents.repeat.times: {counted(len(missing), 'key')} that no document has: {', '.join(missing)}"


def mark_file(build: Build, job: MarkJob) -> None:
    """Mark the documents of an input file; writes a record for each of its partitions, the last file of each.

    Raises:
        InputError: a file of marks does not fit its input, a mark that a document needs is missing or null, or a file
            has changed since the build was planned.
        WorkError: a spill is missing or damaged.
    """
    file, rules, num_rows = job[0][0].file, build.marks, [record.encoded.rows for _, record, _ in job]
    assert rules is not None
    progress.report(progress.Working(f"marking the documents of {file.url}"))
    aligned = [marks for marks in rules.of(file.source) if marks.is_aligned]
    without = sum(num_rows) - sum(record.encoded.documents for _, record, _ in job)
    if without and (positions := next((marks for marks in aligned if marks.has_positions), None)):
        problem = f"{counted(without, 'row')} without a document, which datatrove doesn't count in {positions.label}"
        raise InputError(f"{file.url}: {problem}; build again without a filter, or remove documents by id")
    with comparing(marks.beside(file) for marks in aligned):
        for marks in aligned:
            check_length(marks, file, sum(num_rows), is_tryout=build.limit is not None)
    for i, marked_part in enumerate(job):
        _mark_partition(build, aligned, marked_part, sum(num_rows[:i]))


def _mark_partition(build: Build, aligned: Sequence[MarkFiles], job: _MarkedPart, num_before: int) -> None:
    """Mark the documents of a partition, which is behind `num_before` rows of the input; write its record last."""
    part, record, name = job
    rules = build.marks
    assert rules is not None
    counts, copied, files = list[MarkCounts](), list[SpillCounts](), dict[str, int]()
    num_splits = len(build.rules.shares)
    spills = [Spill(build.store, part.spill_name, i, one.bytes, one.checksum) for i, one in enumerate(record.spills)]
    tables = [np.concatenate([spill.documents(i, 0, KEY_SPACE)[1] for i in range(num_splits)]) for spill in spills]
    rows = np.sort(np.concatenate([np.empty(0, TABLE_DTYPE), *tables])["row"])
    if aligned and len(rows) < record.encoded.rows:  # reading them again takes a while
        rows = row_numbers(make_reader(part.file.options), part.file.url, part)
        check_unchanged(part.file)
    for index, (spill, table) in enumerate(zip(spills, tables, strict=True)):
        split = np.repeat(np.arange(num_splits, dtype=np.uint8), record.spills[index].documents)
        positions = np.searchsorted(rows, table["row"]) + num_before
        documents = Documents(part.file, table, split, spill.ids(table), positions)
        # The names of the files that are written next vouch for the marks.
        with comparing(marks.beside(part.file) for marks in aligned):
            verdict = Verdict(rules, documents)
        counts.append(_counts(build, documents, verdict))
        files |= write_copies(build.store, name, index, verdict.copies)
        for copies in _further_copies(spill, documents, verdict.copies) if (verdict.copies > 1).any() else ():
            copied.append(write_spill(build.store, name, len(copied), copies, num_splits, {}))
    files |= {spill_path(name, index): written.bytes for index, written in enumerate(copied)}
    total = added(counts, MarkCounts({}, DocumentCounts(0, 0), {}, {}))
    write_work_record(build.store, partition_record_path(name), MarkedPartition(name, total, copied, files))
    progress.report(progress.Advanced(done=part.num_bytes))


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
    """Return how many documents have each value of a mark, rounded to two digits; {} for marks that are no numbers."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        return {}
    values, counts = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), Counter[str]()
    with np.errstate(divide="ignore", invalid="ignore"):  # rounded, few are left to format: a tenth of the time
        unit = 10.0 ** (np.floor(np.log10(np.abs(values))) - 1)
        rounded = np.where(np.isfinite(unit) & (unit > 0), np.round(values / unit) * unit, values)
    for value, count in zip(*np.unique(rounded, return_counts=True), strict=True):
        counts["null" if np.isnan(value) else f"{value:.2g}"] += int(count)
    return dict(counts)


def _further_copies(spill: Spill, documents: Documents, copies: UInt8s) -> Iterator[SpillDocuments]:
    """Yield the copies of documents behind the first, about _COPIED_TOKENS at a time."""
    table, further = documents.table, np.maximum(copies, 1).astype(np.int64) - 1
    which, number = np.repeat(np.arange(len(table)), further), (ranges_of(further) + 1).astype(np.uint64)
    lengths, all_tokens = table["num_tokens"], (0, int(table["num_tokens"].sum(dtype=np.int64)))
    tokens = as_segments(np.concatenate(list(spill.tokens(*all_tokens))), lengths)
    classes = as_segments(np.concatenate(list(spill.classes(*all_tokens))), lengths) if spill.has_classes else None
    for start, end in runs_of(offsets_of(lengths[which]), _COPIED_TOKENS):
        rows = table[of := which[start:end]]
        rows["key"] = copy_keys(rows["key"], number[start:end])
        rows["row"] |= copies[of].astype(np.uint64) << COPIES_SHIFT
        taken = None if classes is None else take_segments(classes, of, np.dtype(np.uint8))
        ids = documents.ids.take(pa.array(of))
        yield documents_of(rows, documents.split[of], ids, take_segments(tokens, of, spill.dtype), taken)
