"""Validate: what must hold before a version becomes visible.

Counts and ids were measured while the shards were written; here they are summed and compared. 1,000 documents,
chosen by hash, are read again from their source, encoded again and compared id by id with what stands in the
shards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.errors import CheckError, InputError, StoreError, of_source
from tokenloom.storage.formats.keys import content_hashes
from tokenloom.storage.formats.shard import token_dtype
from tokenloom.storage.versions.assignment import Assignment
from tokenloom.storage.versions.versions import version_path
from tokenloom.tasks.inputs import InputFile, check_all_unchanged, check_unchanged
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.rows.rules import Place
from tokenloom.tasks.running import progress
from tokenloom.tasks.tokenization import job_tokenizer
from tokenloom.tasks.verification.reread import read_rows, sharing_blocks
from tokenloom.tasks.verification.samples import SAMPLE_DTYPE, hash_of_ids, sample_field
from tokenloom.tokenizers.base import text_bytes

_CHANGED = "nothing was published; the file changed while the build ran: build again when it is complete"
_UNSTEADY = (
    "nothing was published; documents.transform gave another text for the same row: make it depend on the text alone, "
    "change its version, and build again"
)
_NEXT_STEP = "nothing was published; please report this, with build.json of a version that was"


@dataclass(frozen=True)
class CheckJob:
    """Documents of one input to encode again: (shard name, row of SAMPLE_DTYPE) each."""

    file: InputFile
    definition: dict[str, Any]
    tokenizer_fingerprint: str
    transform: str | None
    samples: list[tuple[str, tuple[int, ...]]]


def choose_samples(
    plan: BuildPlan, records: Sequence[dict[str, Any]], num_samples: int, num_jobs: int
) -> list[CheckJob]:
    """Choose documents of the build by hash, and group them for reading.

    Args:
        plan: of the build.
        records: of all shards.
        num_samples: documents to choose, those with the least hashes.
        num_jobs: about how many jobs to make of the documents of a file that is cut into partitions.
    """
    proposed = [(item, record["name"]) for record in records for item in record["sampled"]]
    by_input: defaultdict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for item, name in sorted(proposed, key=lambda pair: tuple(pair[0]))[:num_samples]:
        by_input[sample_field(item, "input_index")].append((name, tuple(item)))
    transform = plan.spec.documents.transform.function if plan.spec.documents.transform else None
    num_partitions = Counter(partition.input_index for partition in plan.partitions)
    jobs = []
    for i, samples in sorted(by_input.items()):
        samples.sort(key=lambda sample: sample_field(sample[1], "row"))
        can_cut = len(by_input) < 2 * num_jobs and num_partitions[i] > 1
        for part in _parts(samples, num_jobs if can_cut else 1):
            file, fingerprint = plan.inputs[i], plan.tokenizer["fingerprint"]
            jobs.append(CheckJob(file, plan.definition, fingerprint, transform, part))
    return jobs


def _parts(items: list[Any], count: int) -> list[list[Any]]:
    size = -(-len(items) // count)
    return [items[start : start + size] for start in range(0, len(items), size)]


def check_documents(job: CheckJob) -> int:
    """Encode documents again from their source and compare them with the shards; return how many.

    Raises:
        CheckError: content or ids differ, or a row is gone.
    """
    samples = np.array([item for _, item in job.samples], SAMPLE_DTYPE)
    wanted = {
        int(row): (name, sample) for row, (name, _), sample in zip(samples["row"], job.samples, samples, strict=True)
    }
    progress.report(progress.Working(f"reading documents of {job.file.url} again"))
    found = 0
    with of_source(job.file.source), sharing_blocks(job.file, len(wanted)):
        for texts, rows, place in read_rows(job.file, sorted(wanted), job.transform):
            _compare(job, texts, [wanted[row] for row in rows], place)
            found += len(rows)
            progress.report(progress.Advanced(len(rows), 0, 0, len(rows)))
    if found != len(wanted):
        check_unchanged(job.file)
        raise CheckError(f"{job.file.url}: {len(wanted) - found} of its rows are gone since they were read; {_CHANGED}")
    return found


def _compare(job: CheckJob, texts: pa.Array, samples: list[tuple[str, Any]], place: Place) -> None:
    """Raise CheckError unless the texts' hashes and ids are what stands in the shards; both in the same order."""
    tokenizer = job_tokenizer(job.definition, job.tokenizer_fingerprint)
    texts = texts.fill_null("")
    content = content_hashes(*text_bytes(texts))
    encoded = tokenizer.encode(texts, token_dtype(tokenizer.vocab_size))
    ids = np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1])
    for (name, sample), hashes, again in zip(samples, content, ids, strict=True):
        start = int(sample["start"])
        same_text = hashes.tolist() == [sample["content_high"], sample["content_low"]]
        where = place(int(sample["row"]))
        if not same_text:
            check_unchanged(job.file)
            why = _CHANGED if job.transform is None else _UNSTEADY
            raise CheckError(f"{where}: its text differs from shard {name} at token {start}; {why}")
        if len(again) != sample["num_tokens"] or hash_of_ids(again) != sample["ids"]:
            raise CheckError(f"{where}: encoded again, its ids differ from shard {name} at token {start}; {_NEXT_STEP}")


def validate_build(
    plan: BuildPlan, assignment: Assignment, records: Sequence[dict[str, Any]], num_chosen: int, num_checked: int
) -> dict[str, Any]:
    """Check that a build is complete and right; return the measured values for build.json.

    Args:
        plan: of the build.
        assignment: of its shards.
        records: of all shards.
        num_chosen: documents that choose_samples chose.
        num_checked: documents that `check_documents` compared.

    Raises:
        CheckError: something does not hold; it says what, with both numbers.
        InputError: an input changed while the build ran.
    """
    check_all_unchanged(plan.spec, plan.inputs)
    for split, totals in assignment.totals.items():
        mine = [record for record in records if record["split"] == split]
        documents = sum(record["documents"] + record["duplicates"] + record["excluded"] for record in mine)
        tokens = sum(record["tokens"] + record["left_tokens"] for record in mine)
        _check_equal(f"split {split}: documents in spills and in shards", totals["documents"], documents)
        _check_equal(f"split {split}: tokens in spills and in shards", totals["tokens"], tokens)
    rows = row_counts(assignment, records)
    _check_equal("rows read, and those of every fate", rows["read"], sum(rows.values()) - rows["read"])
    known = [partition.num_rows for partition in plan.partitions]
    if plan.spec.limit is None and all(count is not None for count in known):
        _check_equal("rows that the inputs claim, and rows read", sum(c or 0 for c in known), rows["read"])
    folder = version_path(plan.version)
    lengths = {split: plan.store.lengths(f"{folder}/{split}") for split in assignment.totals}
    for record in records:
        name = record["name"].rpartition("/")[2]
        num_bytes = lengths[record["split"]].get(f"{name}.tok")
        if num_bytes is None:
            place = plan.store.place(f"{folder}/{record['name']}.tok")
            raise StoreError(f"{place}: gone since it was written; nothing was published; run the same command again")
        _check_shard(plan, record, num_bytes)
    _check_equal("documents chosen to be encoded again, and encoded", num_chosen, num_checked)
    if not rows["kept"]:
        raise InputError(f"{plan.spec.documents.exclude}: it excludes every document (documents.exclude); check it")
    return {
        "documents_encoded_again": num_checked,
        "largest_id": max(record["max_id"] for record in records),
        "rows_not_read": assignment.rows["not_read"],
    }


def row_counts(assignment: Assignment, records: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the manifest's `rows`: what became of every row read."""
    return {
        "read": assignment.rows["read"],
        "kept": sum(record["documents"] for record in records),
        "duplicates": sum(record["duplicates"] for record in records),
        "filtered": assignment.rows["filtered"],
        "excluded": sum(record["excluded"] for record in records),
        "quarantined": assignment.rows["quarantined"],
    }


def _check_equal(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise CheckError(f"{what}: {expected:,} and {found:,} differ; {_NEXT_STEP}")


def _check_shard(plan: BuildPlan, record: dict[str, Any], num_bytes: int) -> None:
    name = record["name"]
    vocab_size = plan.tokenizer["vocab_size"]
    if record["max_id"] >= vocab_size:
        raise CheckError(f"shard {name}: id {record['max_id']} in a vocabulary of {vocab_size}; {_NEXT_STEP}")
    if record["bad_ends"]:
        raise CheckError(f"shard {name}: {record['bad_ends']} documents do not end with end-of-text; {_NEXT_STEP}")
    _check_equal(f"shard {name}: bytes written and in the store", record["bytes"], num_bytes)
