"""`tokenloom diff`: which documents two versions share, and how their specs, tokenizers and inputs differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np

from tokenloom.cli.arguments import Argument
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Json, Output, Result, write_output
from tokenloom.errors import SpecError
from tokenloom.storage.comparison import FATES, REMASKED, Change, Rows, Tally, changes, compare, version_documents
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.stores.local_files import writing_atomically
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.tasks.running import progress
from tokenloom.wording import counted, first_of

_BLOCK_ROWS = 8192


def diff(
    old: Annotated[str, Argument("REF_A")],
    new: Annotated[str, Argument("REF_B")],
    *,
    fate: Annotated[str | None, Argument(option="--list", choices=[*FATES, REMASKED])] = None,
    output: Annotated[str | None, Argument("FILE")] = None,
    out: Output,
) -> Result:
    """Compare two versions document by document.

    Args:
        old: the old version: STORE/DATASET@TAG_OR_VERSION
        new: the new version; may be in another dataset or store
        fate: write out these documents as JSON lines
        output: where --list writes (default: stdout, without the summary)

    Example:
        diff store/news@yesterday store/news@latest
    """
    if output is not None and fate is None:
        raise SpecError("--output: only --list writes documents; give both")
    if fate is not None and output is None and out.is_quiet:
        raise SpecError("--list: with --json, stdout has one JSON object and nothing else; give --output FILE")
    a, b = (VersionTables(*resolve(parse_reference(text))) for text in (old, new))
    tally = Tally(version_documents(a), version_documents(b))
    with showing_progress(), _writer(output) as write:
        listed = _compare(a, b, tally, fate, write)
    found = changes(a.manifest, b.manifest, a.inputs, b.inputs)
    value = {
        "a": _version(a),
        "b": _version(b),
        **_by_fate(tally.by_source.sum(axis=1)),
        "sources": {name: _by_fate(tally.by_source[:, i]) for i, name in enumerate(tally.sources)},
        "moves": _moves(tally),
        "remasked": tally.num_remasked,
        "changes": [asdict(change) for change in found],
        "listed": listed,
    }
    if fate is None or output is not None:
        _print(out, value, found, output)
    return Result(value)


def _compare(a: VersionTables, b: VersionTables, tally: Tally, fate: str | None, write: Callable[[str], object]) -> int:
    """Compare the documents, count them and write out those of one fate; return how many were written."""
    progress.report(progress.StepStarted("compare", a.manifest.num_documents + b.manifest.num_documents))

    def advance(num_rows: int) -> None:
        progress.report(progress.Advanced(done=num_rows, num_documents=num_rows))

    make_lines, num_written = _line_maker(a, b, fate), 0
    for fates in compare(version_documents(a), version_documents(b), advance):
        tally.add(fates)
        rows: Rows = getattr(fates, fate) if fate else fates.added[:0]
        num_written += len(rows)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            write("".join(make_lines(rows[block], fates.moved_from[block])))
    return num_written


def _line_maker(a: VersionTables, b: VersionTables, fate: str | None) -> Callable[[Rows, Rows], Iterator[str]]:
    """Return a function that makes a JSON line of each document; if they moved, it gets the same ones in A too."""
    side = a if fate == "removed" else b
    before = [f'"split_before": {json.dumps(name)}, ' for name in a.manifest.splits]
    splits = [json.dumps(name) for name in side.manifest.splits]
    shards = [[json.dumps(shard.name) for shard in s.shards] for s in side.manifest.splits.values()]
    inputs = [f'"source": {json.dumps(one.source)}, "path": {json.dumps(one.path)}' for one in side.inputs]

    def make(rows: Rows, moved_from: Rows) -> Iterator[str]:
        content = rows["content"].astype(">u8").tobytes().hex()
        columns = [rows[name].tolist() for name in ("split", "shard", "input", "row", "num_tokens")]
        old = [before[split] for split in moved_from["split"].tolist()] if fate == "moved" else [""] * len(rows)
        for i, (split, shard, number, row, num_tokens) in enumerate(zip(*columns, strict=True)):
            yield (
                f'{{"split": {splits[split]}, {old[i]}"shard": {shards[split][shard]}, {inputs[number]}, "row": {row}, '
                f'"content": "{content[32 * i : 32 * i + 32]}", "num_tokens": {num_tokens}}}\n'
            )

    return make


@contextmanager
def _writer(output: str | None) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text to stdout, or to a file that appears under its name once it is complete."""
    if output is None:
        yield write_output
        return
    with writing_atomically(Path(output).resolve()) as file:
        yield lambda text: file.write(text.encode())


def _version(tables: VersionTables) -> Json:
    manifest = tables.manifest
    return {"reference": tables.reference, "documents": manifest.num_documents, "tokens": manifest.num_tokens}


def _by_fate(counts: Int64s) -> Json:
    """Name (num_fates, 2) counts of documents and tokens."""
    documents, tokens = counts.T.tolist()
    return {"documents": dict(zip(FATES, documents, strict=True)), "tokens": dict(zip(FATES, tokens, strict=True))}


def _moves(tally: Tally) -> list[Json]:
    """List the documents and tokens that moved from one split to another."""
    moves = []
    for i, j in np.argwhere(tally.moves[..., 0]).tolist():
        documents, tokens = tally.moves[i, j].tolist()
        names = {"split_before": tally.splits[i], "split": tally.splits[j]}
        moves.append(names | {"documents": documents, "tokens": tokens})
    return moves


def _print(out: Output, value: Json, found: list[Change], output: str | None) -> None:
    for mark in ("a", "b"):
        version = value[mark]
        documents = counted(version["documents"], "document")
        out.line(f"{mark.upper()}  {version['reference']}  {documents}, {version['tokens']:,} tokens")
    out.table(["", "documents", "tokens"], [[fate, value["documents"][fate], value["tokens"][fate]] for fate in FATES])
    if len(value["sources"]) > 1:
        rows = [[name, *counts["documents"].values()] for name, counts in value["sources"].items()]
        out.table(["documents by source", *FATES], rows)
    if value["moves"]:
        rows = [
            [f"{move['split_before']} -> {move['split']}", move["documents"], move["tokens"]] for move in value["moves"]
        ]
        out.table(["moved", "documents", "tokens"], rows)
    if value["remasked"]:
        remasked = counted(value["remasked"], "document")
        out.line(f"of those in both, {remasked} with other classes: learned differently")
    _print_changes(out, found)
    if output is not None:
        out.line(f"{counted(value['listed'], 'document')} written to {output}")


def _print_changes(out: Output, found: list[Change]) -> None:
    inputs: dict[str, list[str]] = {"added": [], "removed": [], "changed": []}
    for change in found:
        if change.kind == "input":
            fate = "added" if change.old is None else "removed" if change.new is None else "changed"
            inputs[fate].append(change.key)
        else:
            out.line(f"{change.kind} {change.key}: {_shown(change.old)} -> {_shown(change.new)}")
    for fate, keys in inputs.items():
        if keys:
            out.line(f"{counted(len(keys), 'input')} {fate}: {first_of(keys, 3)}")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
