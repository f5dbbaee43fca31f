"""The jobs that a plan leaves to do, in batches (label, jobs); a task runs one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.storage.work.assignment import Assignment, ShardRange
from tokenloom.storage.work.shard_records import ShardRecord
from tokenloom.tasks.encoding.encoders import ONLY_REFERENCE, EncodingRules, encoding_tokenizer
from tokenloom.tasks.encoding.tokenization import TokenizeJob
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.planning.plan import BuildPlan, Partition, partitions_by_source
from tokenloom.tasks.rows.rules import RulesJob
from tokenloom.tasks.running.batching import MAX_SMALL_TASKS, WeightedJob, batch_jobs
from tokenloom.tasks.shuffling.shuffle import ShuffleJob
from tokenloom.tasks.verification.sample import RUN_DOCUMENTS, SampleJob, choose_documents, divide_by_input
from tokenloom.tokenizers.fast.machine_check import this_machine
from tokenloom.tokenizers.fast.tokenizer import FIRST_TEXTS, NO_CHECK, Check

_TASK_BYTES = 64_000_000
_CUT_FILES = 500
_SAMPLE_BYTES = 1_100_000  # least text that both libraries encode, per build


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


def check_batches(
    plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord], num_workers: int
) -> list[tuple[str, list[SampleJob]]]:
    """Return the documents to encode again, for compare_documents; errors as choose_documents.

    They are encoded as the build did, since the reference might take as long as the rest of the build. It encodes some
    of them too, unless it has encoded a full sample of this build's text before.
    """
    rules = ONLY_REFERENCE
    if assignment.encoders:
        check = NO_CHECK if plan.missing_bytes >= _SAMPLE_BYTES else FIRST_TEXTS
        rules = replace(encoding_rules(plan), check=check)
    load = partial(encoding_tokenizer, plan.definition, plan.tokenizer.fingerprint, rules)
    transform = plan.spec.documents.transform.function if plan.spec.documents.transform else None
    shards = [StoredShard(plan.store, plan.version, record.entry()) for record in records]
    jobs = []
    for documents in divide_by_input(choose_documents(shards, len(plan.inputs)), plan.inputs):
        file = plan.inputs[documents[0].input_index]
        job = SampleJob(file, documents, transform, plan.chat_of(file), load)
        jobs.append(WeightedJob(file.path, job, len(documents)))
    return batch_jobs(jobs, num_workers, RUN_DOCUMENTS, MAX_SMALL_TASKS)
