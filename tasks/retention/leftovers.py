"""Find what nobody needs any more beside the versions: spills, unfinished files, reports, leases that have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tokenloom.errors import WorkError
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.stores.store import TMP, Store, StoredFile
from tokenloom.storage.versions.leases import BUILD, all_leases
from tokenloom.storage.versions.published import REPORTS
from tokenloom.storage.work.assignment import BUILDS, read_assignment
from tokenloom.storage.work.spill import FOLDER as SPILLS
from tokenloom.tasks.retention.policy import DAY, Policy

_PROBE = f"{TMP}/exclusive"  # stays: the next build asks with it whether the store creates exclusively


@dataclass(frozen=True)
class Leftovers:
    """Files of one kind that nobody needs."""

    kind: str
    paths: list[str]
    bytes: int


def find_leftovers(store: Store, policy: Policy, now: float, versions: Collection[str]) -> list[Leftovers]:
    """Return the files that may be deleted, by kind; kinds without files are left out.

    Args:
        store: the dataset's store.
        policy: how long work files stay.
        now: the time by the store's clock.
        versions: the versions and candidates that stay.

    Raises StoreError if the store can't be read.
    """
    found = [
        _leftovers("spills", _unused_spills(store, now - policy.work_seconds, versions, now)),
        _leftovers("temporary files", _temporaries(store, now - DAY)),
        _leftovers("reports", _reports(store, now - DAY, versions)),
        _leftovers("ended leases", _ended_leases(store, now)),
    ]
    return [each for each in found if each.paths]


def _leftovers(kind: str, files: dict[str, StoredFile]) -> Leftovers:
    return Leftovers(kind, list(files), sum(file.num_bytes for file in files.values()))


def _unused_spills(store: Store, before: float, versions: Collection[str], now: float) -> dict[str, StoredFile]:
    """Return the spills that were written long ago, and that no version was made of; none while a build runs.

    A build that starts meanwhile and misses one encodes its partition again.
    """
    files = {path: file for path, file in store.files_below(SPILLS).items() if file.modified < before}
    if not files or any(lease.purpose == BUILD and lease.end > now for lease in all_leases(store)):
        return {}
    used = set(_spills_of(store, versions))
    return {path: file for path, file in files.items() if _spill_name(path) not in used}


def _spill_name(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def _spills_of(store: Store, versions: Collection[str]) -> Iterator[str]:
    for version in sorted(set(store.names(BUILDS)).intersection(versions)):
        try:
            assignment = read_assignment(store, version)
        except WorkError:  # missing or damaged: the next build makes it again, and its spills
            continue
        yield from (spill.name for spill in assignment.spills)


def _temporaries(store: Store, before: float) -> dict[str, StoredFile]:
    files = store.files_below(TMP).items()
    return {path: file for path, file in files if file.modified < before and path != _PROBE}


def _reports(store: Store, before: float, versions: Collection[str]) -> dict[str, StoredFile]:
    """Return the reports of versions that are gone."""

    def is_gone(path: str) -> bool:
        version = path.removeprefix(f"{REPORTS}/").removesuffix(".html")
        return bool(VERSION_PATTERN.match(version)) and version not in versions

    files = store.files_below(REPORTS).items()
    return {path: file for path, file in files if file.modified < before and is_gone(path)}


def _ended_leases(store: Store, now: float) -> dict[str, StoredFile]:
    """Return the leases that have ended; a holder that renews its lease writes another file."""
    return {lease.path: StoredFile(0, lease.end) for lease in all_leases(store) if lease.end <= now}
