"""`tokenloom peek`: show the first documents of a split, decoded, with the source row of each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tokenloom.cli.argument_types import add_reference, positive
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.console import printable
from tokenloom.errors import FormatError
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_split, read_inputs, version_path
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.shards import naming_missing, read_shard_header, read_shard_tokens
from tokenloom.storage.versions.tables import open_document_table
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
        out.line(printable(_title(document)))
        out.line(document.text)
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
        header = read_shard_header(store, manifest.version, entry)
        with open_document_table(store, manifest.version, entry, len(inputs)) as table:
            rows = table.rows(0, min(count, entry.documents))
        _check(store, manifest.version, entry, header, rows)
        for i in range(rows.num_rows):
            start, num_tokens, number = int(rows.start[i]), int(rows.num_tokens[i]), int(rows.input[i])
            end = start + min(num_tokens - 1, 4 * chars)
            ids = read_shard_tokens(store, manifest.version, entry, header, start, end)
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


def _check(store: Store, version: str, entry: ShardEntry, header: ShardHeader, rows: DocumentColumns) -> None:
    """Raise FormatError if the first rows of a document table are not those of its shard."""
    start = header.offsets_start
    with naming_missing(store, version, entry.name):
        data = store.read_range(version_path(version, entry.name), start, start + 8 * (rows.num_rows + 1))
    offsets = np.frombuffer(data, "<u8")  # (num_rows + 1,)
    if not (
        f"{int(rows.key[0]):016x}" == entry.first_key
        and np.array_equal(rows.start, offsets[:-1])
        and np.array_equal(rows.start + rows.num_tokens, offsets[1:])
        and int(offsets[-1]) <= header.num_tokens
    ):
        place = store.place(version_path(version, entry.docs_name))
        raise FormatError(f"{place}: it is not the document table of its shard; restore it")
