"""`tokenloom peek`: show the first documents of a split, decoded, with the source row of each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NotRequired

from tokenloom.cli.argument_types import add_learn, add_reference, positive
from tokenloom.cli.output import Output, shown_origin
from tokenloom.cli.results import Result
from tokenloom.console import printable
from tokenloom.errors import InputError
from tokenloom.storage.formats.classes import PLAIN_TEXT, ROLE_BITS, learned_classes, parse_policy
from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.wording import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokenloom.cli.classes_shown import ClassRun
    from tokenloom.reader.decoding import Decoder


class ShownDocument(FoundDocument):
    """A document, and the beginning of its text; of a conversation also the runs of its tokens.

    `conversation` is its normalized form, read from its source again; None if that can't be read, or was not asked for.
    """

    text: str
    runs: NotRequired[list[ClassRun]]
    conversation: NotRequired[dict[str, Any] | None]


@dataclass(frozen=True)
class PeekResult(Result):
    """Documents of one split of a version."""

    reference: str
    split: str
    documents: list[ShownDocument]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument("--split", default="train", help="the split (default: train)")
    parser.add_argument(
        "--count", type=positive, default=3, metavar="N", help="how many documents to show (default: 3)"
    )
    parser.add_argument(
        "--chars",
        type=positive,
        default=300,
        metavar="N",
        help="how many characters of each document, or of each turn (default: 300)",
    )
    add_learn(parser, "what is marked")


def run(reference: str, split: str, count: int, chars: int, out: Output, learn: str = "assistant") -> PeekResult:
    """Show the first documents of a split, decoded, with the source row of each; of conversations, what is learned."""
    tables = VersionTables(*resolve(parse_reference(reference)))
    check_split(reference, tables.manifest, split)
    documents = list(islice(_documents(tables, split, count, chars, learned_classes(parse_policy(learn))), count))
    for document in documents:
        _print(out, document, chars)
    if out.is_quiet and tables.manifest.tokenizer.kind != "ids":
        _add_conversations(tables, documents)
    return PeekResult(tables.reference, split, documents)


def _print(out: Output, document: ShownDocument, chars: int) -> None:
    tokens, runs = counted(document["num_tokens"], "token"), document.get("runs")
    if runs is not None:
        tokens += f", {sum(run['end'] - run['start'] for run in runs if run['learned']):,} learned"
    out.line(f"--- {shown_origin(document)}, {tokens}, content {document['content']}")
    if runs is None:
        out.lines(document["text"])
    else:
        from tokenloom.cli.classes_shown import print_runs

        print_runs(out, runs, chars)


def _documents(
    tables: VersionTables, split: str, count: int, chars: int, learned: NDArray[np.bool_]
) -> Iterator[ShownDocument]:
    """Yield at most `count` documents of each shard of a split, their texts cut to `chars` characters."""
    from tokenloom.reader.decoding import decode, version_tokenizer

    tokenizer = version_tokenizer(tables.store, tables.manifest)
    for entry in tables.manifest.splits[split].shards:
        if not entry.documents:
            continue
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        rows = shard.documents(tables.open(entry), 0, int(shard.offsets[min(count, entry.documents)]))
        for found in tables.documents(entry, rows):
            start, num_tokens = found["start"], found["num_tokens"]
            ids = shard.tokens(start, start + min(num_tokens - 1, 4 * chars))
            text = printable(decode(tokenizer, ids)[:chars])
            yield {**found, "text": text, **_runs(tokenizer, shard, start, start + num_tokens, learned)}  # type: ignore[typeddict-item]


def _runs(
    tokenizer: Decoder, shard: StoredShard, start: int, end: int, learned: NDArray[np.bool_]
) -> dict[str, list[ClassRun]]:
    """Return the runs of a conversation in tokens [start, end) of a shard; nothing for plain text."""
    from tokenloom.cli.classes_shown import class_runs

    if int(shard.classes(start, start + 1)[0]) & ROLE_BITS == PLAIN_TEXT:
        return {}
    return {"runs": class_runs(tokenizer, shard.tokens(start, end), shard.classes(start, end), learned)}


def _add_conversations(tables: VersionTables, documents: list[ShownDocument]) -> None:
    """Add the normalized form of each conversation, from its source."""
    from tokenloom.tasks.lookup.source_rows import SpecOfVersion, read_source_row

    known = SpecOfVersion(tables, None)
    entries = {(entry.source, entry.path): entry for entry in tables.inputs}
    for document in documents:
        if "runs" in document:
            entry = entries[document["source"], document["path"]]
            try:
                text = read_source_row(known, tables, entry, document["row"]).text
            except InputError:
                text = None
            document["conversation"] = None if text is None else json.loads(text)
