"""The figures of a version that its report shows, from its store alone and without reading all its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import MANIFEST, InputEntry, Manifest, read_manifest
from tokenloom.storage.formats.statistics import DocumentCounts, DocumentStatistics, EncodedCounts, added
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.build_record import find_build_record
from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.building.version_facts import VersionFacts, facts_of
from tokenloom.tokenizers import Tokenizer, load_job_tokenizer, version_decoder

_MAX_HISTORY = 20  # versions whose tokens are compared
_MIN_DOCUMENTS = 10  # smaller splits are not compared
_NUM_DOCUMENTS = 10
_NUM_TOKENS = 30  # shown, of those in the sample
_SAMPLE_TOKENS = 2**20
_TEXT_CHARS = 480  # shown of a document


@dataclass(frozen=True)
class VersionFigures:
    """All that the report of a version shows.

    `tags` name the version now. `replaced` is the version that its tag named before, None if there was none, and
    `previous` its facts, None if it is gone. `history` are the tokens of the last versions that the tag named, this one
    last, by name. `statistics` are by split, empty if they are unknown. `notes` say what could not be found out, and
    why.
    """

    facts: VersionFacts
    inputs: list[InputEntry]
    tags: list[str]
    replaced: str | None
    statistics: dict[str, DocumentStatistics]
    sample: TokenSample
    documents: list[ShownDocument]
    previous: VersionFacts | None
    history: dict[str, int]
    notes: list[str]

    @cached_property
    def total(self) -> DocumentCounts:
        """Documents and tokens of the version."""
        return added(self.splits.values(), DocumentCounts(0, 0))

    @cached_property
    def splits(self) -> dict[str, DocumentCounts]:
        """Documents and tokens of each split, the one with the most tokens first."""
        return _largest_first(counts_of_splits(self.facts.manifest))

    @cached_property
    def sources(self) -> dict[str, DocumentCounts]:
        """Documents and tokens of each source, the one with the most tokens first, also of one without any."""
        empty = {entry.source: DocumentCounts(0, 0) for entry in self.inputs}
        return _largest_first(added([empty, *(one.sources for one in self.statistics.values())], empty))

    @property
    def encoded(self) -> dict[str, EncodedCounts]:
        """The counts of rows, bytes and tokens that each source was encoded to; empty if unknown."""
        return (self.facts.build and self.facts.build.encoded) or {}

    @cached_property
    def lengths(self) -> list[int]:
        """How many documents have a length in each bin of statistics.py."""
        return added((one.lengths for one in self.statistics.values()), [])

    def tokens_of(self, split: str, source: str) -> int:
        """Return the tokens of a source in a split."""
        counts = self.statistics[split].sources.get(source) if split in self.statistics else None
        return counts.tokens if counts else 0

    @cached_property
    def fates(self) -> dict[str, tuple[int, ...]]:
        """Rows read, filtered, quarantined, dropped and kept, of each source if build.json says it, and of all."""
        rows = self.facts.manifest.rows
        fates: dict[str, tuple[int, ...]] = {}
        for name, counts in self.sources.items():
            marks = self.facts.build.marks.get(name) if self.facts.build else None
            if marks and marks.copies.documents:
                continue  # how many of its documents are copies is not known
            if self.statistics and (found := self.encoded.get(name)) and found.rows:
                quarantined = found.rows - found.filtered - found.documents
                dropped = found.documents - counts.documents
                fates[name] = (found.rows, found.filtered, quarantined, dropped, counts.documents)
        dropped = rows.duplicates + rows.excluded + rows.marked
        return fates | {"all": (rows.read, rows.filtered, rows.quarantined, dropped, rows.kept)}


def collect_for_build(build: Build, version: str) -> VersionFigures:
    """Collect the figures of a version in a worker of its build, which has the tokenizer in memory.

    Raises as collect_figures, and TokenizerError as load_job_tokenizer.
    """
    tokenizer = load_job_tokenizer(build.definition, build.tokenizer.fingerprint)
    return collect_figures(build.store, load_manifest(build.store, version), tokenizer)


def collect_figures(store: Store, manifest: Manifest, tokenizer: Tokenizer | None = None) -> VersionFigures:
    """Collect the figures of a version.

    Args:
        store: the dataset's store.
        manifest: the manifest of the version.
        tokenizer: decodes its tokens; None to load it, if that is possible here.

    Raises:
        FormatError: a file of the version is damaged.
        StoreError: the store can't be read.
    """
    notes: list[str] = []
    tables = VersionTables(store, manifest)
    facts = VersionFacts(store, manifest, find_build_record(store, manifest.version))
    statistics = facts.build.statistics if facts.build else {}
    if not _fit(manifest, statistics):
        statistics = {}
        notes.append("build.json is missing or damaged, so sources, lengths and perhaps more are unknown.")
    tokenizer = tokenizer or version_decoder(store, manifest)
    if tokenizer is None:
        notes.append(f"The tokenizer {manifest.tokenizer.name} can't be loaded here, so no text is decoded.")
    current = tags.tagged_versions(store).get(manifest.version, [])
    history = _history(store, manifest.version, current)
    replaced = history[-1].previous if history else None
    return VersionFigures(
        facts=facts,
        inputs=tables.inputs,
        tags=current,
        replaced=replaced,
        statistics=statistics,
        sample=frequent_tokens(store, manifest, tokenizer),
        documents=sampled_documents(tables, tokenizer),
        previous=_previous(store, replaced),
        history=_tokens_of(store, history),
        notes=notes,
    )


def _fit(manifest: Manifest, statistics: dict[str, DocumentStatistics]) -> bool:
    """Check that statistics, which no checksum covers, add up to the counts of a manifest."""
    return counts_of_splits(manifest) == {
        name: added(split.sources.values(), DocumentCounts(0, 0)) for name, split in statistics.items()
    } and all(
        sum(split.lengths) == manifest.splits[name].documents and min(split.lengths, default=0) >= 0
        for name, split in statistics.items()
    )


def _history(store: Store, version: str, current: Sequence[str]) -> list[tags.TagEntry]:
    """Read the moves of a tag up to the one by which a build, or else a person, published this version."""
    for tag in dict.fromkeys([tags.LATEST, tags.TRYOUT, *current]):
        entries = tags.log(store, tag, {})
        moves = [index for index, entry in enumerate(entries) if entry.version == version]
        if moves:
            by_build = [index for index in moves if entries[index].reason == tags.BUILD_REASON]
            return entries[: (by_build[-1] if by_build else moves[0]) + 1]
    return []


def _tokens_of(store: Store, history: Sequence[tags.TagEntry]) -> dict[str, int]:
    """Read the tokens of the last versions that a tag named and that exist, by day and name, the oldest first."""
    last = {entry.version: entry.at[:10] for entry in reversed(history)}
    names = list(last)[:_MAX_HISTORY][::-1]
    found = {}
    for name, data in zip(names, store.read_all([version_path(name, MANIFEST) for name in names]), strict=True):
        with suppress(FormatError):
            if data is not None:
                found[f"{last[name]} {name[:8]}"] = read_manifest(data, name).num_tokens
    return found


def _previous(store: Store, version: str | None) -> VersionFacts | None:
    """Read the facts of the version before; None if there was none, or it is gone."""
    with suppress(StoreError):
        return facts_of(store, version) if version else None
    return None


def _largest_first(counts: dict[str, DocumentCounts]) -> dict[str, DocumentCounts]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1].tokens, item[0])))


def counts_of_splits(manifest: Manifest) -> dict[str, DocumentCounts]:
    """Read the documents and tokens of each split from a manifest."""
    return {name: DocumentCounts(split.documents, split.tokens) for name, split in manifest.splits.items()}


def unlike_shares(splits: Mapping[str, DocumentCounts]) -> dict[str, tuple[float, float]]:
    """Find the splits whose share of the tokens is more than twice or less than half of that of the documents.

    Returns (share of the documents, share of the tokens) of each; a split of fewer than 10 documents says nothing.
    """
    total = added(splits.values(), DocumentCounts(0, 0))
    counted = {name: counts for name, counts in splits.items() if counts.documents >= _MIN_DOCUMENTS}
    shares = {name: (each.documents / total.documents, each.tokens / total.tokens) for name, each in counted.items()}
    return {name: pair for name, pair in shares.items() if max(pair) > 2 * min(pair)}


class TokenSample(NamedTuple):
    """(id, text, count) of the most frequent tokens among `num_tokens` tokens of `num_shards` shards.

    A text is None if it can't be decoded here.
    """

    tokens: list[tuple[int, str | None, int]]
    num_tokens: int
    num_shards: int


class ShownDocument(FoundDocument):
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


def sampled_documents(tables: VersionTables, tokenizer: Tokenizer | None) -> list[ShownDocument]:
    """Read ten documents at equal distances, from a place that the version's name gives, or all if there are fewer.

    Raises FormatError if a shard or its document table is damaged.
    """
    entries = tables.manifest.shards
    open_table = cache(lambda index: tables.open(entries[index]))
    ends = np.cumsum([entry.documents for entry in entries])
    total = int(ends[-1]) if len(ends) and tokenizer is not None else 0
    documents: list[ShownDocument] = []
    first = int(tables.manifest.version, 16)
    stride = max(1, total // _NUM_DOCUMENTS)
    for position in sorted((first + i * stride) % total for i in range(min(_NUM_DOCUMENTS, total))):
        index = int(np.searchsorted(ends, position, side="right"))
        entry = entries[index]
        row = position - int(ends[index]) + entry.documents
        (found,) = tables.documents(entry, open_table(index).rows(row, row + 1))
        documents.append(_with_text(StoredShard(tables.store, tables.manifest.version, entry), found, tokenizer))
    return documents


def _with_text(shard: StoredShard, document: FoundDocument, tokenizer: Tokenizer | None) -> ShownDocument:
    start = document["start"]
    num_tokens = document["num_tokens"]
    if not start < start + num_tokens <= shard.entry.tokens:
        raise shard.wrong_table()
    ids = shard.tokens(start, start + min(num_tokens - 1, 4 * _TEXT_CHARS))
    text = _decode(tokenizer, ids) or ""
    is_cut = len(ids) < num_tokens - 1 or len(text) > _TEXT_CHARS
    return {**document, "text": text[:_TEXT_CHARS], "is_cut": is_cut}


def _decode(tokenizer: Tokenizer | None, ids: NDArray[Any]) -> str | None:
    """Decode ids; None if the tokenizer is missing or an id is not of its vocabulary."""
    if tokenizer is None or (len(ids) and int(ids.max()) >= tokenizer.vocab_size):
        return None
    return tokenizer.decode(ids)
