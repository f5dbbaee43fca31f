"""The catalogue of a store: one page, `STORE/index.html`, of its datasets and versions, with links to their reports.

It is derived: every publication, move of a tag, `gc` and `report` makes it again from the store, the last writer wins,
and nothing reads it. What it lists is limited, so that a store of thousands of versions costs a publication no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.build_record import BuildRecord, decode_build
from tokenloom.storage.versions.published import REPORTS, report_path, version_path
from tokenloom.storage.versions.references import dataset_store

_MAX_DATASETS, _MAX_VERSIONS, _MIN_VERSIONS = 200, 200, 3  # listed of a store, together, and of each dataset


@dataclass
class ListedVersion:
    """A published version in a list: `manifest` and `build` are None if they are damaged, and `damage` says how."""

    tags: list[str]
    manifest: Manifest | None = None
    build: BuildRecord | None = None
    damage: str | None = None

    @property
    def at(self) -> str:
        """When it was published, "-" if unknown."""
        return self.build.at if self.build else "-"


def list_versions(store: Store, names: Sequence[str]) -> dict[str, ListedVersion]:
    """Read some versions of a dataset, the newest first; one without a manifest does not exist.

    Raises FormatError if a tag is damaged.
    """
    tags_of = tags.tagged_versions(store)
    manifests = store.read_all([version_path(version, MANIFEST) for version in names])
    builds = store.read_all([version_path(version, BUILD) for version in names])
    found: dict[str, ListedVersion] = {}
    for version, data, build in zip(names, manifests, builds, strict=True):
        if data is not None:
            found[version] = listed = ListedVersion(tags_of.get(version, []))
            try:
                listed.manifest = read_manifest(data, store.place(version_path(version, MANIFEST)), version)
            except FormatError as error:
                listed.damage = f"{error}; `tokenloom verify {store.root}@{version}` says what to do"
            with suppress(FormatError):  # no checksum covers it, and nothing depends on it
                listed.build = decode_build(build or b"", BUILD)
    return dict(sorted(found.items(), key=lambda item: (item[1].at, item[0]), reverse=True))


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
    datasets = {name: dataset for name, dataset in datasets.items() if dataset["num_versions"]}
    newest = [next(iter(each["versions"].values())).manifest for each in datasets.values() if each["versions"]]
    return render(
        "catalogue.html",
        root=str(folder.root),
        datasets=datasets,
        newest=[manifest for manifest in newest if manifest],
        num_unlisted=max(0, len(names) - _MAX_DATASETS),
    )


def _dataset(store: Store, name: str, limit: int) -> dict[str, Any]:
    """Read a dataset: at most `limit` versions, newest first, and the relative URLs of their reports."""
    names = list(filter(VERSION_PATTERN.match, store.names("versions")))
    chosen = names if len(names) <= limit else _choose(store, names, limit)
    versions = list_versions(store, chosen)
    written = set(store.names(REPORTS))
    paths = {version: report_path(version) for version in versions}
    reports = {
        version: f"{name}/{path}" if path.rpartition("/")[2] in written else None for version, path in paths.items()
    }
    num_versions = len(names) - (len(chosen) - len(versions))
    return {"versions": versions, "reports": reports, "num_versions": num_versions}


def _choose(store: Store, names: Sequence[str], limit: int) -> list[str]:
    """Choose the versions to list: the tagged ones, those that `latest` named last, then any."""
    numbers = tags.entry_numbers(store, tags.LATEST)[-limit:]
    existing = set(names)
    recent = [tags.read_entry(store, tags.LATEST, number).version for number in reversed(numbers)]
    chosen = dict.fromkeys([*tags.tagged_versions(store), *recent, *names])
    return [each for each in chosen if each in existing][:limit]
