"""`tokenloom ls`: list the datasets of a store, or the versions of a dataset."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.console import printable
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import load_manifest, published_versions
from tokenloom.storage.versions.references import dataset_store


@dataclass(frozen=True)
class ListedDataset:
    """A dataset of a store; `damage` describes the damage to its tag `latest`."""

    dataset: str
    versions: int
    latest: str | None
    damage: str | None


@dataclass(frozen=True)
class DatasetsResult(Result):
    """The datasets of a store."""

    store: str
    datasets: list[ListedDataset]


@dataclass(frozen=True)
class ListedVersion:
    """A version of a dataset; its counts are None if its manifest is damaged."""

    version: str
    tags: list[str]
    tokens: int | None
    documents: int | None
    bytes: int | None
    damage: str | None


@dataclass(frozen=True)
class VersionsResult(Result):
    """The versions of a dataset, and the damages of its tags and manifests."""

    dataset: str
    versions: list[ListedVersion]
    damages: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("store", metavar="STORE[/DATASET]")


def run(store: str, out: Output) -> DatasetsResult | VersionsResult:
    """List the datasets of a store, or the versions of a dataset."""
    folder = open_store(store)
    names = set(folder.names(""))
    if not names and not folder.exists(""):
        raise StoreError(f"{store}: no such store or dataset; a build creates it")
    if names & {"versions", "tags"}:
        return _list_versions(folder, out)
    return _list_datasets(folder, sorted(filter(NAME_PATTERN.match, names)), out)


def _list_datasets(store: Store, names: list[str], out: Output) -> DatasetsResult:
    found = [_listed_dataset(dataset_store(str(store.root), name), name) for name in names]
    datasets = [dataset for dataset in found if dataset]
    rows = [[each.dataset, each.versions, each.damage or each.latest or "-"] for each in datasets]
    out.table(["dataset", "versions", "latest"], rows)
    return DatasetsResult(str(store.root), datasets)


def _listed_dataset(store: Store, name: str) -> ListedDataset | None:
    """Return None if nothing was ever published in the dataset."""
    versions = published_versions(store)
    latest, damage = _tagged_version(store, "latest")
    if not versions and latest is None and damage is None:
        return None
    return ListedDataset(name, len(versions), latest, damage)


def _list_versions(store: Store, out: Output) -> VersionsResult:
    tags_of: dict[str, list[str]] = {}
    damages = []
    for tag in store.names("tags"):
        version, damage = _tagged_version(store, tag)
        if version:
            tags_of.setdefault(version, []).append(tag)
        damages += [damage] if damage else []
    versions = [_listed_version(store, name, tags_of.get(name, [])) for name in published_versions(store)]
    damages += [version.damage for version in versions if version.damage]
    out.table(["version", "tokens", "documents", "bytes", "tags"], [_cells(version) for version in versions])
    for damage in damages:
        out.line(printable(damage))
    return VersionsResult(str(store.root).rpartition("/")[2], versions, damages)


def _cells(version: ListedVersion) -> list[object]:
    counts = (version.tokens, version.documents, version.bytes)
    shown = counts if version.damage is None else ("damaged",) * len(counts)
    return [version.version, *shown, ", ".join(version.tags)]


def _tagged_version(store: Store, tag: str) -> tuple[str | None, str | None]:
    """Return the version that a tag names, and a description of the tag's damage; either may be None."""
    try:
        newest = tags.newest(store, tag)
    except (FormatError, StoreError) as error:
        _raise_if_remote(store, error)
        return None, f"damaged: tags/{tag}; see `tokenloom verify`"
    return newest.version if newest else None, None


def _listed_version(store: Store, version: str, names: list[str]) -> ListedVersion:
    try:
        splits = load_manifest(store, version).splits.values()
    except (FormatError, StoreError) as error:
        _raise_if_remote(store, error)
        damage = f"{error}; `tokenloom verify {store.root}@{version}` says what to do"
        return ListedVersion(version, names, None, None, None, damage)
    tokens, documents = sum(split.tokens for split in splits), sum(split.documents for split in splits)
    num_bytes = sum(split.shards.num_bytes() for split in splits)
    return ListedVersion(version, names, tokens, documents, num_bytes, None)


def _raise_if_remote(store: Store, error: Exception) -> None:
    """Raise an error of a remote store, which may be transient; on a local store the file itself is damaged."""
    if isinstance(error, StoreError) and not store.is_local:
        raise error
