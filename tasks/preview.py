"""A preview of a build, for `tokenloom plan`: its tokens, documents, disk space and time; its first conversations.

The estimate comes from probes of some partitions: a probe reads the head of one and encodes the start of it. What an
earlier build encoded is known exactly. Of conversations, the first are encoded, to show what a template makes of them
and what is learned.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StoreError
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.statistics import ChatCounts, DocumentCounts
from tokenloom.storage.stores import is_object
from tokenloom.storage.work.records import PartitionRecord, SpillCounts, find_partition_records
from tokenloom.storage.work.spill import TABLE_DTYPE
from tokenloom.tasks.building.assign import check_documents_found, cut_split
from tokenloom.tasks.building.documents import document_encoder, load_for_measuring
from tokenloom.tasks.building.plan import Build, BuildPlan, Partition, partitions_by_source
from tokenloom.tasks.building.tokenization import HELD_BYTES, read_documents
from tokenloom.tasks.costs import COLUMNS, ROW_BYTES, Volume, requests_of
from tokenloom.tasks.quarantine import PartitionTally
from tokenloom.tasks.rules import IDS, keep_documents
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sizes import PIECES_HELD, piece_bytes, runs_of
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.base import BATCH_BYTES
from tokenloom.tasks.sources.files import following_position
from tokenloom.tasks.sources.reader import naming_source, with_line
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.base import text_bytes
from tokenloom.wording import shown_bytes

_NUM_TRIED = 20  # conversations, of which the first may be dropped or bad
NUM_PROBES = 16
READ_BYTES = 16_000_000  # a probe reads about so much text; what readers read ahead (1 MB) counts as read
_ENCODE_BYTES = 1_000_000
_PROBE_SECONDS = 3.0  # a slow transform ends the probe earlier: a short one is good enough
_OTHER_STEPS = 1.15  # all steps take this multiple of the time of encoding (docs/project/notebook/index.md)
_WORKER_BYTES = 400_000_000  # of a worker without documents
_MIN_READ_BYTES, _MAX_PARTITION_BYTES = 2**17, 2_000_000_000
Amounts = NDArray[np.float64]  # (2,) a number of documents, and of their tokens


@dataclass(frozen=True)
class PartitionProbe:
    """The contents of the head of a partition.

    `share` of the partition was read, in (0, 1]; `encoded_bytes` of its text took `seconds` and gave `num_tokens`;
    reading and choosing all that was read took `read_seconds`. `record` counts rows as a partition's record does, see
    check_documents_found; it is None if the partition was not read to its end.
    """

    share: float
    text_bytes: int
    num_documents: int
    encoded_bytes: int
    num_tokens: int
    seconds: float
    read_seconds: float
    record: PartitionRecord | None


@dataclass(frozen=True)
class Estimate:
    """The approximate result of a build, in bytes without its ids.

    `spill_bytes` and `seconds` count partitions that are not encoded yet.
    """

    num_tokens: int
    num_documents: int
    num_shards: int
    num_spills: int
    spill_bytes: int
    shard_bytes: int
    seconds: float
    sampled_bytes: int

    @property
    def disk_bytes(self) -> int:
        """Bytes that the build writes."""
        return self.spill_bytes + self.shard_bytes


def probed_partitions(plan: BuildPlan) -> list[Partition]:
    """Return the partitions to probe: some of each source, evenly spaced."""
    missing = set(plan.missing)
    sources = [parts for all_parts in partitions_by_source(plan) if (parts := [p for p in all_parts if p in missing])]
    probed = []
    for parts in sources:
        count = min(len(parts), max(1, NUM_PROBES // len(sources)))
        probed += [parts[i * len(parts) // count] for i in range(count)]
    return probed


def probe_partition(build: Build, part: Partition) -> PartitionProbe:
    """Read the head of a partition and encode the start of it; errors as tokenize_partition."""
    tokenizer = load_for_measuring(build)
    num_bytes = num_documents = encoded_bytes = num_tokens = 0
    seconds, share, is_whole, begin = 0.0, 1.0, True, time.perf_counter()
    tally = PartitionTally()
    encoder = document_encoder(tokenizer, build.chat_of(part.file))
    with naming_source(part.file.source), following_position() as position:
        for rows in read_documents(build, part, encoder):
            tally.add(rows)
            count = len(text_bytes(rows.texts)[0])
            num_bytes += count
            num_documents += len(rows.rows)
            if encoded_bytes < _ENCODE_BYTES and len(rows.rows):
                first = rows.head(max(1, len(rows.rows) * _ENCODE_BYTES // max(count, _ENCODE_BYTES)))
                start = time.perf_counter()
                num_tokens += len(encoder.encode(first).tokens)
                seconds += time.perf_counter() - start
                encoded_bytes += len(text_bytes(first.texts)[0])
            is_ids = encoder.form is IDS  # whose bytes a partition counts as they are in a batch
            at = None if is_ids else position()
            is_enough = num_bytes >= READ_BYTES and (part.num_rows is not None or at != part.end)  # an array is whole
            if is_enough or time.perf_counter() - begin > _PROBE_SECONDS:
                is_whole = False
                share = _share(part, tally.num_read, at or part.start + num_bytes, by_rows=not is_ids)
                break
    read_seconds = time.perf_counter() - begin - seconds
    spills = [SpillCounts(0, [num_documents], [], checksum="")] if num_documents else []
    record = tally.record(spills) if is_whole else None
    return PartitionProbe(share, num_bytes, num_documents, encoded_bytes, num_tokens, seconds, read_seconds, record)


def _share(part: Partition, num_rows: int, position: int, *, by_rows: bool) -> float:
    """Return the approximate share of a partition that was read: by rows if their number is known, else by bytes."""
    if take := part.file.options.get("take"):
        return min(1.0, num_rows / float(take))
    if by_rows and part.num_rows:
        return min(1.0, num_rows / part.num_rows)
    return min(1.0, max(1, position - part.start) / max(1, part.num_bytes))


def estimate_build(plan: BuildPlan, samples: Sequence[tuple[Partition, PartitionProbe]], num_workers: int) -> Estimate:
    """Return what a build will produce, from probes of its sources and the records of encoded partitions.

    Raises InputError if these cover all rows and hold no document, or no row with a key that the build needs.
    """
    total, new, seconds, num_spills, missing = np.zeros(2), np.zeros(2), 0.0, 0, set(plan.missing)
    records = find_partition_records(plan.build.store, plan.cached)
    check_documents_found(plan, records | {part.spill_name: sample.record for part, sample in samples if sample.record})
    for parts in partitions_by_source(plan):
        names = {part.spill_name for part in parts}
        text_bytes, amounts, text_seconds = _rates([item for item in samples if item[0].spill_name in names])
        for part in parts:
            if part.spill_name in plan.cached:
                record = records.get(part.spill_name)
                if record is not None:
                    total += (record.encoded.documents, record.encoded.tokens)
                    num_spills += len(record.spills)
                continue
            num_bytes = text_bytes * part.num_bytes
            total += amounts * num_bytes
            # A spill ends with the batch of texts that fills it.
            num_spills += -int(-num_bytes // (plan.spec.partition_bytes + BATCH_BYTES // 2))
            if part in missing:  # a file under two names is encoded once
                new += amounts * num_bytes
                seconds += text_seconds * num_bytes
    token_bytes = token_dtype(plan.build.tokenizer.vocab_size).itemsize + plan.build.has_classes
    new += total * bool(runs_of(num_spills))  # runs have all documents of the spills again
    return Estimate(
        num_tokens=round(total[1]),
        num_documents=round(total[0]),
        num_shards=_num_shards(plan, round(total[1])),
        num_spills=num_spills,
        spill_bytes=round(float(np.dot(new, (TABLE_DTYPE.itemsize, token_bytes)))),
        shard_bytes=0 if plan.published else round(float(np.dot(total, (ROW_BYTES, token_bytes)))),
        seconds=seconds * _OTHER_STEPS / max(1, min(num_workers, len(plan.missing))),
        sampled_bytes=sum(sample.text_bytes for _, sample in samples),
    )


def _rates(samples: Sequence[tuple[Partition, PartitionProbe]]) -> tuple[float, Amounts, float]:
    """Return the text for each byte of a source's partitions, and the amounts and seconds for each byte of text."""
    partition_bytes = sum(part.num_bytes * probe.share for part, probe in samples)
    probes = [probe for _, probe in samples]
    text = sum(probe.text_bytes for probe in probes)
    encoded = sum(probe.encoded_bytes for probe in probes)
    if not (text and encoded and partition_bytes):
        return 0.0, np.zeros(2), 0.0
    num_tokens = sum(probe.num_tokens for probe in probes) / encoded
    seconds = sum(probe.seconds for probe in probes) / encoded + sum(probe.read_seconds for probe in probes) / text
    documents = sum(probe.num_documents for probe in probes)
    return text / partition_bytes, np.array([documents / text, num_tokens]), seconds


def _num_shards(plan: BuildPlan, num_tokens: int) -> int:
    shares = enumerate(plan.spec.split_shares())
    totals = [(name, i, DocumentCounts(documents=0, tokens=int(share * num_tokens))) for i, (name, share) in shares]
    return sum(len(cut_split(name, i, total, plan.spec.shard_tokens)) for name, i, total in totals)


def volume_of(plan: BuildPlan, estimate: Estimate, num_workers: int) -> Volume:
    """Return what a build of the plan reads and makes, with so many workers of this machine, to count its requests."""
    build = plan.build
    return Volume(
        num_files=len(plan.inputs),
        input_bytes=sum(file.num_bytes for file in plan.inputs),
        are_remote=any(is_object(file.url) for file in plan.inputs),
        num_partitions=len(plan.partitions),
        num_spills=max(1, estimate.num_spills),
        num_documents=max(1, estimate.num_documents),
        num_tokens=max(1, estimate.num_tokens),
        token_bytes=(token_dtype(build.tokenizer.vocab_size).itemsize, *[1] * build.has_classes),
        has_ids=build.has_ids,
        splits=tuple(share for _, share in plan.spec.split_shares()),
        shard_tokens=plan.spec.shard_tokens,
        num_workers=max(1, num_workers),
        memory=build.memory,
    )


def costs_of(plan: BuildPlan, volume: Volume, hours: float, price: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the JSON object of what a build costs: requests, bytes, memory, time, and dollars if prices are given.

    Args:
        plan: with its partitions.
        volume: that of the plan.
        hours: that it takes on this machine.
        price: dollars for a million reads ("get"), a million writes ("put"), and an hour of this machine ("hour").
    """
    costs = requests_of(volume)
    shapes = [volume.shape(share) for share in volume.splits]
    reads, writes, bytes_read, bytes_written = np.sum(list(costs.values()), axis=0)
    piece = PIECES_HELD * piece_bytes(volume.num_runs or volume.num_spills, volume.memory)
    amounts = {"get": reads / 1e6, "put": writes / 1e6, "hour": hours}
    return {
        "requests": round(reads + writes),
        "steps": {step: dict(zip(COLUMNS, map(round, cost), strict=True)) for step, cost in costs.items()},
        "spills": volume.num_spills,
        "runs": volume.num_runs,
        "pieces": sum(pieces + volume.num_runs * parts for _, pieces, parts in shapes),
        "mean_read_bytes": round(bytes_read / reads),
        "bytes_moved": round(bytes_read + bytes_written),
        "worker_bytes": _WORKER_BYTES + max(2 * min(HELD_BYTES, plan.spec.partition_bytes), piece),
        "machine_hours": round(hours, 4),
        "price": round(sum(price[name] * amount for name, amount in amounts.items()), 2) if price else None,
        "proposed": proposed_sizes(plan, volume),
    }


def proposed_sizes(plan: BuildPlan, volume: Volume) -> dict[str, int]:
    """Return a larger partition_bytes, and shard_tokens if need be, with which the shuffle wants 128 KiB a read.

    Returns {} if it does so as it is, or if no size helps, as where all files are small.
    """
    counts = Counter(part.input_index for part in plan.partitions).values()
    now = plan.spec.partition_bytes
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size == 1 or now * size <= _MAX_PARTITION_BYTES]
    for tokens, size in product((1, 2, 4, 8, 16), sizes):
        spills = max(sum(-(-count // size) for count in counts), volume.num_spills // size)
        changed = volume._replace(num_spills=spills, shard_tokens=tokens * volume.shard_tokens)
        if changed.spill_bytes >= _MIN_READ_BYTES * requests_of(changed)["shuffle"][0]:
            found = {"partition_bytes": now * size, "shard_tokens": changed.shard_tokens}
            return {name: value for name, value in found.items() if value != getattr(plan.spec, name)}
    return {}


def check_disk(plan: BuildPlan, estimate: Estimate) -> None:
    """Raise StoreError if the file system of the store can't hold what the build writes."""
    free = plan.build.store.free_bytes()
    if free is not None and estimate.disk_bytes > free:
        raise StoreError(
            f"{plan.build.store.root}: the build needs about {shown_bytes(estimate.disk_bytes)} but the file system "
            f"has {shown_bytes(free)} free; free some space on it, or choose another store"
        )


@dataclass(frozen=True)
class FirstConversation:
    """A conversation that is encoded: `place` names its row; tokens and classes are (n,), with its end-of-text."""

    place: str
    tokens: NDArray[Any]
    classes: NDArray[np.uint8]


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a source of conversations: what is counted of them, and the first that becomes a document."""

    source: str
    counts: ChatCounts
    shown: FirstConversation | None


def first_rows(build: Build, part: Partition) -> FirstRows:
    """Return what a build makes of the first rows of a source of conversations; runs in a worker.

    Args:
        build: the build.
        part: the first partition of the source.

    Raises TokenloomError as tokenize_partition, except for bad rows, which are passed over.
    """
    with naming_source(part.file.source):
        return _first_rows(build, part, load_for_measuring(build))


def _first_rows(build: Build, part: Partition, tokenizer: Tokenizer) -> FirstRows:
    file = part.file
    rules = replace(build.rules, on_error="skip")
    encoder = document_encoder(tokenizer, build.chat_of(file))
    reader = make_reader({**file.options, "on_error": "skip"})
    place_of = partial(reader.place, file.url)
    batches = each_bounded(reader.read(file.url, part), file.options["max_bytes"], file.url)
    counts = ChatCounts()
    shown = None
    for rows in islice(batches, 1):
        first = keep_documents(rows.head(_NUM_TRIED), rules, place_of, tokenizer, encoder.form)
        for documents in encoder.prepared(iter([first]), "skip", rules.without_target, place_of):
            counts += ChatCounts(dropped=documents.num_without_target)
            if len(documents.rows):
                encoded = encoder.encode(documents)
                assert encoded.classes is not None
                assert encoded.counts is not None
                counts += encoded.counts
                own = slice(int(encoded.num_tokens[0]))
                place = with_line(place_of(int(documents.rows[0])))
                shown = shown or FirstConversation(place, encoded.tokens[own], encoded.classes[own])
    return FirstRows(file.source, counts, shown)
