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
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.documents import DocumentRow, first_documents
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard import ShardHeader, read_header
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.stores.store_file import StoreFile
from tokenloom.storage.versions.published import check_header, check_split, read_inputs, version_path
from tokenloom.storage.versions.references import parse_reference, resolve
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
        path = version_path(manifest.version, entry.name)
        header, rows = _read_shard(store, manifest.version, entry, count)
        for row in rows:
            if row.input >= len(inputs):
                raise FormatError(f"{store.place(path)}: its documents name inputs that do not exist; restore it")
            start = header.tokens_start + row.start * header.token_bytes
            end = start + (row.num_tokens - 1) * header.token_bytes
            ids = np.frombuffer(store.read_range(path, start, end), header.dtype)
            yield ShownDocument(
                source=inputs[row.input].source,
                path=inputs[row.input].path,
                row=row.row,
                content=row.content.hex(),
                id=row.id,
                shard=entry.name,
                num_tokens=row.num_tokens,
                text=printable(decode(tokenizer, ids[: 4 * chars])[:chars]),
            )


def _read_shard(store: Store, version: str, entry: ShardEntry, count: int) -> tuple[ShardHeader, list[DocumentRow]]:
    """Return a shard's header and the first rows of its document table, after checking that they fit together."""
    path, table = version_path(version, entry.name), version_path(version, entry.docs_name)
    try:
        header = read_header(store, path)
        check_header(header, entry, store.place(path))
        rows = first_documents(StoreFile(store, table), count, store.place(table))
        start = header.offsets_start
        offsets = np.frombuffer(store.read_range(path, start, start + 8 * (len(rows) + 1)), "<u8").tolist()
    except FileNotFoundError as error:
        missing = table if store.num_bytes(path) is not None else path
        raise StoreError(
            f"{store.place(missing)}: missing from a published version; `tokenloom verify {store.root}@{version}` says "
            "what to do"
        ) from error
    if rows and not (
        f"{rows[0].key:016x}" == entry.first_key
        and [row.start for row in rows] == offsets[:-1]
        and [row.start + row.num_tokens for row in rows] == offsets[1:]
        and offsets[-1] <= header.num_tokens
    ):
        raise FormatError(f"{store.place(table)}: it is not the document table of its shard; restore it")
    return header, rows
