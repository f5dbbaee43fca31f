"""Publish a candidate, a complete version whose checks failed, without its inputs and spec.

The manifest is created last, as by a build. The candidate is removed after the tag has moved, so that a killed
publication continues when the same command runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenloom.errors import DistrustedEncoder, StoreError, WorkError
from tokenloom.storage.formats.manifest import BUILD, MANIFEST, Manifest
from tokenloom.storage.formats.version_files import GateResult, encode_build
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import check_file
from tokenloom.storage.verification.version_checks import listed_names
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.distrust import refuse_distrusted
from tokenloom.storage.versions.hand_moves import check_reason, move_by_hand
from tokenloom.storage.versions.leases import building
from tokenloom.storage.versions.published import is_published, missing_file, version_path
from tokenloom.storage.versions.retirement import refuse_deleted
from tokenloom.storage.work.candidates import (
    Candidate,
    find_candidates,
    has_candidate,
    read_candidate,
    remove_candidate,
)
from tokenloom.storage.work.shard_records import shard_record_path
from tokenloom.tasks.publishing.gates import evaluate_gates, failed, gate_failure
from tokenloom.tasks.publishing.version_facts import VersionFacts, facts_of
from tokenloom.tasks.running import progress
from tokenloom.wording import first_of

_NUM_READERS = 8  # files read at the same time
_REASON = "published by hand"
_AGAIN = "build again from the same spec, which makes what is missing and keeps the rest"


@dataclass(frozen=True)
class Publication:
    """What the publication of a candidate did.

    `published` is False if the version was published before. `tag` is None then, unless an interrupted publication
    had not moved it yet; `tag_moved` says whether it names the version now, because of this call. `gates` are the
    results of the version's checks today.
    """

    version: str
    published: bool
    forced: bool
    reason: str | None
    tag: str | None
    tag_moved: bool
    gates: list[GateResult]


def publish_candidate(store: Store, version: str, forced_because: str | None = None) -> Publication:
    """Publish a candidate, if it passes its checks today or a person forces it, and move its tag.

    Args:
        store: the dataset's store.
        version: the name of the candidate.
        forced_because: why to publish it although checks fail; None if they decide.

    Raises:
        SpecError: the reason is not one line of text.
        StoreError: there is no such candidate, the store can't be read or written, or the tag was moved meanwhile.
        WorkError: the candidate is damaged, or a fast encoder that encoded it is distrusted.
        GateFailed: a check fails, and the publication is not forced.
    """
    check_reason(forced_because or _REASON)
    if not has_candidate(store, version):
        return _published_before(store, version)
    with building(store, version):  # no collector deletes it while it is read and published
        return _publish(store, version, forced_because)


def described(store: Store, done: Publication, seconds: float) -> dict[str, Any]:
    """Return what the event of a publication says, in the form of BuildResult.to_json; it cut no input.

    Args:
        store: the dataset's store.
        done: what was published.
        seconds: how long it took.
    """
    cut = dict.fromkeys(("partitions", "partitions_reused", "partitions_identical"))
    return facts_of(store, done.version).to_json() | asdict(done) | cut | {"seconds": seconds}


def _publish(store: Store, version: str, forced_because: str | None) -> Publication:
    with _naming_next_step():
        candidate = read_candidate(store, version)
    if is_published(store, version):
        return _finish(store, candidate, forced_because, [], published=False)
    facts = VersionFacts(store, candidate.manifest, candidate.record.build)
    gates = evaluate_gates(facts, candidate.record.tag, candidate.record.checks)
    if failed(gates) and forced_because is None:
        raise gate_failure(facts, gates)
    with _naming_next_step():
        _read_files(store, candidate.manifest)
        refuse_distrusted(store, candidate.record.build.encoders, candidate.manifest.tokenizer.fingerprint)
    return _finish(store, candidate, forced_because, gates, _create(store, candidate, gates, forced_because))


def _published_before(store: Store, version: str) -> Publication:
    """Return that a version is published already; raises StoreError if it is not, VersionDeleted if gc deleted it."""
    if not is_published(store, version):
        refuse_deleted(store, version)
        waiting = sorted(find_candidates(store))
        known = f"candidates are: {first_of(waiting)}" if waiting else "no candidate waits; build again from its spec"
        raise StoreError(f"{store.root}: no candidate {version}; {known}")
    return Publication(version, published=False, forced=False, reason=None, tag=None, tag_moved=False, gates=[])


def _create(store: Store, candidate: Candidate, gates: list[GateResult], forced_because: str | None) -> bool:
    """Make the version visible; return False if a build published it first."""
    version = candidate.manifest.version
    record = replace(
        candidate.record.build,
        gates=gates,
        forced=forced_because if failed(gates) else None,
        at=tags.now(),
        by=tags.user(),
    )
    store.replace(version_path(version, BUILD), encode_build(record))
    try:
        store.create(version_path(version, MANIFEST), candidate.data)
    except FileExistsError:
        return False
    return True


def _finish(
    store: Store, candidate: Candidate, forced_because: str | None, gates: list[GateResult], published: bool
) -> Publication:
    """Move the tag and forget the candidate.

    The tag stays if it names the version already, or if an earlier call published it and the tag's log has it.
    """
    version, tag, reason = candidate.manifest.version, candidate.record.tag, forced_because or _REASON
    entries = tags.log(store, tag)
    seen = entries[-1] if entries else None
    stays = not published and version in {entry.version for entry in entries}
    moved = not stays and move_by_hand(store, tag, candidate.manifest, seen, reason).moved
    remove_candidate(store, version)
    forced = published and forced_because is not None and bool(failed(gates))
    return Publication(version, published, forced, reason if moved else None, tag, moved, gates)


@contextmanager
def _naming_next_step() -> Iterator[None]:
    """Add what to do to the message of a candidate that is damaged, or encoded by a distrusted encoder."""
    try:
        yield
    except DistrustedEncoder as error:
        raise WorkError(f"{error}; build again from the same spec, which encodes these documents again") from error
    except WorkError as error:
        raise WorkError(f"{error}; {_AGAIN}") from error


def _read_files(store: Store, manifest: Manifest) -> None:
    """Read every listed file once; raises WorkError, after removing its record, for one that is not as written."""
    folder = version_path(manifest.version)
    if name := missing_file(store, manifest):
        raise WorkError(f"{store.place(folder)}/{name}: missing, or cut short")
    listed, num_bytes = listed_names(manifest), manifest.shard_bytes
    progress.report(progress.WorkKnown((("read", float(max(1, num_bytes))),)))
    progress.report(progress.StepStarted("read", num_bytes))

    def problems_of(name: str) -> list[str]:
        return check_file(store, f"{folder}/{name}", listed[name], _report)

    with ThreadPoolExecutor(_NUM_READERS) as readers:
        found = dict(zip(listed, readers.map(problems_of, listed), strict=True))
    damaged = [name for name, problems in found.items() if problems]
    for name in damaged:  # the next build writes these shards again
        store.remove(shard_record_path(manifest.version, name.rpartition(".")[0]))
    if damaged:
        raise WorkError(f"{store.place(folder)}/{damaged[0]}: {found[damaged[0]][0]} ({len(damaged)} damaged in all)")


def _report(position: int, block: memoryview) -> None:
    progress.report(progress.Advanced(done=len(block), num_bytes=len(block)))
