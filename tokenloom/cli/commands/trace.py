"""`tokenloom trace` and `where`: the documents in a batch or a sample, and the training steps that see a document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from tokenloom.cli.arguments import Argument, OneOf, Ref, SourceSpec, count, integer_in, option
from tokenloom.cli.display import showing_progress
from tokenloom.cli.loader_arguments import (
    LoaderArguments,
    TracedLoader,
    as_usage_errors,
    make_steps,
    open_dataset,
    open_stream,
)
from tokenloom.cli.output import NO, Output, Result, shown_origin
from tokenloom.errors import SpecError, one_line
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.reader.sightings import Sighting
    from tokenloom.reader.trace import TracedDocument, TracedSample
    from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
    from tokenloom.tasks.lookup import Lookup, Lookups

#: the version, None for a mixture; its samples; a title
_Traced: TypeAlias = "tuple[str | None, list[TracedSample], str]"
_WHAT = OneOf(required=True)
_CONTENT = re.compile("[0-9a-fA-F]{32}")
_MAX_EPOCHS = 10_000


def _step(text: str) -> str:
    """Check a step: an integer of at least 0, or one after a plus sign."""
    if not re.fullmatch(r"\+?[0-9]{1,18}", text):
        raise ValueError(f"{text!r} is not an integer in [0, 10**18), alone or after a +")
    return text


def trace(
    reference: Annotated[str | None, Argument("REF")] = None,
    *,
    step: Annotated[str | None, Argument("N", _step, one_of=_WHAT)] = None,
    sample: Annotated[int | None, Argument("G", count, one_of=_WHAT)] = None,
    chars: Annotated[int, Argument("N", count)] = 300,
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

    Example:
        trace store/news --step 1200 --seq-len 1024 --batch-size 8
    """
    if sample is not None:
        traced = _trace_sample(reference, loader, sample, chars)
    else:
        traced = _trace_step(reference, loader, str(step), chars)  # the parser requires one of them
    shown, samples, title = traced
    _add_marks(samples, str(shown))
    out.line(title)
    _print_samples(out, samples)
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
    from tokenloom.reader.trace import step_position, trace_step

    stream, num_seen = open_stream(reference, loader)
    if step.startswith("+") and loader.state is None:
        raise SpecError(f"--step {step}: a step after a state needs --state")
    steps = make_steps(loader, stream.num_samples)
    with as_usage_errors():
        position = step_position(steps, int(step), num_seen if step.startswith("+") else 0)
    ranks = range(steps.ranks.world_size) if loader.rank is None else [loader.rank]
    samples = trace_step(stream, steps, position, ranks, chars)
    datasets = {name: member.dataset for name, member in stream.members.items()}
    alone = datasets.get(None)
    source = f"{alone.reference}, split {alone.split}" if alone else f"mixture of {', '.join(map(str, datasets))}"
    which = "all ranks" if loader.rank is None else f"rank {loader.rank} of {steps.ranks.world_size}"
    title = f"{source}: step {step} of {which}, {counted(len(samples), 'sample')}"
    return alone.reference if alone else None, samples, title


def _add_marks(samples: list[TracedSample], reference: str) -> None:
    """Add their marks to documents of versions that have any; `reference` is that of samples that name no dataset."""
    from tokenloom.storage.versions.document_tables import VersionTables
    from tokenloom.tasks.lookup import Lookups

    names = {sample.get("dataset", reference) for sample in samples}
    lookups = {name: Lookups(VersionTables(*resolve(parse_reference(name))), None) for name in names}
    for sample in samples:
        for document in sample["documents"]:
            if marks := lookups[sample.get("dataset", reference)].marks_of(document)[1]:
                document["marks"] = marks


def _print_samples(out: Output, samples: list[TracedSample]) -> None:
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


def where(
    reference: Ref,
    *,
    content: Annotated[str | None, Argument("HASH", one_of=_WHAT)] = None,
    text: Annotated[str | None, Argument("FILE", one_of=_WHAT)] = None,
    messages: Annotated[str | None, Argument("FILE", one_of=_WHAT)] = None,
    path: Annotated[str | None, Argument("P", one_of=_WHAT)] = None,
    row: Annotated[int | None, Argument("N", count)] = None,
    source: Annotated[str | None, Argument("NAME")] = None,
    spec: SourceSpec = None,
    loader: LoaderArguments,
    epoch: Annotated[int, Argument("E", count)] = 0,
    epochs: Annotated[int, Argument("N", integer_in(1, _MAX_EPOCHS))] = 1,
    out: Output,
) -> Result:
    """Find a document, and the training steps that see it.

    Args:
        content: the hash of its content, 32 hexadecimal digits, as `tokenloom peek` shows it
        text: a UTF-8 file with the text of the document
        messages: a JSON file with the conversation, in any layout
        path: the input file that has it, as `tokenloom inspect --json` lists it; needs --row
        row: with --path: its row in the input; in JSON lines, its byte offset
        source: with --path: the source of the input, if several sources have the path
        epoch: the first epoch to search for steps (default: 0)
        epochs: how many epochs to search, at most 10,000

    Example:
        where store/news --text letter.txt --seq-len 1024 --batch-size 8

    Exit code 3:
        No document was found; `status` in the result says why.
    """
    from tokenloom.storage.versions.document_tables import VersionTables
    from tokenloom.tasks.lookup import Lookups

    if content is not None and not _CONTENT.fullmatch(content):
        raise SpecError(f"--content {content!r}: write 32 hexadecimal digits, as `tokenloom peek` shows them")
    if (path is None) != (row is None) or (source is not None and path is None):
        raise SpecError("--path, --row and --source: --path needs --row, and they need --path")
    tables = VersionTables(*resolve(parse_reference(reference)))
    lookups = Lookups(tables, spec)
    with showing_progress():
        if content is not None:
            lookup = lookups.by_content(content.lower())
        elif text is not None:
            lookup = lookups.by_text(text)
        elif messages is not None:
            lookup = lookups.by_messages(messages)
        else:  # the parser requires one of the four
            lookup = lookups.by_row(source, str(path), row or 0)
    _print_documents(out, tables.reference, lookups, lookup)
    steps: list[Sighting] = []
    if loader.given and lookup.documents:
        steps = _sightings(reference, tables, lookup.documents, loader, range(epoch, epoch + epochs))
        out.line()
        if steps:
            out.table(list(steps[0]), [list(step.values()) for step in steps])
        else:
            out.line("no sample of these epochs has one of its tokens")
    return Result({"reference": tables.reference, **vars(lookup), "steps": steps}, 0 if lookup.documents else NO)


def _sightings(
    reference: str, tables: VersionTables, documents: list[FoundDocument], given: LoaderArguments, epochs: range
) -> list[Sighting]:
    """Find the steps that see the documents."""
    from tokenloom.reader.sightings import ShardTokens, check_epochs, find_sightings

    split = documents[0]["split"]  # all have this one: a content determines it
    loader = TracedLoader(**vars(given), split=None if given.state else split)
    stream, num_seen = open_stream(reference if given.state else tables.reference, loader)
    tokens = [
        ShardTokens(int(Path(each["shard"]).stem), each["start"], each["start"] + each["num_tokens"])
        for each in documents
    ]
    with as_usage_errors():
        check_epochs(stream, epochs)
    seen = find_sightings(stream, tables.manifest.version, split, tokens, make_steps(loader), epochs)
    return [{**each, "seen": each["position"] < num_seen} for each in seen] if given.state else seen


def _print_documents(out: Output, reference: str, lookups: Lookups, lookup: Lookup) -> None:
    out.line(f"{reference}: {lookup.status.replace('_', ' ')}{': ' if lookup.reason else ''}{lookup.reason}")
    for document in lookup.documents:
        tokens = f"{document['shard']}, token {document['start']:,}, {counted(document['num_tokens'], 'token')}"
        origin = shown_origin({**document, "marks": lookups.marks_of(document)[1]})
        out.line(f"  document  {tokens}, {origin}, content {document['content']}")
