"""Delete the versions of a dataset that no rule keeps, and the files in work/ and reports/ that no version needs; and
measure the space that each part uses.

docs/guides/versions.md states the rules, and why nothing is lost that a build or a tag uses meanwhile. The age of a
file is the time of this machine less the time that the store gives it.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import MANIFEST
from tokenloom.storage.stores.store import TMP, Store, StoredFile
from tokenloom.storage.versions.published import REPORTS, is_dataset, version_path
from tokenloom.storage.versions.tags import tagged_versions
from tokenloom.storage.work.plans import PLANS, plan_path, planned_spills
from tokenloom.storage.work.records import BUILDS, find_assignments
from tokenloom.storage.work.records import FOLDER as SPILLS
from tokenloom.wording import counted, shown_age, shown_bytes

DAY = 24 * 3600.0
_FILES_AT_ONCE = 1000  # deleted in one request, where the store can
_VERSIONS_AT_ONCE = 32  # whose manifests are in memory, and gone, while the tags are read again
_BUILT = "a build has just begun to make it, or has published it"
_PROBE = f"{TMP}/exclusive"  # stays: the next build asks with it whether the store creates exclusively
_OF_VERSION = re.compile(rf"(?:versions|{BUILDS}|{PLANS}|{REPORTS})/([0-9a-f]{{16}})(?:/|\.json\Z|\.html\Z)")


@dataclass(frozen=True)
class Policy:
    """The versions and files that a collection keeps besides tagged versions.

    Args:
        keep_last: so many of the versions that were published last.
        grace_seconds: all that was written less than this time ago.
    """

    keep_last: int = 3
    grace_seconds: float = 14 * DAY


@dataclass(frozen=True)
class VersionStatus:
    """A version that has files, with the records of its build.

    `kept` says why gc keeps it, "" if it does not.
    """

    version: str
    published: bool
    tags: list[str]
    files: int
    bytes: int
    kept: str


@dataclass
class Collected:
    """The result of a collection: all that it deleted, or would delete with `delete`.

    `kept` says why it kept a version, `leftovers` counts files by kind, `bytes` are freed.
    """

    dataset: str
    delete: bool
    deleted: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    leftovers: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def verb(self) -> str:
        """How to say that a version was or would be deleted."""
        return "deleted" if self.delete else "would delete"

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (version, outcome, reason) of each version, for tables."""
        gone = [(version, self.verb, "no tag names it, and no rule keeps it") for version in self.deleted]
        return [*gone, *((version, "kept", why) for version, why in self.kept.items())]

    def line(self) -> str:
        """Return the result in one line."""
        versions, freed = counted(len(self.deleted), "version"), shown_bytes(self.bytes)
        did = f"deleted {versions}, freed {freed}" if self.delete else f"would delete {versions} and free {freed}"
        return f"{self.dataset}: {did}; {len(self.kept):,} kept"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of `gc --json`."""
        return asdict(self) | {"kept": [{"version": version, "why": why} for version, why in self.kept.items()]}


def collect(store: Store, policy: Policy, *, delete: bool = False) -> Collected:
    """Find and delete the versions and files of a dataset that nothing keeps.

    Args:
        store: the dataset's store.
        policy: the versions and files to keep.
        delete: False to change nothing, and only return the result.

    Raises:
        StoreError: there is no such dataset, or the store can't be read or written.
        FormatError: the newest entry of a tag is damaged; nothing more was deleted.
    """
    if not is_dataset(store):
        raise StoreError(f"{store.root}: no such dataset; name STORE/DATASET")
    collected, before = Collected(str(store.root).rpartition("/")[2], delete), time.time() - policy.grace_seconds
    statuses = survey(tagged_versions(store), store.files_below(""), policy)
    unused = [status.version for status in statuses if not status.kept]
    used: dict[str, str] = {}
    if delete:
        for start in range(0, len(unused), _VERSIONS_AT_ONCE):
            used |= _delete_versions(store, unused[start : start + _VERSIONS_AT_ONCE], before)
    for status in statuses:
        if why := status.kept or used.get(status.version):
            collected.kept[status.version] = why
        else:
            collected.deleted.append(status.version)
            collected.bytes += status.bytes
    for kind, files in _leftovers(store, before, collected.kept).items():
        if files:
            collected.leftovers[kind] = len(files)
            collected.bytes += sum(file.num_bytes for file in files.values())
            if delete:
                store.remove_files(list(files))
    return collected


def survey(tags_of: Mapping[str, list[str]], files: Mapping[str, StoredFile], policy: Policy) -> list[VersionStatus]:
    """Return the versions of a dataset that have files, sorted by name.

    Args:
        tags_of: the tags of each version.
        files: all files of the dataset, by path.
        policy: the versions and files that stay.
    """
    files_of: defaultdict[str, dict[str, StoredFile]] = defaultdict(dict)
    for path, file in files.items():
        if (match := _OF_VERSION.match(path)) and not path.startswith(f"{REPORTS}/"):
            files_of[match[1]][path] = file
    found = {
        version: files[path].modified for version in files_of if (path := version_path(version, MANIFEST)) in files
    }
    last = sorted(found, key=lambda version: (found[version], version), reverse=True)[: policy.keep_last]
    now, statuses = time.time(), []
    for version, own in sorted(files_of.items()):
        names, age = tags_of.get(version, []), now - max(file.modified for file in own.values())
        why = f"one of the last {policy.keep_last:,} published" if version in last else ""
        if age < policy.grace_seconds:
            why = f"written {shown_age(age)} ago, kept {shown_age(policy.grace_seconds)}"
        if names:
            why = f"tagged {', '.join(names)}"
        num_bytes = sum(file.num_bytes for file in own.values())
        statuses.append(VersionStatus(version, version in found, names, len(own), num_bytes, why))
    return statuses


def _delete_versions(store: Store, versions: Sequence[str], before: float) -> dict[str, str]:
    """Delete versions: their manifests, then the records of their shards, then their files that were written `before`.

    A tag or a plan that is written after the last look finds no manifest and no record.

    Returns:
        The versions that turned out to be in use, and why. They are as they were, or a build makes them again.

    Raises:
        FormatError: the newest entry of a tag is damaged. All manifests are back in place.
        StoreError: the store can't be written; the message names the first manifest that could not be put back.
    """
    used = _find_used(store, versions, before)
    unused = [version for version in versions if version not in used]
    paths = {version: version_path(version, MANIFEST) for version in unused}
    manifests = dict(zip(unused, store.read_all(list(paths.values())), strict=True))
    to_restore = set(unused)  # all, if the second look fails
    try:
        store.remove_files(list(paths.values()))
        used |= _find_used(store, unused, before)
        to_restore &= used.keys()
    finally:
        _restore(store, {paths[version]: manifests[version] for version in to_restore})
    for version in unused:
        if version not in used and not _delete_files(store, version, before):
            used[version] = _BUILT
    return used


def _restore(store: Store, files: Mapping[str, bytes | None]) -> None:
    """Create files again, but those that were missing; raise StoreError for the first that fails, after all others."""
    failures: list[StoreError] = []
    for path, data in files.items():
        try:
            if data is not None:
                store.create(path, data)
        except FileExistsError:  # it was not removed, or a build has just published it
            continue
        except StoreError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _find_used(store: Store, versions: Iterable[str], before: float) -> dict[str, str]:
    """Return the versions that a tag names, or whose manifest or plan was not written `before`, and which of these."""
    tags_of = tagged_versions(store)
    used = {}
    for version in versions:
        if version in tags_of:
            used[version] = f"tagged {', '.join(tags_of[version])}"
        elif any(_is_young(store, path, before) for path in (version_path(version, MANIFEST), plan_path(version))):
            used[version] = _BUILT
    return used


def _is_young(store: Store, path: str, before: float) -> bool:
    file = store.status(path)
    return file is not None and file.modified >= before


def _delete_files(store: Store, version: str, before: float) -> bool:
    """Delete the files of a version that were written `before`; return False if a build begins to make it."""
    for folder in (f"{BUILDS}/{version}", version_path(version)):
        old = [path for path, file in store.files_below(folder).items() if file.modified < before]
        for start in range(0, len(old), _FILES_AT_ONCE):
            if _is_young(store, plan_path(version), before):
                return False
            store.remove_files(old[start : start + _FILES_AT_ONCE])
        store.remove_empty_folders(folder)
    if _is_young(store, plan_path(version), before):
        return False
    store.remove(plan_path(version))
    return True


def _leftovers(store: Store, before: float, versions: Collection[str]) -> dict[str, dict[str, StoredFile]]:
    """Return the files outside of versions that were written `before` and that no version needs, by kind.

    Args:
        store: the dataset's store.
        before: seconds since 1970, by this machine's clock.
        versions: those that stay.
    """

    def old(folder: str) -> dict[str, StoredFile]:
        return {path: file for path, file in store.files_below(folder).items() if file.modified < before}

    def is_gone(path: str) -> bool:
        match = _OF_VERSION.match(path)
        return match is not None and match[1] not in versions

    spills = old(SPILLS)
    plans = store.files_below(PLANS)
    used = planned_spills(store, [path.rpartition("/")[2][:16] for path in plans if plans[path].modified >= before])
    for version in sorted(versions) if spills else ():
        for assignment in find_assignments(store, version):  # of a damaged one, the next build makes the spills again
            used.update(name for spill in assignment.spills for name in (spill.name, spill.marked))
            used.update(part.name for part in assignment.parts)
    return {
        "spills": {p: file for p, file in spills.items() if p.rpartition("/")[2].partition(".")[0] not in used},
        "temporary files": {path: file for path, file in old(TMP).items() if path != _PROBE},
        "reports": {path: file for path, file in old(REPORTS).items() if is_gone(path)},
    }


#: the folders of a dataset by the part that they belong to
PARTS = {
    "versions": "versions",
    BUILDS: "versions",
    PLANS: "versions",
    "work/spills": "spills",
    "work/tmp": "temporaries",
    "reports": "reports",
}


@dataclass(frozen=True)
class DatasetUsage:
    """The space that a dataset uses, in bytes.

    `parts` adds up to `bytes`; `other` in it is everything but PARTS: tags, fingerprints. `gc_frees` is what a run of
    gc would free now; `damage` names the damaged tag that stops gc, if there is one.
    """

    dataset: str
    bytes: int
    versions: list[VersionStatus]
    parts: dict[str, int]
    gc_frees: int
    damage: str | None


def measure(store: Store, policy: Policy) -> DatasetUsage:
    """Return the space that each part of a dataset uses, and that gc would free; changes nothing.

    Args:
        store: the dataset's store.
        policy: that of the run of gc.

    Raises:
        StoreError: there is no such dataset, or the store can't be read.
    """
    tags_of: dict[str, list[str]] = {}
    damage, gc_frees = None, 0
    try:
        tags_of, gc_frees = tagged_versions(store), collect(store, policy).bytes
    except FormatError as error:
        damage = str(error)
    files = store.files_below("")
    parts: Counter[str] = Counter(dict.fromkeys([*PARTS.values(), "other"], 0))
    for path, file in files.items():
        parts[next((part for folder, part in PARTS.items() if path.startswith(f"{folder}/")), "other")] += (
            file.num_bytes
        )
    return DatasetUsage(
        dataset=str(store.root).rpartition("/")[2],
        bytes=parts.total(),
        versions=survey(tags_of, files, policy),
        parts=dict(parts),
        gc_frees=gc_frees,
        damage=damage,
    )
