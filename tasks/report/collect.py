"""Collect the figures of a version for its report: from the store alone, and without reading all its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import MANIFEST, Manifest, read_manifest
from tokenloom.storage.formats.statistics import DocumentStatistics
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import find_build_record, load_manifest, read_inputs, version_path
from tokenloom.tasks.planning.plan import Build
from tokenloom.tasks.publishing.version_facts import VersionFacts, facts_of
from tokenloom.tasks.report.figures import VersionFigures, counts_of_splits, total_of
from tokenloom.tasks.report.samples import frequent_tokens, sampled_documents
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.loading import load_job_tokenizer, version_decoder

_MAX_HISTORY = 20  # versions whose tokens are compared


def collect_for_build(build: Build, version: str) -> VersionFigures:
    """Return the figures of a version in a worker of its build, which has the tokenizer in memory.

    Raises as collect_figures, and TokenizerError as load_job_tokenizer.
    """
    tokenizer = load_job_tokenizer(build.definition, build.tokenizer.fingerprint)
    return collect_figures(build.store, load_manifest(build.store, version), tokenizer)


def collect_figures(store: Store, manifest: Manifest, tokenizer: Tokenizer | None = None) -> VersionFigures:
    """Return the figures of a version.

    Args:
        store: the dataset's store.
        manifest: the manifest of the version.
        tokenizer: decodes its tokens; None to load it, if that is possible here.

    Raises:
        FormatError: a file of the version is damaged.
        StoreError: the store can't be read.
    """
    notes: list[str] = []
    inputs = read_inputs(store, manifest)
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
        inputs=inputs,
        tags=current,
        replaced=replaced,
        statistics=statistics,
        sample=frequent_tokens(store, manifest, tokenizer),
        documents=sampled_documents(store, manifest, inputs, tokenizer),
        previous=_previous(store, replaced),
        history=_tokens_of(store, history),
        notes=notes,
    )


def _fit(manifest: Manifest, statistics: dict[str, DocumentStatistics]) -> bool:
    """Return whether statistics, which no checksum covers, add up to the counts of a manifest."""
    expected = counts_of_splits(manifest)
    found = {name: total_of(split.sources.values()) for name, split in statistics.items()}
    counted = {name: sum(split.lengths) for name, split in statistics.items()}
    bins = [count for split in statistics.values() for count in split.lengths]
    return (
        found == expected
        and counted == {name: counts.documents for name, counts in expected.items()}
        and min(bins, default=0) >= 0
    )


def _history(store: Store, version: str, current: Sequence[str]) -> list[tags.TagEntry]:
    """Return the moves of a tag up to the one by which a build, or else a person, published this version."""
    for tag in dict.fromkeys([tags.LATEST, tags.TRYOUT, *current]):
        entries = tags.read_log(store, tag)[0]
        moves = [index for index, entry in enumerate(entries) if entry.version == version]
        if moves:
            by_build = [index for index in moves if entries[index].reason == tags.BUILD_REASON]
            return entries[: (by_build[-1] if by_build else moves[0]) + 1]
    return []


def _tokens_of(store: Store, history: Sequence[tags.TagEntry]) -> dict[str, int]:
    """Return the tokens of the last versions that a tag named and that are there, by day and name, the oldest first."""
    last = {entry.version: entry.at[:10] for entry in reversed(history)}
    names = list(last)[:_MAX_HISTORY][::-1]
    found = {}
    for name, data in zip(names, store.read_all([version_path(name, MANIFEST) for name in names]), strict=True):
        with suppress(FormatError):
            if data is not None:
                found[f"{last[name]} {name[:8]}"] = read_manifest(data, name).num_tokens
    return found


def _previous(store: Store, version: str | None) -> VersionFacts | None:
    """Return the facts of the version before; None if there was none, or it is gone."""
    with suppress(StoreError):
        return facts_of(store, version) if version else None
    return None
