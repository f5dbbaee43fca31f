"""A description of how a loader makes a batch, as text."""

from __future__ import annotations

from tokenloom.reader.order import Steps
from tokenloom.reader.shards.split_samples import SplitSamples
from tokenloom.reader.streams import DatasetStream, MixtureStream, Stream
from tokenloom.wording import counted


def describe(stream: Stream, steps: Steps, device: str, prefetch: int) -> str:
    """Return the way from shards to a batch, with counts, shapes and types; see TokenLoader.describe."""
    form, batch_size = stream.format, steps.batch_size
    tokens = f"({batch_size}, {form.row_tokens}) {form.dtype.name}"
    ids = f"({batch_size}, {form.seq_len})"
    fields = "".join(f", {name}" for name in form.fields)
    made = f"{prefetch} made ahead by a thread" if prefetch else "up to eight made when one is requested"
    lines = [
        *(line for name, member in _members(stream).items() for line in _dataset_lines(name, member)),
        *_mixture_lines(stream),
        f"ranks     rank {steps.ranks.rank} of {steps.ranks.world_size} (from {steps.ranks.origin}): positions g with "
        f"g % {steps.ranks.world_size} == {steps.ranks.rank}",
        f"rows      {tokens}, copied from the maps; read ahead in blocks of {stream.block_bytes // 1024:,} KiB",
        f"batch     input_ids, labels ({form.labels}) {ids} int64{fields} on {device}; {made}",
    ]
    return "\n".join(lines)


def _members(stream: Stream) -> dict[str, DatasetStream]:
    if isinstance(stream, MixtureStream):
        return stream.members
    return {"": stream} if isinstance(stream, DatasetStream) else {}


def _dataset_lines(name: str, stream: DatasetStream) -> list[str]:
    data, order = stream.dataset, stream.order
    lanes = f", {order.lanes} lanes" if order.name == "block" else ""
    return [
        *([f"member    {name}"] if name else []),
        f"shards    {data.reference}, split {data.split}: {_shards(data)}",
        f"packing   {data.packing}: {counted(len(data), 'sample')} of {counted(data.seq_len, 'token')} per epoch",
        f"order     {order.name}{lanes}, seed {order.seed}",
    ]


def _shards(data: SplitSamples) -> str:
    dtype, files = data.format.dtype.name, data.files
    way = f"downloaded into {files.cache.folder}" if files.cache is not None else "mapped from the store"
    return f"{counted(len(files.entries), 'file')}, {counted(data.num_tokens, 'token')} {dtype}, {way}"


def _mixture_lines(stream: Stream) -> list[str]:
    if not isinstance(stream, MixtureStream):
        return []
    lines = []
    for stage in stream.schedule.stages:
        total = sum(stage.weights)
        weights = zip(stream.members, stage.weights, strict=True)
        shares = ", ".join(f"{name} {weight / total:.4g}" for name, weight in weights)
        lines.append(f"mixture   from sample {stage.start:,}: {shares}")
    return lines
