"""The catalogue of a store: one page, `STORE/index.html`, of its datasets and versions, with links to their reports.

It is derived: every publication, move of a tag, `gc` and `report` makes it again from the store, the last writer wins,
and nothing reads it. What it lists is limited, so that a store of thousands of versions costs a publication no more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tokenloom.errors import FormatError, TokenloomError, message_of, named_message_of
from tokenloom.storage.formats.manifest import (
    BUILD,
    CATALOGUE,
    MANIFEST,
    NAME_PATTERN,
    VERSION_PATTERN,
    Manifest,
    read_manifest,
)
from tokenloom.storage.formats.version_files import BuildRecord, decode_build
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import REPORTS, report_path, version_path
from tokenloom.storage.versions.references import dataset_store

T = TypeVar("T")

_MAX_DATASETS, _MAX_VERSIONS, _MIN_VERSIONS = 200, 200, 3  # listed of a store, together, and of each dataset


class _Version(NamedTuple):
    """A version of the catalogue; `manifest` and `build` are None if they are damaged."""

    manifest: Manifest | None
    build: BuildRecord | None
    tags: list[str]


@dataclass(frozen=True)
class _Dataset:
    """A dataset of the catalogue: its versions to list, newest first, and the relative URLs of their reports."""

    versions: dict[str, _Version]
    reports: dict[str, str | None]
    num_versions: int


def try_to_write_catalogue(store: Store) -> str | None:
    """Write the catalogue of a dataset's store again; return why that failed in one line, None if it is written."""
    root = str(store.root).rpartition("/")[0] or "/"
    try:
        write_catalogue(root)
        return None
    except Exception as error:  # noqa: BLE001  (a page that can be made again at any time fails nothing)
        why = message_of(error) if isinstance(error, (TokenloomError, OSError)) else named_message_of(error)
    return f"the catalogue was not written: {why}; `tokenloom report {root}` writes it later"


def write_catalogue(root: str) -> tuple[str, int]:
    """Write the catalogue of the store at `root`; return its local path or URL, and its length in bytes.

    Raises StoreError if the store can't be read or written.
    """
    folder = open_store(root)
    page = render_catalogue(root, folder).encode()
    folder.replace(CATALOGUE, page, durable=False)
    folder.remove_empty_folders("work")  # the temporary file was there: the folder would look like a part of a dataset
    return folder.place(CATALOGUE), len(page)


def render_catalogue(root: str, folder: Store) -> str:
    """Render the page; the same store gives the same text, except for the versions that a limit leaves out."""
    from tokenloom.tasks.report.templates import render  # late: only the page itself needs Jinja

    names = list(filter(NAME_PATTERN.match, folder.names("")))
    limit = max(_MIN_VERSIONS, _MAX_VERSIONS // max(1, min(len(names), _MAX_DATASETS)))
    datasets = {name: _dataset(dataset_store(root, name), name, limit) for name in names[:_MAX_DATASETS]}
    datasets = {name: dataset for name, dataset in datasets.items() if dataset.num_versions}
    newest = [next(iter(dataset.versions.values())).manifest for dataset in datasets.values() if dataset.versions]
    return render(
        "catalogue.html",
        _MAX_VERSIONS,
        root=str(folder.root),
        datasets=datasets,
        newest=[manifest for manifest in newest if manifest],
        num_unlisted=max(0, len(names) - _MAX_DATASETS),
    )


def _dataset(store: Store, name: str, limit: int) -> _Dataset:
    """Read a dataset with at most `limit` versions: the tagged ones, those of the last moves, then any."""
    names = list(filter(VERSION_PATTERN.match, store.names("versions")))
    tags_of, recent = _tags(store, limit if len(names) > limit else 1)
    there = dict.fromkeys(names)
    listed = [each for each in dict.fromkeys([*tags_of, *recent, *names]) if each in there][:limit]
    manifests = store.read_all([version_path(version, MANIFEST) for version in listed])
    builds = store.read_all([version_path(version, BUILD) for version in listed])
    found = {
        version: _Version(_decoded(read_manifest, data), _decoded(decode_build, build or b""), tags_of.get(version, []))
        for version, data, build in zip(listed, manifests, builds, strict=True)
        if data is not None
    }
    newest_first = sorted(found, key=lambda version: (_at(found[version]), version), reverse=True)
    written = set(store.names(REPORTS))
    paths = {version: report_path(version) for version in newest_first}
    reports = {
        version: f"{name}/{path}" if path.rpartition("/")[2] in written else None for version, path in paths.items()
    }
    versions = {version: found[version] for version in newest_first}
    return _Dataset(versions, reports, len(names) - (len(listed) - len(found)))


def _at(version: _Version) -> str:
    return version.build.at if version.build else "-"


def _decoded(decode: Callable[[bytes, str], T], data: bytes) -> T | None:
    with suppress(FormatError):
        return decode(data, "")
    return None


def _tags(store: Store, limit: int) -> tuple[dict[str, list[str]], list[str]]:
    """Read the tags of each version that is tagged, and the versions of the last moves, the newest first.

    Args:
        store: the dataset's store.
        limit: moves of each tag to read; a damaged one is left out.
    """
    tags_of: dict[str, list[str]] = {}
    moves: list[tags.TagEntry] = []
    for tag in filter(NAME_PATTERN.match, store.names("tags")):
        with suppress(FormatError):
            if newest := tags.newest(store, tag):
                tags_of.setdefault(newest.version, []).append(tag)
        for number in tags.entry_numbers(store, tag)[-limit:]:
            with suppress(FormatError):
                moves.append(tags.read_entry(store, tag, number))
    return tags_of, [move.version for move in sorted(moves, key=lambda move: (move.at, move.number), reverse=True)]
