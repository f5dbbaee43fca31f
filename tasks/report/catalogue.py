"""The catalogue of a store: one page, `STORE/index.html`, of its datasets and versions, with links to their reports.

It is derived: every publication, move of a tag, `gc` and `report` makes it again from the store, the last writer wins,
and nothing reads it. What it lists is limited, so that a store of thousands of versions costs a publication no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tokenloom.errors import FormatError, TokenloomError, message_of, named_message_of
from tokenloom.storage.formats.manifest import BUILD, MANIFEST, Manifest, read_manifest
from tokenloom.storage.formats.names import NAME_PATTERN, VERSION_PATTERN
from tokenloom.storage.formats.version_files import BuildRecord, decode_build
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import REPORTS, report_path, version_path
from tokenloom.storage.versions.references import dataset_store
from tokenloom.tasks.publishing.gates import failed
from tokenloom.tasks.report.wording import clipped, megabytes, short
from tokenloom.wording import counted, shown_time

INDEX = "index.html"
_MAX_DATASETS, _MAX_VERSIONS, _MIN_VERSIONS = 200, 200, 3  # listed of a store, together, and of each dataset
_TEXT_CHARS = 100  # of a name or a reason
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """A version in words; `figures` are documents, tokens and size, `report` is the relative URL of its report."""

    version: str
    at: str
    by: str
    figures: Sequence[str]
    tags: Sequence[str]
    checks: str
    is_bad: bool
    report: str | None
    num_tokens: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CatalogueDataset:
    """A dataset: the versions that are listed, the newest first, and how many there are."""

    name: str
    versions: Sequence[CatalogueRow]
    num_versions: int

    @property
    def lead(self) -> str:
        """How many versions there are, and what is left out."""
        left_out = self.num_versions - len(self.versions)
        more = f"; {left_out:,} of them are not listed, see `tokenloom ls`" if left_out else ""
        return f"{counted(self.num_versions, 'version')}{more}"


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
    """Write the catalogue of the store at `root`; return its place, a local path or a URL, and its length in bytes.

    Raises StoreError if the store can't be read or written.
    """
    folder = open_store(root)
    page = render_catalogue(root, folder).encode()
    folder.replace(INDEX, page, durable=False)
    folder.remove_empty_folders("work")  # of the temporary file: it would look like a part of a dataset
    return folder.place(INDEX), len(page)


def render_catalogue(root: str, folder: Store) -> str:
    """Return the page; the same store gives the same text, except for the versions that a limit leaves out."""
    from tokenloom.tasks.report.templates import template  # late: only this needs the packages that write pages

    names = [name for name in folder.names("") if NAME_PATTERN.match(name) and name != INDEX]
    limit = max(_MIN_VERSIONS, _MAX_VERSIONS // max(1, min(len(names), _MAX_DATASETS)))
    found = [_dataset(dataset_store(root, name), name, limit) for name in names[:_MAX_DATASETS]]
    datasets = [dataset for dataset in found if dataset.num_versions]
    newest = [dataset.versions[0] for dataset in datasets if dataset.versions]
    tokens, num_bytes = sum(row.num_tokens for row in newest), sum(row.num_bytes for row in newest)
    left_out = len(names) - len(found)
    return template("catalogue.html").render(
        title=f"{folder.root}: tokenloom catalogue",
        place=str(folder.root),
        tiles=[
            ("Datasets", f"{len(datasets):,}", f"{left_out:,} more are not listed" if left_out else "in this store"),
            ("Versions", f"{sum(dataset.num_versions for dataset in datasets):,}", "of all datasets"),
            ("Tokens", short(tokens), "in the newest version of each"),
            ("Size", megabytes(num_bytes), "of the newest version of each"),
        ],
        datasets=datasets,
        footer="A version links to its report, if it has one. Publications, moves of tags, `tokenloom gc` and "
        f"`tokenloom report {folder.root}` make this page again.",
    )


def _dataset(store: Store, name: str, limit: int) -> CatalogueDataset:
    versions = [version for version in store.names("versions") if VERSION_PATTERN.match(version)]
    tags_of, recent = _tags(store, limit if len(versions) > limit else 1)
    there = set(versions)
    listed = [each for each in dict.fromkeys([*tags_of, *recent, *versions]) if each in there][:limit]
    manifests = store.read_all([version_path(version, MANIFEST) for version in listed])
    builds = store.read_all([version_path(version, BUILD) for version in listed])
    reports = set(store.names(REPORTS))
    rows = [
        _row(name, version, manifest, build, tags_of.get(version, []), reports)
        for version, manifest, build in zip(listed, manifests, builds, strict=True)
        if manifest is not None
    ]
    unpublished = len(listed) - len(rows)
    rows.sort(key=lambda row: (row.at, row.version), reverse=True)
    return CatalogueDataset(name, rows, len(versions) - unpublished)


def _tags(store: Store, limit: int) -> tuple[dict[str, list[str]], list[str]]:
    """Return the tags of each version that is tagged, and the versions of the last moves, the newest first.

    Args:
        store: the dataset's store.
        limit: moves of each tag to read; a damaged one is left out.
    """
    tags_of: dict[str, list[str]] = {}
    moves: list[tags.TagEntry] = []
    for tag in filter(NAME_PATTERN.match, store.names("tags")):
        log = tags.tag_log(store, tag)
        with suppress(FormatError):
            if newest := log.newest():
                tags_of.setdefault(newest.version, []).append(tag)
        for number in log.numbers()[-limit:]:
            with suppress(FormatError):
                moves.append(log.read(number))
    return tags_of, [move.version for move in sorted(moves, key=lambda move: (move.at, move.number), reverse=True)]


def _row(
    dataset: str, version: str, manifest: bytes, build: bytes | None, tagged: Sequence[str], reports: set[str]
) -> CatalogueRow:
    path = report_path(version)
    record, checks, is_bad = None, "not recorded", False
    with suppress(FormatError):
        record = decode_build(build or b"", BUILD)
        checks, is_bad = _checks(record)
    try:
        contents = read_manifest(manifest, MANIFEST)
    except FormatError:
        contents, checks, is_bad = None, "damaged: see tokenloom verify", True
    return CatalogueRow(
        version=version,
        at=shown_time(record.at) if record and record.at else _UNKNOWN,
        by=clipped(record.by, _TEXT_CHARS) if record and record.by else _UNKNOWN,
        figures=_figures(contents) if contents else [_UNKNOWN] * 3,
        tags=tagged,
        checks=checks,
        is_bad=is_bad,
        report=f"{dataset}/{path}" if path.rpartition("/")[2] in reports else None,
        num_tokens=contents.num_tokens if contents else 0,
        num_bytes=contents.shard_bytes if contents else 0,
    )


def _figures(manifest: Manifest) -> list[str]:
    return [f"{manifest.num_documents:,}", f"{manifest.num_tokens:,}", megabytes(manifest.shard_bytes)]


def _checks(build: BuildRecord) -> tuple[str, bool]:
    """Return what a version's checks found, in words, and whether one failed."""
    if not build.gates:
        return "none set", False
    names = [gate.name for gate in failed(build.gates)]
    if not names:
        return f"{len(build.gates):,} passed", False
    reason = f": {clipped(build.forced, _TEXT_CHARS)}" if build.forced else ""
    return f"{len(names):,} of {len(build.gates):,} failed ({', '.join(names)}), published by force{reason}", True
