"""Samples of a version: its most frequent tokens, and ten documents.

Documents lie in the order of a hash, so the first ones of a shard are a random sample of its split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.document_tables import FoundDocument
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tokenizers import Tokenizer

_NUM_DOCUMENTS = 10
_NUM_TOKENS = 30  # shown, of those in the sample
_SAMPLE_TOKENS = 2**20
_TEXT_CHARS = 480  # shown of a document


class TokenSample(NamedTuple):
    """(id, text, count) of the most frequent tokens among `num_tokens` tokens of `num_shards` shards.

    A text is None if it can't be decoded here.
    """

    tokens: list[tuple[int, str | None, int]]
    num_tokens: int
    num_shards: int


class SampledDocument(FoundDocument):
    """A document and how its text begins; `is_cut`: the text goes on."""

    text: str
    is_cut: bool


def frequent_tokens(store: Store, manifest: Manifest, tokenizer: Tokenizer | None) -> TokenSample:
    """Count the first million tokens of a version, and keep the most frequent."""
    parts: list[NDArray[Any]] = [np.zeros(0, np.uint16)]
    num_left = _SAMPLE_TOKENS
    for entry in manifest.shards:
        if num_left and entry.tokens:
            parts.append(StoredShard(store, manifest.version, entry).tokens(0, min(num_left, entry.tokens)))
            num_left -= len(parts[-1])
    ids, counts = np.unique(np.concatenate(parts), return_counts=True)
    order = np.lexsort((ids, -counts))[:_NUM_TOKENS]
    tokens = [(int(ids[i]), _decode(tokenizer, ids[i : i + 1]), int(counts[i])) for i in order]
    return TokenSample(tokens, _SAMPLE_TOKENS - num_left, len(parts) - 1)


def sampled_documents(
    store: Store, manifest: Manifest, inputs: Sequence[InputEntry], tokenizer: Tokenizer | None
) -> list[SampledDocument]:
    """Read ten documents at equal distances, from a place that the version's name gives, or all if there are fewer.

    Raises FormatError if a shard or its document table is damaged.
    """
    shards = [StoredShard(store, manifest.version, entry) for entry in manifest.shards]
    ends = np.cumsum([shard.entry.documents for shard in shards])
    total = int(ends[-1]) if len(ends) and tokenizer is not None else 0
    documents: list[SampledDocument] = []
    tables: dict[int, DocumentTable] = {}
    first, stride = int(manifest.version, 16), max(1, total // _NUM_DOCUMENTS)
    for position in sorted((first + i * stride) % total for i in range(min(_NUM_DOCUMENTS, total))):
        index = int(np.searchsorted(ends, position, side="right"))
        shard = shards[index]
        if index not in tables:
            tables[index] = shard.table(len(inputs))
        row = position - int(ends[index]) + shard.entry.documents
        documents.append(_document(shard, tables[index].rows(row, row + 1), inputs, tokenizer))
    return documents


def _document(
    shard: StoredShard, columns: DocumentColumns, inputs: Sequence[InputEntry], tokenizer: Tokenizer | None
) -> SampledDocument:
    """Read the document of a row of a shard's table."""
    start, num_tokens = int(columns.start[0]), int(columns.num_tokens[0])
    if not start < start + num_tokens <= shard.entry.tokens:
        raise shard.wrong_table()
    ids = shard.tokens(start, start + min(num_tokens - 1, 4 * _TEXT_CHARS))
    text = _decode(tokenizer, ids) or ""
    return {
        "split": shard.entry.name.partition("/")[0],
        "shard": shard.entry.name,
        "start": start,
        "num_tokens": num_tokens,
        **columns.origin(0, inputs),
        "text": text[:_TEXT_CHARS],
        "is_cut": len(ids) < num_tokens - 1 or len(text) > _TEXT_CHARS,
    }


def _decode(tokenizer: Tokenizer | None, ids: NDArray[Any]) -> str | None:
    """Decode ids; None if the tokenizer is missing or an id is not of its vocabulary."""
    if tokenizer is None or (len(ids) and int(ids.max()) >= tokenizer.vocab_size):
        return None
    return tokenizer.decode(ids)
