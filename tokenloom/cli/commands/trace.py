"""`tokenloom trace`: show the documents in a batch or a sample, with their source rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, TypeAlias

from tokenloom.cli.arguments import Argument, OneOf, count
from tokenloom.cli.loader_arguments import (
    TracedLoader,
    as_usage_errors,
    make_steps,
    open_dataset,
    open_stream,
    option,
)
from tokenloom.cli.output import Output, Result, shown_origin
from tokenloom.errors import SpecError, one_line
from tokenloom.reader.arguments import DEFAULT_CHARS
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.reader.trace import TracedDocument, TracedSample

#: the version, None for a mixture; its samples; a title
_Traced: TypeAlias = "tuple[str | None, list[TracedSample], str]"
_WHAT = OneOf(required=True)


def _step(text: str) -> str:
    """Check a step: an integer of at least 0, or one after a plus sign."""
    if not re.fullmatch(r"\+?[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not an integer in [0, 10**18), alone or after a +")
    return text


def run(
    reference: Annotated[str | None, Argument("REF")] = None,
    *,
    step: Annotated[str | None, Argument("N", _step, one_of=_WHAT)] = None,
    sample: Annotated[int | None, Argument("G", count, one_of=_WHAT)] = None,
    chars: Annotated[int, Argument("N", count)] = DEFAULT_CHARS,
    loader: TracedLoader,
    out: Output,
) -> Result:
    """Show the documents in a batch or a sample.

    Args:
        reference: the version: STORE/DATASET@TAG_OR_VERSION (default: @latest); may be omitted with --state and --store
        step: a training step, from 0, counted from the start of the stream; +N, with --state: counted from the state,
            so +0 is the step that comes next
        sample: a sample of the split by its index: dataset[G], whatever the order of a loader
        chars: characters of each document's text, 0 for none
    """
    if sample is not None:
        traced = _trace_sample(reference, loader, sample, chars)
    else:
        assert step is not None  # the parser requires one of them
        traced = _trace_step(reference, loader, step, chars)
    shown, samples, title = traced
    out.line(title)
    _print(out, samples)
    return Result({"reference": shown, "samples": samples})


def _trace_sample(reference: str | None, loader: TracedLoader, sample: int, chars: int) -> _Traced:
    """Trace a sample of a split in natural order."""
    for name in loader.given:
        if name not in ("split", "seq_len", "packing"):
            raise SpecError(f"{option(name)}: --sample counts the samples of the split itself; omit it")
    data = open_dataset(reference, loader)
    if sample >= len(data):
        raise SpecError(f"--sample {sample}: the split has {counted(len(data), 'sample')}, from 0")
    title = f"{data.reference}, split {data.split}, samples of {counted(data.seq_len, 'token')} ({data.packing})"
    return data.reference, data.trace(sample, chars)["samples"], title


def _trace_step(reference: str | None, loader: TracedLoader, step: str, chars: int) -> _Traced:
    """Trace the batch of a rank, or those of all ranks, in a step."""
    from tokenloom.reader.trace import step_position, trace_all_ranks, trace_batch

    stream, taken = open_stream(reference, loader)
    if step.startswith("+") and loader.state is None:
        raise SpecError(f"--step {step}: a step after a state needs --state")
    steps = make_steps(loader, stream.num_samples)
    with as_usage_errors():
        position = step_position(steps, int(step), taken if step.startswith("+") else 0)
    trace = trace_all_ranks if loader.rank is None else trace_batch
    samples = trace(stream, steps, position, chars)
    datasets = {name: member.dataset for name, member in stream.members.items()}
    alone = datasets.get(None)
    source = f"{alone.reference}, split {alone.split}" if alone else f"mixture of {', '.join(map(str, datasets))}"
    number = f"{'+' * step.startswith('+')}{int(step):,}"
    title = f"{source}: step {number} of {_whose(loader)}, {counted(len(samples), 'sample')}"
    return alone.reference if alone else None, samples, title


def _whose(loader: TracedLoader) -> str:
    """Return "rank 1 of 4", "all 4 ranks" or "the only rank"."""
    rank, world_size = loader.rank, loader.world_size or 1
    if world_size == 1:
        return "the only rank"
    return f"all {world_size:,} ranks" if rank is None else f"rank {rank:,} of {world_size:,}"


def _print(out: Output, samples: list[TracedSample]) -> None:
    for sample in samples:
        rank = f", rank {sample['rank']}" if "rank" in sample else ""
        member = f", of {sample['member']}" if "member" in sample else ""
        out.line(f"--- sample {sample['sample']:,}, number {sample['index']:,} of {sample['shard']}{rank}{member}")
        for document in sample["documents"]:
            out.line(_described(document))
            if document["text"]:
                out.line(f"      {one_line(document['text'])}")


def _described(document: TracedDocument) -> str:
    start, end, begin = document["start"], document["end"], document["document_start"]
    part = f"tokens {begin:,} to {begin + end - start:,} of {document['num_tokens']:,}"
    if "targets" in document:
        part += f", {document['targets']:,} learned"
    return f"  {start:>6,} to {end:>6,}  {shown_origin(document)}, {part}, content {document['content']}"
