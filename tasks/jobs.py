"""Jobs: what a plan leaves to do, cut into pieces that workers take. The grouping changes no byte."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.tasks.assign import ShardRange
from tokenloom.tasks.plan import BuildPlan, Partition
from tokenloom.tasks.shuffle import ShuffleJob
from tokenloom.tasks.tokenization import DocumentRulesJob, TokenizeJob, tokenize_partition
from tokenloom.tasks.validate import samples_per_shard

_MAX_TASKS = 400  # a run of more task runs is slow to show and to keep
_TASK_BYTES = 64_000_000


def tokenize_batches(plan: BuildPlan, num_workers: int) -> list[tuple[str, list[TokenizeJob]]]:
    """Group the partitions to encode, in order, into (label, jobs) of some seconds of work each."""
    total = sum(partition.num_bytes for partition in plan.missing)
    most = max(min(_TASK_BYTES, total // (4 * max(1, num_workers))), total // _MAX_TASKS, 1)
    batches: list[tuple[str, list[TokenizeJob]]] = []
    num_bytes = most
    for partition in plan.missing:
        if num_bytes >= most:
            batches.append((plan.inputs[partition.input_index].path, []))
            num_bytes = 0
        batches[-1][1].append(_tokenize_job(plan, partition))
        num_bytes += max(partition.num_bytes, 1)
    return batches


def tokenize_partitions(jobs: list[TokenizeJob]) -> None:
    """Encode several partitions, one after the other."""
    for job in jobs:
        tokenize_partition(job)


def _tokenize_job(plan: BuildPlan, partition: Partition) -> TokenizeJob:
    file, documents = plan.inputs[partition.input_index], plan.spec.documents
    rules = DocumentRulesJob(
        min_chars=documents.min_chars,
        max_bytes=documents.max_bytes,
        deduplicate=documents.deduplicate,
        seed=plan.spec.seed,
        shares=plan.spec.split_shares(),
    )
    return TokenizeJob(
        store=str(plan.store.root),
        spill=partition.spill,
        url=file.url,
        fingerprint=file.fingerprint,
        options=file.options,
        start=partition.start,
        end=partition.end,
        rules=rules,
        definition=plan.definition,
        tokenizer_fingerprint=plan.tokenizer["fingerprint"],
    )


def shuffle_jobs(plan: BuildPlan, shards: Sequence[ShardRange]) -> list[tuple[str, ShuffleJob]]:
    """Return (label, job) of every shard."""
    return [(shard.name, _shuffle_job(plan, shard, i, len(shards))) for i, shard in enumerate(shards)]


def _shuffle_job(plan: BuildPlan, shard: ShardRange, position: int, num_shards: int) -> ShuffleJob:
    info = {
        "dataset": plan.spec.dataset,
        "eot_id": plan.tokenizer["eot_id"],
        "seed": plan.spec.seed,
        "shard_index": shard.shard_index,
        "split": shard.split,
        "tokenizer": plan.tokenizer["name"],
        "tokenizer_fingerprint": plan.tokenizer["fingerprint"],
        "vocab_size": plan.tokenizer["vocab_size"],
    }
    return ShuffleJob(
        store=str(plan.store.root),
        version=plan.version,
        position=position,
        deduplicate=plan.spec.documents.deduplicate,
        vocab_size=plan.tokenizer["vocab_size"],
        eot_id=plan.tokenizer["eot_id"],
        info=info,
        num_samples=samples_per_shard(num_shards),
    )
