"""The jobs that a plan leaves to do, in batches (label, jobs); a task runs one batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby

from tokenloom.storage.work.assignment import Assignment, ShardRange, SpillEntry
from tokenloom.tasks.encoding.encoders import ONLY_REFERENCE, EncodingRules
from tokenloom.tasks.encoding.tokenization import TokenizeJob
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.planning.plan import BuildPlan, Partition, partitions_by_source
from tokenloom.tasks.publishing.check import CheckJob
from tokenloom.tasks.rows.checked_rows import NUM_CHECKED, WINDOW_SHARE
from tokenloom.tasks.rows.rules import RulesJob
from tokenloom.tasks.running.batching import MAX_SMALL_TASKS, WeightedJob, batch_jobs
from tokenloom.tasks.shuffling.shuffle import ShuffleJob
from tokenloom.tokenizers.fast.machine_check import this_machine
from tokenloom.tokenizers.fast.tokenizer import FIRST_TEXTS, NO_CHECK, Check

_TASK_BYTES = 64_000_000
_CUT_FILES = 500
_SAMPLE_BYTES = 1_100_000  # least text that both libraries encode, per build
_CHECK_DOCUMENTS = 50  # documents that a task encodes again, if it encodes any
_DOCUMENT_TOKENS = 50_000  # checking a document costs as much as shuffling so many tokens


def cut_batches(plan: BuildPlan, num_workers: int) -> list[tuple[str, list[InputFile]]]:
    """Return the inputs to cut into partitions, for cut_file."""
    return batch_jobs(
        [WeightedJob(file.path, file, 1) for file in plan.inputs], num_workers, _CUT_FILES, MAX_SMALL_TASKS
    )


def tokenize_batches(plan: BuildPlan, num_workers: int) -> list[tuple[str, list[TokenizeJob]]]:
    """Return the partitions to encode, for tokenize_partition."""
    jobs = [
        WeightedJob(_partition_label(plan, part), tokenize_job(plan, part), part.num_bytes) for part in plan.missing
    ]
    return batch_jobs(jobs, num_workers, _TASK_BYTES)


def _partition_label(plan: BuildPlan, partition: Partition) -> str:
    """Return the file of a partition, and its row groups or bytes."""
    return f"{plan.inputs[partition.input_index].path} [{partition.start}, {partition.end})"


def tryout_batches(plan: BuildPlan) -> list[tuple[str, list[TokenizeJob]]]:
    """Return the partitions of each source, with the limit of a try-out, for tokenize_tryout."""
    return [
        (
            plan.inputs[parts[0].input_index].source,
            [replace(tokenize_job(plan, part), limit=plan.spec.limit) for part in parts],
        )
        for parts in partitions_by_source(plan)
    ]


def tokenize_job(plan: BuildPlan, partition: Partition) -> TokenizeJob:
    """Return the job that encodes a partition."""
    return TokenizeJob(
        store=plan.store,
        spill_name=partition.spill_name,
        file=plan.inputs[partition.input_index],
        part=partition,
        rules=rules_job(plan),
        definition=plan.definition,
        tokenizer_fingerprint=plan.tokenizer.fingerprint,
        encoding=encoding_rules(plan),
        chat=plan.chat_of(plan.inputs[partition.input_index]),
    )


def encoding_rules(plan: BuildPlan) -> EncodingRules:
    """Return how a build may encode."""
    return EncodingRules(plan.version, plan.choice.proof, this_machine(), Check(sample_share(plan)))


def sample_share(plan: BuildPlan) -> float:
    """Return the share of the text that both libraries encode: 0.1 %, or about 1 MB of a small input."""
    return min(1.0, max(0.001, _SAMPLE_BYTES / max(1, plan.missing_bytes)))


def rules_job(plan: BuildPlan) -> RulesJob:
    """Return the document rules of a build as plain values."""
    documents = plan.spec.documents
    return RulesJob(
        min_chars=documents.min_chars,
        max_chars=documents.max_chars,
        max_bytes=documents.max_bytes,
        on_error=documents.on_error,
        transform=documents.transform.function if documents.transform else None,
        deduplicate=documents.deduplicate,
        seed=plan.spec.seed,
        shares=plan.spec.split_shares(),
        without_target=documents.without_target,
    )


def shuffle_batches(plan: BuildPlan, assignment: Assignment, num_workers: int) -> list[tuple[str, list[ShuffleJob]]]:
    """Return the shards to make, for shuffle_shard."""
    jobs = [
        WeightedJob(shard.name, _shuffle_job(plan, shard, position), max(shard.num_tokens, 1))
        for position, shard in enumerate(assignment.shards)
    ]
    return batch_jobs(jobs, num_workers, 1)


def _shuffle_job(plan: BuildPlan, shard: ShardRange, position: int) -> ShuffleJob:
    info = {
        "dataset": plan.spec.dataset,
        "eot_id": plan.tokenizer.eot_id,
        "seed": plan.spec.seed,
        "shard_index": shard.shard_index,
        "split": shard.split,
        "tokenizer": plan.tokenizer.name,
        "tokenizer_fingerprint": plan.tokenizer.fingerprint,
        "vocab_size": plan.tokenizer.vocab_size,
    }
    return ShuffleJob(
        store=plan.store,
        version=plan.version,
        position=position,
        deduplicate=plan.spec.documents.deduplicate,
        excludes=plan.excluded is not None,
        has_ids=any(file.options.get("id") for file in plan.inputs),
        has_classes=plan.has_classes,
        vocab_size=plan.tokenizer.vocab_size,
        eot_id=plan.tokenizer.eot_id,
        info=info,
    )


def check_batches(plan: BuildPlan, assignment: Assignment, num_workers: int) -> list[tuple[str, list[CheckJob]]]:
    """Return the partitions of which documents are encoded again, for check_partition."""
    num_bytes = sum(entry.num_bytes for entry in assignment.spills)
    counts = Counter(partition.input_index for partition in plan.partitions)
    num_checked = min(NUM_CHECKED, sum(total.documents for total in assignment.totals.values()))
    jobs = []
    for (input_index, _), entries in groupby(assignment.spills, lambda entry: (entry.input_index, entry.name)):
        spills = tuple(entries)
        weight = max(1, num_checked * sum(entry.num_bytes for entry in spills) // num_bytes)
        part_bytes = plan.inputs[input_index].num_bytes // counts[input_index]
        near_bytes = part_bytes if spills[0].checked.are_everywhere else part_bytes // WINDOW_SHARE
        job = _check_job(plan, assignment, spills, weight * _DOCUMENT_TOKENS, near_bytes)
        jobs.append(WeightedJob(plan.inputs[input_index].path, job, weight))
    return batch_jobs(jobs, num_workers, _CHECK_DOCUMENTS, MAX_SMALL_TASKS)


def _check_rules(plan: BuildPlan, assignment: Assignment) -> EncodingRules:
    """Return how the check encodes: as the build did, since the reference might take as long as the rest of the build.

    The reference encodes some of it too, unless it has encoded a full sample of this build's text before.
    """
    if not assignment.encoders:
        return ONLY_REFERENCE
    has_sample = plan.missing_bytes >= _SAMPLE_BYTES
    return replace(encoding_rules(plan), check=NO_CHECK if has_sample else FIRST_TEXTS)


def _check_job(
    plan: BuildPlan, assignment: Assignment, spills: tuple[SpillEntry, ...], progress_tokens: int, near_bytes: int
) -> CheckJob:
    return CheckJob(
        store=plan.store,
        spills=spills,
        file=plan.inputs[spills[0].input_index],
        definition=plan.definition,
        tokenizer_fingerprint=plan.tokenizer.fingerprint,
        transform=plan.spec.documents.transform.function if plan.spec.documents.transform else None,
        rules=_check_rules(plan, assignment),
        progress_tokens=progress_tokens,
        near_bytes=near_bytes,
        chat=plan.chat_of(plan.inputs[spills[0].input_index]),
    )
