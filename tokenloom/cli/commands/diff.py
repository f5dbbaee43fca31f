"""`tokenloom diff`: which documents two versions share, and how their specs, tokenizers and inputs differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Output, write_output
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError, TokenloomError
from tokenloom.storage.comparison.changes import Change, changes
from tokenloom.storage.comparison.compare import FATES, REMASKED, Fates, Tally, compare
from tokenloom.storage.comparison.rows import Rows, VersionDocuments
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.stores.local_files import writing_atomically
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.tasks.running import progress
from tokenloom.wording import counted, first_of

_STEP = "compare"
_BLOCK_ROWS = 8192


@dataclass(frozen=True)
class ComparedVersion:
    """One of the two versions."""

    reference: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class Moves:
    """Documents that moved from a split to another one, and their tokens."""

    split_before: str
    split: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class DiffResult(Result):
    """How B differs from A; counts are by fate: added, removed, kept, moved. `listed` counts the rows written out.

    `remasked` counts the documents kept or moved whose tokens have other classes, so that they are learned differently.
    """

    a: ComparedVersion
    b: ComparedVersion
    documents: dict[str, int]
    tokens: dict[str, int]
    sources: dict[str, dict[str, dict[str, int]]]
    moves: list[Moves]
    remasked: int
    changes: list[Change]
    listed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("old", metavar="REF_A", help="the old version: STORE/DATASET@TAG_OR_VERSION")
    parser.add_argument("new", metavar="REF_B", help="the new version; may be in another dataset or store")
    parser.add_argument(
        "--list", dest="fate", choices=[*FATES, REMASKED], help="write out these documents as JSON lines"
    )
    parser.add_argument("--output", metavar="FILE", help="where --list writes (default: stdout, without the summary)")


def run(old: str, new: str, fate: str | None, output: str | None, out: Output) -> DiffResult:
    """Compare two versions document by document.

    Args:
        old: the reference of version A.
        new: the reference of version B.
        fate: write out the documents that were added, removed, kept, moved or remasked; None for none.
        output: the file for these; None for stdout.
        out: prints the result.

    Raises:
        StoreError: the version does not exist, or a store can't be read.
        FormatError: a file of a version is damaged.
        SpecError: the options do not go together.
    """
    _check_options(fate, output, out)
    tables_a, tables_b = (VersionTables(*resolve(parse_reference(text))) for text in (old, new))
    a, b = VersionDocuments(tables_a), VersionDocuments(tables_b)
    tally = Tally(a, b)
    is_on_terminal = fate is not None and output is None and sys.stdout.isatty()
    with nullcontext() if is_on_terminal else showing_progress(), _writer(output) as write:
        listed = _compare(a, b, tally, fate, write)
    documents, tokens = tally.by_source.sum(axis=1).T
    result = DiffResult(
        a=_version(tables_a),
        b=_version(tables_b),
        documents=_by_fate(documents),
        tokens=_by_fate(tokens),
        sources={
            name: {"documents": _by_fate(tally.by_source[:, i, 0]), "tokens": _by_fate(tally.by_source[:, i, 1])}
            for i, name in enumerate(tally.sources)
        },
        moves=_moves(tally),
        remasked=tally.num_remasked,
        changes=changes(tables_a.manifest, tables_b.manifest, tables_a.inputs, tables_b.inputs),
        listed=listed,
    )
    if fate is None or output is not None:
        _print(out, result, output)
    return result


def _check_options(fate: str | None, output: str | None, out: Output) -> None:
    if output is not None and fate is None:
        raise SpecError("--output: only --list writes documents; give both")
    if fate is not None and output is None and out.is_quiet:
        raise SpecError("--list: with --json, stdout has one JSON object and nothing else; give --output FILE")


def _compare(
    a: VersionDocuments, b: VersionDocuments, tally: Tally, fate: str | None, write: Callable[[str], object]
) -> int:
    """Compare the documents, count them and write out those of one fate; return how many were written."""
    total = a.num_documents + b.num_documents
    progress.report(progress.StepStarted(_STEP, 2 * total))  # each row is read, then matched

    def advance(num_rows: int) -> None:
        progress.report(progress.Advanced(done=num_rows))

    lines = _DocumentLines(a, b, fate) if fate else None
    for fates in compare(a, b, advance):
        tally.add(fates)
        num_rows = sum(len(getattr(fates, name)) for name in ("added", "removed", *("kept", "moved") * 2))  # of A and B
        progress.report(progress.Advanced(done=num_rows, num_documents=num_rows))
        if lines:
            for block in lines.blocks(fates):
                write(block)
    return lines.num_lines if lines else 0


class _DocumentLines:
    """Makes JSON lines of documents; `num_lines` is how many so far.

    Args:
        a: the documents of the old version.
        b: those of the new one.
        fate: "added", "removed", "kept", "moved" or "remasked".
    """

    def __init__(self, a: VersionDocuments, b: VersionDocuments, fate: str) -> None:
        self._fate, self.num_lines = fate, 0
        side = a if fate == "removed" else b
        self._splits_a, self._splits = (list(map(json.dumps, one.splits)) for one in (a, side))
        self._places = [
            f'"source": {json.dumps(one.source)}, "path": {json.dumps(one.path)}' for one in side.tables.inputs
        ]
        self._shards = [
            [json.dumps(row["name"]) for row in split.shards.rows] for split in side.tables.manifest.splits.values()
        ]

    def blocks(self, fates: Fates) -> Iterator[str]:
        """Yield the lines of those of these documents that had the fate, some thousand at a time."""
        rows: Rows = getattr(fates, self._fate)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            yield "".join(self._lines(rows[block], fates.moved_from[block]))
        self.num_lines += len(rows)

    def _lines(self, rows: Rows, before: Rows) -> Iterator[str]:
        """Yield the lines of documents; `before` are the same ones in A if they moved, else anything."""
        content = rows["content"].astype(">u8").tobytes().hex()
        columns = [rows[name].tolist() for name in ("split", "shard", "input", "row", "num_tokens")]
        old = [""] * len(rows)
        if self._fate == "moved":
            old = [f'"split_before": {self._splits_a[split]}, ' for split in before["split"].tolist()]
        for i, (split, shard, number, row, num_tokens) in enumerate(zip(*columns, strict=True)):
            yield (
                f'{{"split": {self._splits[split]}, {old[i]}"shard": {self._shards[split][shard]}, '
                f'{self._places[number]}, "row": {row}, "content": "{content[32 * i : 32 * i + 32]}", '
                f'"num_tokens": {num_tokens}}}\n'
            )


@contextmanager
def _writer(output: str | None) -> Iterator[Callable[[str], object]]:
    """Return what writes text to stdout, or to a file that appears under its name once it is complete."""
    if output is None:
        yield write_output
        return
    try:
        with writing_atomically(Path(output).resolve()) as file:
            yield lambda text: file.write(text.encode())
    except OSError as error:
        if isinstance(error, TokenloomError):  # the store failed, not the file
            raise
        raise TokenloomError(f"{output}: can't be written: {error.strerror}") from error


def _version(tables: VersionTables) -> ComparedVersion:
    return ComparedVersion(tables.reference, tables.manifest.num_documents, tables.manifest.num_tokens)


def _by_fate(counts: Int64s) -> dict[str, int]:
    return dict(zip(FATES, counts.tolist(), strict=True))


def _moves(tally: Tally) -> list[Moves]:
    return [
        Moves(old, new, *tally.moves[i, j].tolist())
        for i, old in enumerate(tally.splits)
        for j, new in enumerate(tally.splits)
        if tally.moves[i, j, 0]
    ]


def _print(out: Output, result: DiffResult, output: str | None) -> None:
    for mark, version in (("A", result.a), ("B", result.b)):
        out.line(f"{mark}  {version.reference}  {counted(version.documents, 'document')}, {version.tokens:,} tokens")
    out.table(["", "documents", "tokens"], [[fate, result.documents[fate], result.tokens[fate]] for fate in FATES])
    if len(result.sources) > 1:
        rows = [[name, *(counts["documents"][fate] for fate in FATES)] for name, counts in result.sources.items()]
        out.table(["documents by source", *FATES], rows)
    if result.moves:
        rows = [[f"{move.split_before} -> {move.split}", move.documents, move.tokens] for move in result.moves]
        out.table(["moved", "documents", "tokens"], rows)
    if result.remasked:
        out.line(f"of those in both, {counted(result.remasked, 'document')} with other classes: learned differently")
    _print_changes(out, result.changes)
    if output is not None:
        out.line(f"{counted(result.listed, 'document')} written to {output}")


def _print_changes(out: Output, found: list[Change]) -> None:
    inputs = [change for change in found if change.kind == "input"]
    for change in found:
        if change.kind != "input":
            out.line(f"{change.kind} {change.key}: {_shown(change.old)} -> {_shown(change.new)}")
    for what, some in (
        ("added", [change for change in inputs if change.old is None]),
        ("removed", [change for change in inputs if change.new is None]),
        ("changed", [change for change in inputs if None not in (change.old, change.new)]),
    ):
        if some:
            out.line(f"{counted(len(some), 'input')} {what}: {first_of([each.key for each in some], 3)}")


def _shown(value: object) -> str:
    """Return a value in words."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
