"""`tokenloom peek`: show the first documents of a split, decoded, with the source row of each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tokenloom.cli.argument_types import add_reference, positive
from tokenloom.cli.output import Output, shown_origin
from tokenloom.cli.results import Result
from tokenloom.console import printable
from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.wording import counted


class ShownDocument(FoundDocument):
    """A document, and the beginning of its text."""

    text: str


@dataclass(frozen=True)
class PeekResult(Result):
    """Documents of one split of a version."""

    reference: str
    split: str
    documents: list[ShownDocument]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument("--split", default="train", help="default: train")
    parser.add_argument("--count", type=positive, default=3, metavar="N", help="documents to show (default: 3)")
    parser.add_argument("--chars", type=positive, default=300, metavar="N", help="characters of each (default: 300)")


def run(reference: str, split: str, count: int, chars: int, out: Output) -> PeekResult:
    """Show the first documents of a split, decoded, with the source row of each."""
    tables = VersionTables(*resolve(parse_reference(reference)))
    check_split(reference, tables.manifest, split)
    documents = list(islice(_documents(tables, split, count, chars), count))
    for document in documents:
        tokens = counted(document["num_tokens"], "token")
        out.line(f"--- {shown_origin(document)}, {tokens}, content {document['content']}")
        out.lines(document["text"])
    return PeekResult(tables.reference, split, documents)


def _documents(tables: VersionTables, split: str, count: int, chars: int) -> Iterator[ShownDocument]:
    """Yield at most `count` documents of each shard of a split, their texts cut to `chars` characters."""
    from tokenloom.reader.decoding import decode, version_tokenizer

    tokenizer = version_tokenizer(tables.store, tables.manifest)
    for entry in tables.manifest.splits[split].shards:
        if not entry.documents:
            continue
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        with tables.open(entry) as table:
            rows = shard.documents(table, 0, int(shard.offsets[min(count, entry.documents)]))
        for found in tables.documents(entry, rows):
            ids = shard.tokens(found["start"], found["start"] + min(found["num_tokens"] - 1, 4 * chars))
            yield {**found, "text": printable(decode(tokenizer, ids)[:chars])}
