"""`tokenloom peek`: the first documents of a split, decoded, with the source row of each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from tokenloom.cli.output import Json, print_line, printable
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.documents import first_documents
from tokenloom.storage.formats.shard import ShardHeader, read_header
from tokenloom.storage.stores.store import Store
from tokenloom.storage.stores.store_file import StoreFile
from tokenloom.storage.versions.versions import check_listed, parse_reference, read_inputs, resolve, version_path
from tokenloom.words import counted


def peek(reference: str, split: str, count: int, chars: int, quiet: bool) -> Json:
    """Show the first documents of a split, decoded, with the source row of each."""
    store, manifest = resolve(parse_reference(reference))
    if split not in manifest["splits"]:
        raise StoreError(f"{reference}: no split {split!r}; it has: {', '.join(manifest['splits'])}")
    documents = list(islice(_documents(store, manifest, split, count, chars), count))
    for document in documents:
        print_line(
            quiet,
            printable(
                f"--- {document['source']}: {document['path']}, row {document['row']}"
                + (f", id {document['id']}" if document["id"] is not None else "")
                + f", {counted(document['num_tokens'], 'token')}, content {document['content']}"
            ),
        )
        print_line(quiet, document["text"])
    return {"reference": f"{store.root}@{manifest['version']}", "split": split, "documents": documents}


def _documents(store: Store, manifest: Json, split: str, count: int, chars: int) -> Iterator[Json]:
    """Yield documents of a split, at most `count` of each shard, their texts cut to `chars`."""
    from tokenloom.reader.decoding import decode, version_tokenizer

    inputs, tokenizer = read_inputs(store, manifest), version_tokenizer(store, manifest)
    for entry in manifest["splits"][split]["shards"]:
        path = version_path(manifest["version"], entry["name"])
        header, rows = _read_shard(store, path, entry, count)
        for row in rows:
            if row["input"] >= len(inputs):
                raise FormatError(f"{store.place(path)}: its documents name inputs that are not there; restore it")
            start = header.tokens_start + row["start"] * header.token_bytes
            end = start + (row["num_tokens"] - 1) * header.token_bytes
            ids = np.frombuffer(store.read_range(path, start, end), header.dtype)
            place = {key: inputs[row["input"]][key] for key in ("source", "path")} | {"row": row["row"]}
            place |= {"content": row["content"].hex(), "id": row.get("id")}
            text = printable(decode(tokenizer, ids[: 4 * chars])[:chars])
            yield place | {"shard": entry["name"], "num_tokens": row["num_tokens"], "text": text}


def _read_shard(store: Store, path: str, entry: Json, count: int) -> tuple[ShardHeader, list[dict[str, Any]]]:
    """Return a shard's header and the first rows of its document table, which must be that shard's."""
    table = f"{path.removesuffix('.tok')}.docs"
    try:
        header = read_header(partial(store.read_range, path), store.place(path))
        check_listed(header, entry, store.place(path))
        rows = first_documents(StoreFile(store, table), count, store.place(table))
        begin = header.offsets_start
        offsets = np.frombuffer(store.read_range(path, begin, begin + 8 * (len(rows) + 1)), "<u8").tolist()
    except FileNotFoundError as error:
        raise StoreError(f"{store.place(path)} or its .docs: missing from a published version; restore it") from error
    if rows and not (
        f"{rows[0]['key']:016x}" == entry.get("first_key")
        and [row["start"] for row in rows] == offsets[:-1]
        and [row["start"] + row["num_tokens"] for row in rows] == offsets[1:]
        and offsets[-1] <= header.num_tokens
    ):
        raise FormatError(f"{store.place(table)}: it is not the document table of its shard; restore it")
    return header, rows
