"""`tokenloom ls`: list the datasets of a store, or the versions of a dataset."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import NamedTuple

from tokenloom.cli.argument_types import add_store
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.console import printable_line
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import BUILD
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.formats.version_files import decode_build
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import load_manifest, published_versions, version_path
from tokenloom.storage.versions.references import dataset_store, nearest_names
from tokenloom.storage.versions.tags import TagEntry
from tokenloom.wording import shortened, shown_bytes, shown_time

_MAX_TEXT = 20  # characters of a name, of tags or of a reason in a table


class _Publication(NamedTuple):
    """When a version was published, by whom and why; None where the store does not say."""

    at: str | None
    by: str | None
    reason: str | None


@dataclass(frozen=True)
class ListedDataset:
    """A dataset of a store; `latest` was set `at` this time; `damage` describes the damage to that tag."""

    dataset: str
    versions: int
    latest: str | None
    at: str | None
    damage: str | None


@dataclass(frozen=True)
class DatasetsResult(Result):
    """The datasets of a store."""

    store: str
    datasets: list[ListedDataset]


@dataclass(frozen=True)
class ListedVersion:
    """A version of a dataset; its counts are None if its manifest is damaged.

    `at`, `by` and `reason` are of the first move of a tag to it; of its build.json if no tag ever named it; None if
    neither says so.
    """

    version: str
    tags: list[str]
    tokens: int | None
    documents: int | None
    bytes: int | None
    damage: str | None
    at: str | None
    by: str | None
    reason: str | None


@dataclass(frozen=True)
class VersionsResult(Result):
    """The versions of a dataset, newest first, and the damages of its tags and manifests."""

    dataset: str
    versions: list[ListedVersion]
    damages: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_store(parser)


def run(store: str, out: Output) -> DatasetsResult | VersionsResult:
    """List the datasets of a store, or the versions of a dataset."""
    folder = open_store(store)
    names = set(folder.names(""))
    if not names and not folder.exists(""):
        raise StoreError(f"{store}: no such store or dataset; a build creates it{nearest_names(folder)}")
    if names & {"versions", "tags"}:
        return _list_versions(folder, out)
    return _list_datasets(folder, sorted(filter(NAME_PATTERN.match, names)), out)


def _list_datasets(store: Store, names: list[str], out: Output) -> DatasetsResult:
    found = [_listed_dataset(dataset_store(str(store.root), name), name) for name in names]
    datasets = [dataset for dataset in found if dataset]
    rows = [
        [each.dataset, each.versions, each.damage or each.latest or "-", shown_time(each.at or "-")]
        for each in datasets
    ]
    if rows:
        out.table(["dataset", "versions", "latest", "since (UTC)"], rows)
    else:
        out.line(f"nothing has been published in {store.root} yet")
    return DatasetsResult(str(store.root), datasets)


def _listed_dataset(store: Store, name: str) -> ListedDataset | None:
    """Return None if nothing was ever published in the dataset."""
    versions = published_versions(store)
    latest, damage = _newest(store, "latest")
    if not versions and latest is None and damage is None:
        return None
    return ListedDataset(name, len(versions), latest.version if latest else None, latest.at if latest else None, damage)


def _list_versions(store: Store, out: Output) -> VersionsResult:
    tags_of: dict[str, list[str]] = {}
    entries: list[TagEntry] = []
    damages = []
    for tag in store.names("tags"):
        newest, damage = _newest(store, tag)
        if newest:
            tags_of.setdefault(newest.version, []).append(tag)
        found, problems = tags.read_log(store, tag)
        entries += found
        damages += [damage or _damaged(tag)] if damage or problems else []
    names = published_versions(store)
    publications = _publications(store, names, entries)
    versions = [_listed_version(store, name, tags_of.get(name, []), publications[name]) for name in names]
    versions.sort(key=lambda version: version.at or "", reverse=True)
    damages += [version.damage for version in versions if version.damage]
    _print_versions(out, versions)
    for damage in damages:
        out.line(damage)
    return VersionsResult(str(store.root).rpartition("/")[2], versions, damages)


def _publications(store: Store, versions: list[str], entries: list[TagEntry]) -> dict[str, _Publication]:
    """Return when, by whom and why each version was published, as far as the store says it."""
    found: dict[str, _Publication] = {}
    for entry in sorted(entries, key=lambda entry: entry.at):
        found.setdefault(entry.version, _Publication(entry.at, entry.by, entry.reason))
    untagged = [version for version in versions if version not in found]
    files = store.read_all([version_path(version, BUILD) for version in untagged])
    return found | {version: _built(data) for version, data in zip(untagged, files, strict=True)}


def _built(data: bytes | None) -> _Publication:
    """Return what the bytes of a build.json say, None if there is none."""
    try:
        record = decode_build(data or b"", BUILD)
    except FormatError:  # no checksum covers it, and nothing depends on it
        return _Publication(None, None, None)
    return _Publication(record.at, record.by, tags.BUILD_REASON)


def _print_versions(out: Output, versions: list[ListedVersion]) -> None:
    header = ["version", "published (UTC)", "documents", "tokens", "size", "by", "tags", "reason"]
    out.table(header, [_cells(version) for version in versions])


def _cells(version: ListedVersion) -> list[str | int]:
    counts: list[str | int] = ["damaged"] * 3
    if version.damage is None:
        counts = [version.documents or 0, version.tokens or 0, shown_bytes(version.bytes or 0)]
    texts = version.by or "-", ", ".join(version.tags), version.reason or "-"
    return [
        version.version,
        shown_time(version.at or "-"),
        *counts,
        *(shortened(printable_line(text), _MAX_TEXT) for text in texts),
    ]


def _newest(store: Store, tag: str) -> tuple[TagEntry | None, str | None]:
    """Return the newest entry of a tag, and a description of the tag's damage; either may be None."""
    try:
        return tags.newest(store, tag), None
    except (FormatError, StoreError) as error:
        _raise_if_remote(store, error)
        return None, _damaged(tag)


def _damaged(tag: str) -> str:
    return f"damaged: tags/{tag}; see `tokenloom verify`"


def _listed_version(store: Store, version: str, names: list[str], publication: _Publication) -> ListedVersion:
    try:
        manifest = load_manifest(store, version)
    except (FormatError, StoreError) as error:
        _raise_if_remote(store, error)
        damage = f"{error}; `tokenloom verify {store.root}@{version}` says what to do"
        return ListedVersion(version, names, None, None, None, damage, *publication)
    counts = manifest.num_tokens, manifest.num_documents, manifest.shard_bytes
    return ListedVersion(version, names, *counts, None, *publication)


def _raise_if_remote(store: Store, error: Exception) -> None:
    """Raise an error of a remote store, which may be transient; on a local store the file itself is damaged."""
    if isinstance(error, StoreError) and not store.is_local:
        raise error
