"""`tokenloom peek`: show the first documents of a split, decoded, with the source row of each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tokenloom.cli.argument_types import add_reference, positive
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.console import printable
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_split, read_inputs
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.wording import counted


@dataclass(frozen=True)
class ShownDocument:
    """The beginning of a document's text, and where the document comes from."""

    source: str
    path: str
    row: int
    content: str
    id: str | None
    shard: str
    num_tokens: int
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
    store, manifest = resolve(parse_reference(reference))
    check_split(reference, manifest, split)
    documents = list(islice(_documents(store, manifest, split, count, chars), count))
    for document in documents:
        out.line(_title(document))
        out.lines(document.text)
    return PeekResult(f"{store.root}@{manifest.version}", split, documents)


def _title(document: ShownDocument) -> str:
    identifier = f", id {document.id}" if document.id is not None else ""
    return (
        f"--- {document.source}: {document.path}, row {document.row}{identifier}, "
        f"{counted(document.num_tokens, 'token')}, content {document.content}"
    )


def _documents(store: Store, manifest: Manifest, split: str, count: int, chars: int) -> Iterator[ShownDocument]:
    """Yield at most `count` documents of each shard of a split, their texts cut to `chars` characters."""
    from tokenloom.reader.decoding import decode, version_tokenizer

    inputs, tokenizer = read_inputs(store, manifest), version_tokenizer(store, manifest)
    for entry in manifest.splits[split].shards:
        if not entry.documents:
            continue
        shard = StoredShard(store, manifest.version, entry)
        with shard.table(len(inputs)) as table:
            rows = table.rows(0, min(count, entry.documents))
        _check(shard, rows)
        for i in range(rows.num_rows):
            start, num_tokens, number = int(rows.start[i]), int(rows.num_tokens[i]), int(rows.input[i])
            ids = shard.tokens(start, start + min(num_tokens - 1, 4 * chars))
            yield ShownDocument(
                source=inputs[number].source,
                path=inputs[number].path,
                row=int(rows.row[i]),
                content=content_digits(rows.content[i]),
                id=None if rows.ids is None else rows.ids[i].as_py(),
                shard=entry.name,
                num_tokens=num_tokens,
                text=printable(decode(tokenizer, ids)[:chars]),
            )


def _check(shard: StoredShard, rows: DocumentColumns) -> None:
    """Raise FormatError if the first rows of a document table are not those of its shard."""
    offsets = shard.first_offsets(rows.num_rows)
    shard.check_rows(rows, offsets)
    if f"{int(rows.key[0]):016x}" != shard.entry.first_key or int(offsets[-1]) > shard.entry.tokens:
        raise shard.wrong_table()
