"""Validate a version before it becomes visible.

Counts and ids were measured while the shards were written; here they are summed and compared. 1,000 documents,
chosen by hash, are read from their source again, encoded again and compared with the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass

from tokenloom.errors import CheckError, EncoderMismatch, InputError, ReencodingMismatch, StoreError, of_source
from tokenloom.storage.formats.manifest import RowCounts
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.work.assignment import Assignment
from tokenloom.storage.work.shard_records import ShardRecord
from tokenloom.tasks.encoders import EncodingRules, encoding_again
from tokenloom.tasks.inputs import check_all_unchanged, check_unchanged
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.verification.reencoding import Comparison, ReencodeJob, compare_with_source
from tokenloom.tasks.verification.sampling import SampledDocument, choose_documents
from tokenloom.tokenizers import Tokenizer

_CHANGED = "nothing was published; the file changed while the build ran: build again when it is complete"
_UNSTEADY = (
    "nothing was published; documents.transform returned another text for the same row: make it depend only on "
    "the text, change its version, and build again"
)
_NEXT_STEP = "nothing was published; please report this, with build.json of a version that was"


def reencode_jobs(plan: BuildPlan, records: Sequence[ShardRecord], num_jobs: int) -> list[ReencodeJob]:
    """Choose documents of the build by hash, and group them for reading.

    Args:
        plan: the build's plan.
        records: the records of all shards.
        num_jobs: about how many jobs to make of the documents of a file that is cut into partitions.
    """
    proposed = (SampledDocument.from_row(row, record.name) for record in records for row in record.sampled)
    by_input = choose_documents(proposed)
    transform = plan.spec.documents.transform.function if plan.spec.documents.transform else None
    num_partitions = Counter(partition.input_index for partition in plan.partitions)
    jobs = []
    for input_index, documents in by_input.items():
        can_cut = len(by_input) < 2 * num_jobs and num_partitions[input_index] > 1
        part_length = -(-len(documents) // (num_jobs if can_cut else 1))
        for start in range(0, len(documents), part_length):
            file, part = plan.inputs[input_index], documents[start : start + part_length]
            jobs.append(ReencodeJob(file, plan.definition, plan.tokenizer.fingerprint, None, transform, part))
    return jobs


@dataclass(frozen=True)
class CheckJob:
    """Documents of a build to encode again; see encoding_again for `rules` and `encoders`."""

    reencode: ReencodeJob
    rules: EncodingRules
    encoders: frozenset[str]


def check_encoding(job: CheckJob) -> int:
    """Encode documents again from their source and compare them with the shards; return how many.

    Raises:
        CheckError: content or ids differ, or a row no longer exists.
    """
    reencode = job.reencode
    with of_source(reencode.file.source), _encoding_again(job) as tokenizer:
        found = compare_with_source(reencode, tokenizer, lambda document: document.ids_hash)
        for comparison in found:
            _check_comparison(reencode, comparison)
    if num_gone := len(reencode.documents) - len(found):
        check_unchanged(reencode.file)
        raise CheckError(f"{reencode.file.url}: {num_gone} of its rows are gone since they were read; {_CHANGED}")
    return len(found)


@contextmanager
def _encoding_again(job: CheckJob) -> Iterator[Tokenizer]:
    reencode, first = job.reencode, job.reencode.documents[0]
    fingerprint, name = reencode.tokenizer_fingerprint, f"again-{first.content_high:016x}{first.content_low:016x}"
    try:
        with encoding_again(reencode.definition, fingerprint, job.rules, job.encoders, name) as tokenizer:
            yield tokenizer
    except EncoderMismatch as error:
        raise ReencodingMismatch(str(error), _NEXT_STEP) from error


def _check_comparison(job: ReencodeJob, found: Comparison) -> None:
    where = f"shard {found.document.shard_name} at token {found.document.start}"
    if not found.has_same_text:
        check_unchanged(job.file)
        why = _CHANGED if job.transform is None else _UNSTEADY
        raise CheckError(f"{found.place}: its text differs from {where}; {why}")
    if not found.has_same_ids:
        raise ReencodingMismatch(f"{found.place}: encoded again, its ids differ from {where}", _NEXT_STEP)


def validate_build(
    plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord], num_chosen: int, num_checked: int
) -> dict[str, int]:
    """Check that a build is complete and correct; return the measured values for build.json.

    Args:
        plan: the build's plan.
        assignment: which documents each shard gets.
        records: the records of all shards.
        num_chosen: documents that reencode_jobs chose.
        num_checked: documents that check_encoding compared.

    Raises:
        CheckError: a check failed; the message has both numbers.
        InputError: an input changed while the build ran.
    """
    check_all_unchanged(plan.spec, plan.inputs)
    rows = row_counts(assignment, records)
    _check_totals(plan, assignment, records, rows)
    _check_files(plan, assignment, records)
    _check_equal("documents chosen to be encoded again, and encoded", num_chosen, num_checked)
    if not rows.kept:
        raise InputError(f"{plan.spec.documents.exclude}: documents.exclude drops every document; check that file")
    return {
        "documents_encoded_again": num_checked,
        "largest_id": max(record.max_id for record in records),
        "rows_not_read": assignment.rows.not_read,
    }


def _check_totals(plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord], rows: RowCounts) -> None:
    """Compare what the inputs claim, what was read, what the spills hold, and what the shards hold."""
    for split, totals in assignment.totals.items():
        mine = [record for record in records if record.split == split]
        documents = sum(record.documents + record.duplicates + record.excluded for record in mine)
        tokens = sum(record.tokens + record.left_tokens for record in mine)
        _check_equal(f"split {split}: documents in spills and in shards", totals.documents, documents)
        _check_equal(f"split {split}: tokens in spills and in shards", totals.tokens, tokens)
    _check_equal("rows read, and rows kept, dropped and skipped", rows.read, sum(astuple(rows)) - rows.read)
    known = [partition.num_rows for partition in plan.partitions]
    if plan.spec.limit is None and all(count is not None for count in known):
        _check_equal("rows that the inputs claim, and rows read", sum(c or 0 for c in known), rows.read)


def _check_files(plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord]) -> None:
    """Check the measured values of each shard, and that it is complete in the store."""
    folder = version_path(plan.version)
    lengths = {split: plan.store.lengths(f"{folder}/{split}") for split in assignment.totals}
    for record in records:
        name = record.name.rpartition("/")[2]
        num_bytes = lengths[record.split].get(f"{name}.tok")
        if num_bytes is None:
            place = plan.store.place(f"{folder}/{record.name}.tok")
            raise StoreError(
                f"{place}: deleted since it was written; nothing was published; run the same command again"
            )
        _check_shard(plan, record, num_bytes)


def row_counts(assignment: Assignment, records: Sequence[ShardRecord]) -> RowCounts:
    """Return the manifest's `rows`: the number of rows read, and how many of them were kept, dropped or skipped."""
    return RowCounts(
        read=assignment.rows.read,
        kept=sum(record.documents for record in records),
        duplicates=sum(record.duplicates for record in records),
        filtered=assignment.rows.filtered,
        excluded=sum(record.excluded for record in records),
        quarantined=assignment.rows.quarantined,
    )


def _check_equal(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise CheckError(f"{what}: {expected:,} and {found:,} differ; {_NEXT_STEP}")


def _check_shard(plan: BuildPlan, record: ShardRecord, num_bytes: int) -> None:
    name = record.name
    vocab_size = plan.tokenizer.vocab_size
    if record.max_id >= vocab_size:
        raise CheckError(f"shard {name}: id {record.max_id} in a vocabulary of {vocab_size}; {_NEXT_STEP}")
    if record.bad_ends:
        raise CheckError(f"shard {name}: {record.bad_ends} documents do not end with end-of-text; {_NEXT_STEP}")
    _check_equal(f"shard {name}: bytes written and in the store", record.bytes, num_bytes)
