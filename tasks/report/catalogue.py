"""The catalogue of a store: one page, `STORE/index.html`, of its datasets and versions, with links to their reports.

It is derived: every publication, move of a tag, `gc` and `report` makes it again from the store, the last writer wins,
and nothing reads it. What it lists is limited, so that a store of thousands of versions costs a publication no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tokenloom.errors import FormatError, TokenloomError, message_of, named_message_of
from tokenloom.storage.formats.manifest import BUILD, MANIFEST, Manifest, read_manifest
from tokenloom.storage.formats.names import CATALOGUE, NAME_PATTERN, VERSION_PATTERN
from tokenloom.storage.formats.version_files import BuildRecord, decode_build
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import REPORTS, report_path, version_path
from tokenloom.storage.versions.references import dataset_store
from tokenloom.tasks.report.wording import clipped, megabytes, short
from tokenloom.wording import counted, shown_time

if TYPE_CHECKING:  # only the page itself needs the packages that write pages
    from tokenloom.tasks.report.parts import Section

T = TypeVar("T")

_MAX_DATASETS, _MAX_VERSIONS, _MIN_VERSIONS = 200, 200, 3  # listed of a store, together, and of each dataset
_TEXT_CHARS = 100  # a longer name or reason is cut
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class CatalogueVersion:
    """A version of the catalogue; `manifest` and `build` are None if they are damaged, `report` is a relative URL."""

    name: str
    manifest: Manifest | None
    build: BuildRecord | None
    tags: Sequence[str]
    report: str | None

    @property
    def at(self) -> str:
        """When it was published; "-" if that is unknown."""
        return shown_time(self.build.at) if self.build else _UNKNOWN

    @property
    def num_tokens(self) -> int:
        """Its tokens; 0 if they are unknown."""
        return self.manifest.num_tokens if self.manifest else 0

    @property
    def num_bytes(self) -> int:
        """The length of its shards; 0 if it is unknown."""
        return self.manifest.shard_bytes if self.manifest else 0


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
    folder.replace(CATALOGUE, page, durable=False)
    folder.remove_empty_folders("work")  # the temporary file was there: the folder would look like a part of a dataset
    return folder.place(CATALOGUE), len(page)


def render_catalogue(root: str, folder: Store) -> str:
    """Return the page; the same store gives the same text, except for the versions that a limit leaves out."""
    from tokenloom.tasks.report.parts import Page

    names = [name for name in folder.names("") if NAME_PATTERN.match(name)]
    limit = max(_MIN_VERSIONS, _MAX_VERSIONS // max(1, min(len(names), _MAX_DATASETS)))
    datasets, num_versions = {}, 0
    for name in names[:_MAX_DATASETS]:
        versions, num_found = _versions(dataset_store(root, name), name, limit)
        if num_found:
            datasets[name] = _section(name, versions, num_found), versions
            num_versions += num_found
    newest = [versions[0] for _, versions in datasets.values() if versions]
    left_out = max(0, len(names) - _MAX_DATASETS)
    page = Page(
        title=f"{folder.root}: tokenloom catalogue",
        kind="catalogue",
        heading=str(folder.root),
        tiles=[
            ("Datasets", f"{len(datasets):,}", f"{left_out:,} more are not listed" if left_out else "in this store"),
            ("Versions", f"{num_versions:,}", "of all datasets"),
            ("Tokens", short(sum(version.num_tokens for version in newest)), "in the newest version of each"),
            ("Size", megabytes(sum(version.num_bytes for version in newest)), "of the newest version of each"),
        ],
        notes=[] if datasets else ["Nothing is published in this store yet."],
        sections=[section for section, _ in datasets.values()],
        footer="A version links to its report, if it has one. Publications, moves of tags, `tokenloom gc` and "
        f"`tokenloom report {folder.root}` make this page again.",
    )
    return page.render(max_rows=_MAX_VERSIONS)


def _section(name: str, versions: Sequence[CatalogueVersion], num_versions: int) -> Section:
    """Return the section of a dataset: the versions that are listed, the newest first."""
    from tokenloom.tasks.report.parts import Section, Table

    left_out = num_versions - len(versions)
    more = f"; {left_out:,} of them are not listed, see `tokenloom ls`" if left_out else ""
    columns = ["version", "published (UTC)", "documents", "tokens", "size", "tags", "by", "checks"]
    texts = ["published (UTC)", "tags", "by", "checks"]
    table = Table(f"Versions of {name}", columns, [_cells(version) for version in versions], texts)
    return Section(name, name, f"{counted(num_versions, 'version')}{more}", tables=[table])


def _versions(store: Store, dataset: str, limit: int) -> tuple[list[CatalogueVersion], int]:
    """Return the versions of a dataset to list, the newest first, and how many there are."""
    names = [version for version in store.names("versions") if VERSION_PATTERN.match(version)]
    tags_of, recent = _tags(store, limit if len(names) > limit else 1)
    there = set(names)
    listed = [each for each in dict.fromkeys([*tags_of, *recent, *names]) if each in there][:limit]
    manifests = store.read_all([version_path(version, MANIFEST) for version in listed])
    builds = store.read_all([version_path(version, BUILD) for version in listed])
    reports = set(store.names(REPORTS))
    found = []
    for name, manifest, build in zip(listed, manifests, builds, strict=True):
        if manifest is not None:
            path = report_path(name)
            report = f"{dataset}/{path}" if path.rpartition("/")[2] in reports else None
            found.append(
                CatalogueVersion(
                    name,
                    _decoded(read_manifest, manifest, MANIFEST),
                    _decoded(decode_build, build or b"", BUILD),
                    tags_of.get(name, []),
                    report,
                )
            )
    found.sort(key=lambda version: (version.at, version.name), reverse=True)
    return found, len(names) - (len(listed) - len(found))


def _decoded(decode: Callable[[bytes, str], T], data: bytes, name: str) -> T | None:
    with suppress(FormatError):
        return decode(data, name)
    return None


def _tags(store: Store, limit: int) -> tuple[dict[str, list[str]], list[str]]:
    """Return the tags of each version that is tagged, and the versions of the last moves, the newest first.

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


def _cells(version: CatalogueVersion) -> list[str]:
    from tokenloom.tasks.report.parts import linked, marked

    manifest, build = version.manifest, version.build
    figures = (
        [f"{manifest.num_documents:,}", f"{manifest.num_tokens:,}", megabytes(manifest.shard_bytes)] if manifest else []
    )
    checks = _checks(build) if manifest else marked("bad", "damaged: see tokenloom verify")
    return [
        linked(version.name, version.report),
        marked("date", version.at),
        *(figures or [_UNKNOWN] * 3),
        marked("tag", *version.tags),
        clipped(build.by, _TEXT_CHARS) if build else _UNKNOWN,
        checks,
    ]


def _checks(build: BuildRecord | None) -> str:
    """Return how many checks a version passed, in words."""
    if build is None:
        return "not recorded"
    return f"{len(build.gates):,} passed" if build.gates else "none set"
