"""`tokenloom trace`: show the documents in a batch or a sample, with their source rows."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any

from tokenloom.cli.argument_types import count, positive
from tokenloom.cli.loader_arguments import (
    LoaderArguments,
    add_loader_arguments,
    as_usage_errors,
    make_steps,
    open_dataset,
    open_stream,
    option,
)
from tokenloom.cli.output import Output, shown_origin
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError, one_line
from tokenloom.reader.tracing.records import DEFAULT_CHARS, TracedDocument, TracedSample
from tokenloom.wording import counted

_STEP = re.compile(r"\+?[0-9]{1,18}")


@dataclass(frozen=True)
class TraceResult(Result):
    """Samples with their documents; `reference` is None for a mixture, whose samples name their datasets."""

    reference: str | None
    samples: list[TracedSample]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "reference",
        metavar="REF",
        nargs="?",
        help="the version: STORE/DATASET@TAG_OR_VERSION (default: @latest); may be omitted with --state and --store",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--step",
        type=_step,
        metavar="N",
        help="a training step, from 0, counted from the start of the stream; +N, with --state: counted from the state, "
        "so +0 is the step that comes next",
    )
    what.add_argument(
        "--sample",
        type=count,
        metavar="G",
        help="a sample of the split by its index: dataset[G], whatever the order of a loader",
    )
    parser.add_argument(
        "--chars",
        type=count,
        default=DEFAULT_CHARS,
        metavar="N",
        help=f"characters of each document's text, 0 for none (default: {DEFAULT_CHARS})",
    )
    group = add_loader_arguments(parser)
    group.add_argument("--split", help="the split that it reads (default: train)")
    group.add_argument(
        "--rank", type=count, metavar="R", help="show only this rank's batch, in [0, world size) (default: all ranks)"
    )
    group.add_argument("--num-epochs", type=positive, metavar="N", help="where the stream ends (default: endless)")
    group.add_argument(
        "--pad-last",
        action="store_const",
        const=True,
        help="the loader has drop_last=False: with --num-epochs, its last step may be short",
    )


def run(
    reference: str | None, step: str | None, sample: int | None, chars: int, out: Output, **loader: Any
) -> TraceResult:
    """Show the documents in a batch or a sample.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION; None if a state and a store are given.
        step: a step counted from the start of the stream or, after a "+", from the state.
        sample: a sample of the split, if no step is given.
        chars: characters of each document's text; 0 for none.
        out: prints the result.
        loader: the fields of LoaderArguments; without a rank, the batches of all ranks.

    Raises:
        SpecError: an argument is missing or out of range.
        StoreError: the version or split does not exist, or a shard is missing.
        FormatError: a shard or its document table is damaged.
    """
    arguments = LoaderArguments(**loader)
    if sample is not None:
        return _trace_sample(reference, arguments, sample, chars, out)
    assert step is not None  # the parser requires one of them
    return _trace_step(reference, arguments, step, chars, out)


def _trace_sample(
    reference: str | None, arguments: LoaderArguments, sample: int, chars: int, out: Output
) -> TraceResult:
    """Trace a sample of a split in natural order; raise SpecError for an argument that does not say which it is."""
    for name in arguments.given:
        if name not in ("split", "seq_len", "packing"):
            raise SpecError(f"{option(name)}: --sample counts the samples of the split itself; omit it")
    data = open_dataset(reference, arguments)
    if sample >= len(data):
        raise SpecError(f"--sample {sample}: the split has {counted(len(data), 'sample')}, from 0")
    samples = data.trace(sample, chars)["samples"]
    out.line(f"{data.reference}, split {data.split}, samples of {counted(data.seq_len, 'token')} ({data.packing})")
    _print(out, samples)
    return TraceResult(data.reference, samples)


def _trace_step(reference: str | None, arguments: LoaderArguments, step: str, chars: int, out: Output) -> TraceResult:
    """Trace the batch of a rank, or those of all ranks, in a step."""
    from tokenloom.reader.tracing.samples import step_position, trace_all_ranks, trace_batch
    from tokenloom.reader.tracing.sightings import datasets_of

    stream, taken = open_stream(reference, arguments)
    if step.startswith("+") and arguments.state is None:
        raise SpecError(f"--step {step}: a step after a state needs --state")
    steps = make_steps(arguments, stream.num_samples)
    with as_usage_errors():
        position = step_position(steps, int(step), taken if step.startswith("+") else 0)
    trace = trace_all_ranks if arguments.rank is None else trace_batch
    samples = trace(stream, steps, position, chars)
    datasets = {member: own.dataset for member, own in datasets_of(stream)}
    alone = datasets.get(None)
    place = f"{alone.reference}, split {alone.split}" if alone else f"mixture of {', '.join(map(str, datasets))}"
    when = f"{'+' * step.startswith('+')}{int(step):,}"
    out.line(f"{place}: step {when} of {_whose(arguments)}, {counted(len(samples), 'sample')}")
    _print(out, samples)
    return TraceResult(alone.reference if alone else None, samples)


def _whose(arguments: LoaderArguments) -> str:
    """Return "rank 1 of 4", "all 4 ranks" or "the only rank"."""
    rank, world_size = arguments.rank, arguments.world_size or 1
    if world_size == 1:
        return "the only rank"
    return f"all {world_size:,} ranks" if rank is None else f"rank {rank:,} of {world_size:,}"


def _step(text: str) -> str:
    """Return a step: an integer of at least 0, or one after a plus sign."""
    if not _STEP.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer in [0, 10**18), alone or after a +")
    return text


def _print(out: Output, samples: list[TracedSample]) -> None:
    for sample in samples:
        origin = [f"rank {sample['rank']}"] if "rank" in sample else []
        origin += [f"of {sample['member']}"] if "member" in sample else []
        place = f"sample {sample['sample']:,}, number {sample['index']:,} of {sample['shard']}"
        out.line(", ".join(["--- " + place, *origin]))
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
