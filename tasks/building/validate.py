"""Validate a version before it becomes visible.

About 1,000 documents are encoded again and compared with their shards. Counts and ids were measured while the shards
were written; here they are summed and compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace

from tokenloom.errors import CheckError, EncoderMismatch, InputError
from tokenloom.storage.formats.classes import PLAIN_TEXT, ROLE_BITS
from tokenloom.storage.formats.manifest import RowCounts
from tokenloom.storage.formats.statistics import DocumentCounts, EncodedCounts, added
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.build_record import find_build_record
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.storage.work.records import Assignment, ShardRecord, forget, remove_spills_of
from tokenloom.tasks.building.check import Difference, Sample, choose_documents, divide_by_input
from tokenloom.tasks.building.inputs import check_all_unchanged
from tokenloom.tasks.building.marks.files import EXCLUDED
from tokenloom.tasks.building.plan import SAMPLE_BYTES, Build, BuildPlan
from tokenloom.tasks.building.version_facts import INFERRED
from tokenloom.tasks.running.steps import Job
from tokenloom.tasks.sources.base import INDEX
from tokenloom.tokenizers.fast.tokenizer import FIRST_TEXTS, NO_OVERLAP
from tokenloom.wording import counted

_REPORT_AT = "https://github.com/tokenloom/tokenloom/issues"
_CHANGED = "nothing was published; the file changed while the build ran: build again when it is complete"
_UNSTEADY = (
    "nothing was published; documents.transform returned another text for the same row: make it depend only on "
    "the text, change its version, and build again"
)
_NEXT_STEP = "nothing was published; please report this, with build.json of a version that was"


def check_jobs(plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord]) -> tuple[Build, list[Job]]:
    """Return the build and the samples to encode again, for compare_documents; errors as choose_documents.

    They are encoded as the build did, since the reference might take as long as the rest of the build. It encodes some
    of them too, unless it has encoded a full sample of this build's text before.
    """
    is_sampled = sum(part.num_bytes for part in plan.missing) >= SAMPLE_BYTES
    build = replace(
        plan.build,
        proof=plan.build.proof if assignment.encoders else None,
        overlap=NO_OVERLAP if is_sampled else FIRST_TEXTS,
    )
    shards = [StoredShard(build.store, build.version, record.entry) for record in records]
    jobs = []
    for documents in divide_by_input(choose_documents(shards, len(plan.inputs)), plan.inputs):
        file = plan.inputs[documents[0].input_index]
        jobs.append(Job(file.path, Sample(file, documents), len(documents)))
    return build, jobs


def refuse_differences(plan: BuildPlan, assignment: Assignment, differences: Iterable[Difference]) -> None:
    """Raise the error for the first document that differs from its source; the next build reads its input again.

    Raises:
        CheckError: a row is gone, or its text or ids differ.
        EncoderMismatch: ids differ, and a fast encoder may have given some of them.
    """
    for kind, document, source_place in differences:
        if kind != "ids":  # the spills may be wrong
            names = {part.spill_name for part in plan.partitions if part.input_index == document.input_index}
            forget(plan.build.store, plan.build.version, names)
        if kind == "gone":
            raise CheckError(f"{source_place}: gone since it was read; {_CHANGED}")
        if kind == "text":
            why = _CHANGED if plan.spec.documents.transform is None else _UNSTEADY
            raise CheckError(f"{source_place}: its text differs from {document.place}; {why}")
        differs = "ids or classes differ" if plan.build.has_classes else "ids differ"
        found = f"{source_place}: encoded again, its {differs} from {document.place}"
        if assignment.encoders:
            raise EncoderMismatch(found, tuple(assignment.encoders))
        raise CheckError(f"{found}; {_NEXT_STEP}")


def rejected(store: Store, error: EncoderMismatch) -> EncoderMismatch:
    """Delete the spills that wrong fast encoders left in work/, also of earlier builds; return the error for the user.

    Args:
        store: the dataset's store.
        error: says which ids differ, and the encoders that may have given them.
    """
    num_removed = remove_spills_of(store, error.encoders)
    records = {version: find_build_record(store, version) for version in published_versions(store)}
    versions = [version for version, record in records.items() if record and {*error.encoders} & {*record.encoders}]
    also = f"it also encoded {', '.join(versions)}: verify them with `tokenloom verify --deep`; " if versions else ""
    used = " and ".join(error.encoders)
    return EncoderMismatch(
        f"{error}. Nothing was published; {counted(num_removed, 'partition')} that {used} encoded "
        f"{'was' if num_removed == 1 else 'were'} deleted from {store.place('work')}; {also}set tokenizer: "
        f"{{backend: reference}} and build again, and please report this message at {_REPORT_AT}",
        error.encoders,
    )


def validate_build(
    plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord], num_checked: int
) -> dict[str, int]:
    """Validate that a build is complete and correct; return the measured values for build.json.

    Args:
        plan: the build's plan.
        assignment: which documents each shard gets.
        records: the records of all shards.
        num_checked: documents that were encoded again and compared.

    Raises:
        CheckError: a check failed; the message has both numbers.
        InputError: an input changed while the build ran, or the version has no document.
    """
    check_all_unchanged(plan.spec, plan.inputs)
    rows = row_counts(assignment, records)
    _compare_totals(plan, assignment, records, rows)
    _validate_shards(plan, records)
    if not rows.kept:
        raise InputError("documents.exclude or marks drop every document; check these files, and documents.keep")
    # Files of tokens without an index of their documents: end-of-text ids have shown where these begin.
    inferred = {file.source for file in plan.inputs if INDEX not in file.options.get("has", (INDEX,))}
    sources = added((record.statistics.sources for record in records), {})
    num_inferred = sum(found.documents for name, found in sources.items() if name in inferred)
    return {
        "documents_encoded_again": num_checked,
        "largest_id": max(record.max_id for record in records),
        "rows_not_read": assignment.not_read,
    } | ({INFERRED: num_inferred} if inferred else {})


def _compare_totals(plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord], rows: RowCounts) -> None:
    """Compare the rows of the inputs with those that were read, and the spills with the shards."""
    for split, totals in assignment.totals.items():
        mine = [record for record in records if record.split == split]
        documents = sum(record.documents + record.duplicates + record.left_copies for record in mine)
        tokens = sum(record.tokens + record.left_tokens for record in mine)
        _require_equal(f"split {split}: documents in spills and in shards", totals.documents, documents)
        _require_equal(f"split {split}: tokens in spills and in shards", totals.tokens, tokens)
    num_found = sum(astuple(replace(rows, read=0, copies=0)))
    _require_equal("rows read, and rows kept, dropped and skipped", rows.read, num_found)
    known = [partition.num_rows for partition in plan.partitions]
    if plan.spec.limit is None and all(count is not None for count in known):
        _require_equal("rows that the inputs claim, and rows read", sum(c or 0 for c in known), rows.read)


def _validate_shards(plan: BuildPlan, records: Sequence[ShardRecord]) -> None:
    """Validate the measured values of each shard."""
    vocab_size = plan.build.tokenizer.vocab_size
    texts = {file.source for file in plan.inputs if not (file.holds_conversations or file.has_masks)}
    for record in records:
        name, bad_ends = record.name, record.bad_ends
        if record.max_id >= vocab_size:
            raise CheckError(f"shard {name}: id {record.max_id} in a vocabulary of {vocab_size}; {_NEXT_STEP}")
        if bad_ends:
            raise CheckError(f"shard {name}: {bad_ends} documents do not end with end-of-text; {_NEXT_STEP}")
        if plan.build.has_classes:
            _validate_mask(record, texts)


def row_counts(assignment: Assignment, records: Sequence[ShardRecord]) -> RowCounts:
    """Return the manifest's `rows`: the number of rows read, and how many of them were kept, dropped or skipped."""
    total = added(assignment.encoded.values(), EncodedCounts(0, 0, 0))
    removed = added((counts.removed for counts in assignment.marks.values()), dict[str, DocumentCounts]())
    excluded = removed.pop(EXCLUDED, DocumentCounts(0, 0)).documents
    return RowCounts(
        read=total.rows,
        kept=sum(record.documents - record.copies for record in records),
        duplicates=sum(record.duplicates for record in records),
        filtered=total.filtered,
        excluded=excluded,
        marked=sum(counts.documents for counts in removed.values()),
        copies=sum(record.copies for record in records),
        quarantined=assignment.quarantined,
    )


def _require_equal(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise CheckError(f"{what}: {expected:,} and {found:,} differ; {_NEXT_STEP}")


def _validate_mask(record: ShardRecord, text_sources: set[str]) -> None:
    """Validate that each token has a class, and that just those of texts have the role of text."""
    counts = {int(number): count for number, count in record.statistics.classes.items()}
    _require_equal(f"shard {record.name}: tokens, and classes in its mask", record.tokens, sum(counts.values()))
    texts = sum(found.tokens for name, found in record.statistics.sources.items() if name in text_sources)
    plain = sum(count for number, count in counts.items() if number & ROLE_BITS == PLAIN_TEXT)
    _require_equal(f"shard {record.name}: tokens of texts, and those with this role in its mask", texts, plain)
