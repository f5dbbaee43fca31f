"""Samples of a version: its most frequent tokens, and ten documents. Both are chosen by its name, so always the same.

Documents lie in the order of a hash, so neighbours are as good a sample as any, and cost one read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.report.figures import ExampleDocument, FrequentToken, TokenSample
from tokenloom.tokenizers import Tokenizer

_NUM_DOCUMENTS = 10
_NUM_TOKENS = 30  # shown, of those in the sample
_SAMPLE_TOKENS = 2**20
_NUM_PIECES = 8  # the sample is read from so many places
_RUN = 4  # neighbours among the sampled documents
_TEXT_CHARS = 480  # shown of a document
_MAX_BINS = 2**24  # ids; a larger vocabulary is sorted instead of counted


def frequent_tokens(store: Store, manifest: Manifest, tokenizer: Tokenizer | None) -> TokenSample:
    """Return the most frequent tokens of pieces that are spread evenly over a version; reads about a million tokens."""
    shards = [StoredShard(store, manifest.version, entry) for entry in manifest.shards]
    pieces = token_pieces([shard.entry.tokens for shard in shards])
    parts = [shards[index].tokens(start, end) for index, start, end in pieces]
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.uint32)
    ids, counts = _count(tokens)
    order = np.lexsort((ids, -counts))[:_NUM_TOKENS]
    frequent = [FrequentToken(int(ids[i]), _decode(tokenizer, ids[i : i + 1]), int(counts[i])) for i in order]
    return TokenSample(frequent, len(tokens), len({index for index, _, _ in pieces}))


def token_pieces(shard_tokens: Sequence[int], limit: int = _SAMPLE_TOKENS) -> list[tuple[int, int, int]]:
    """Return (shard, start, end) of the pieces [start, end) to sample: all tokens if there are at most `limit`.

    Args:
        shard_tokens: the tokens of each shard.
        limit: tokens in all pieces together.
    """
    ends = np.cumsum(np.asarray(shard_tokens, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    if total <= limit:
        return [(index, 0, count) for index, count in enumerate(shard_tokens) if count]
    pieces, length = [], limit // _NUM_PIECES
    for piece in range(_NUM_PIECES):
        position = total * (2 * piece + 1) // (2 * _NUM_PIECES)
        index = int(np.searchsorted(ends, position, side="right"))
        count = shard_tokens[index]
        start = max(0, min(position - int(ends[index]) + count, count - length))
        pieces.append((index, start, min(count, start + length)))
    return pieces


def _count(tokens: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the ids among the tokens, and how often each occurs."""
    if len(tokens) and int(tokens.max()) < _MAX_BINS:
        counts = np.bincount(tokens)
        ids = np.flatnonzero(counts)
        return ids, counts[ids]
    ids, counts = np.unique(tokens, return_counts=True)
    return ids, counts


def sampled_documents(
    store: Store, manifest: Manifest, inputs: Sequence[InputEntry], tokenizer: Tokenizer | None
) -> list[ExampleDocument]:
    """Return ten documents of a version, or all if it has fewer; the same ones each time.

    Raises FormatError if a shard or its document table is damaged.
    """
    if tokenizer is None:
        return []
    shards = [StoredShard(store, manifest.version, entry) for entry in manifest.shards]
    chosen = choose_rows(manifest.version, [shard.entry.documents for shard in shards])
    documents: list[ExampleDocument] = []
    for index, rows in chosen.items():
        table = shards[index].table(len(inputs))
        documents += [_document(shards[index], table.rows(row, row + 1), inputs, tokenizer) for row in rows]
    return documents


def choose_rows(version: str, shard_documents: Sequence[int]) -> dict[int, list[int]]:
    """Return rows of document tables by shard, chosen by hash: runs of up to 4 neighbours, ten rows together.

    Args:
        version: the version's name.
        shard_documents: the documents of each shard.
    """
    ends = np.cumsum(np.asarray(shard_documents, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    count = min(_NUM_DOCUMENTS, total)
    chosen: set[int] = set(range(total)) if count == total else set()
    attempt = 0
    while len(chosen) < count:
        digest = hashlib.sha256(f"{version} {attempt}".encode()).digest()
        anchor = int.from_bytes(digest[:8], "big") % total
        run = range(anchor, min(anchor + _RUN, total))
        chosen.update([position for position in run if position not in chosen][: count - len(chosen)])
        attempt += 1
    rows: dict[int, list[int]] = {}
    for position in sorted(chosen):
        index = int(np.searchsorted(ends, position, side="right"))
        rows.setdefault(index, []).append(position - int(ends[index]) + shard_documents[index])
    return rows


def _document(
    shard: StoredShard, found: DocumentColumns, inputs: Sequence[InputEntry], tokenizer: Tokenizer
) -> ExampleDocument:
    """Return the document of a row of a shard's table."""
    start, end = int(found.start[0]), int(found.start[0]) + int(found.num_tokens[0])
    if not start < end <= shard.entry.tokens:
        raise shard.wrong_table()
    ids = shard.tokens(start, min(end - 1, start + 4 * _TEXT_CHARS))
    text, source = _decode(tokenizer, ids) or "", inputs[int(found.input[0])]
    return ExampleDocument(
        split=shard.entry.name.partition("/")[0],
        shard=shard.entry.name,
        start=start,
        end=end,
        source=source.source,
        path=source.path,
        row=int(found.row[0]),
        id=None if found.ids is None else found.ids[0].as_py(),
        content=content_digits(found.content[0]),
        text=text[:_TEXT_CHARS],
        is_cut=start + len(ids) < end - 1 or len(text) > _TEXT_CHARS,
    )


def _decode(tokenizer: Tokenizer | None, ids: NDArray[Any]) -> str | None:
    """Return the text of ids; None if the tokenizer is missing or an id is not of its vocabulary."""
    if tokenizer is None or (len(ids) and int(ids.max()) >= tokenizer.vocab_size):
        return None
    return tokenizer.decode(ids)
