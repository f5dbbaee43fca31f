"""Collect a dataset: retire versions that no rule keeps, delete those that were retired before, and leftovers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import Store, readers_time, store_time
from tokenloom.storage.versions.published import is_dataset
from tokenloom.storage.versions.retirement import KEPT, RETIRED
from tokenloom.tasks.retention.deletion import FILES_AT_ONCE, Used, change_unless_used, delete_version
from tokenloom.tasks.retention.leftovers import Leftovers, find_leftovers
from tokenloom.tasks.retention.policy import Action, Decision, Policy, decide
from tokenloom.tasks.retention.survey import VersionStatus, survey, version_files
from tokenloom.wording import shown_bytes


@dataclass(frozen=True)
class Kept:
    """A version that a collection kept, and why."""

    version: str
    why: str


@dataclass
class Collected:
    """What a collection did, or with `dry_run` would do; `bytes` is what it freed, `surveyed` what it found before."""

    dataset: str
    dry_run: bool
    deleted: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    leftovers: list[Leftovers] = field(default_factory=list)
    bytes: int = 0
    surveyed: list[VersionStatus] = field(default_factory=list)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (version, what became of it, or would, and why) of each version, for tables."""
        deleted, retired = self.outcome("delete"), self.outcome("retire")
        gone = [(version, deleted, "retired before") for version in self.deleted]
        begun = [(version, retired, "no rule keeps it; a run after the grace deletes it") for version in self.retired]
        return [*gone, *begun, *((each.version, "kept", each.why) for each in self.kept)]

    def outcome(self, verb: str) -> str:
        """Return "deleted" of "delete", and "would delete" after a dry run."""
        return f"would {verb}" if self.dry_run else f"{verb}d"

    def to_json(self) -> dict[str, Any]:
        """Return what `gc --json` prints."""
        return {
            "dataset": self.dataset,
            "dry_run": self.dry_run,
            "deleted": self.deleted,
            "retired": self.retired,
            "kept": [asdict(each) for each in self.kept],
            "leftovers": [
                {"kind": each.kind, "files": len(each.paths), "bytes": each.bytes} for each in self.leftovers
            ],
            "bytes": self.bytes,
        }


def collect(store: Store, policy: Policy, *, dry_run: bool = False) -> Collected:
    """Retire and delete versions of a dataset, and delete its leftovers.

    Args:
        store: the dataset's store.
        policy: what to keep.
        dry_run: change nothing, and return what a run would do.

    Raises:
        StoreError: there is no such dataset, the store can't be read or written, or it does not create exclusively.
        FormatError: the newest entry of a tag or of a version's log is damaged; nothing was deleted.
    """
    if not is_dataset(store):
        raise StoreError(f"{store.root}: no such dataset; name STORE/DATASET")
    if not dry_run and not store.creates_exclusively():
        raise StoreError(
            f"{store.root}: this store lets two writers create the same name, so nothing can be deleted safely while "
            "others write; `--dry-run` shows what to delete by hand (docs/guides/object-stores.md)"
        )
    now = readers_time(store) if dry_run else store_time(store)
    collected = Collected(str(store.root).rpartition("/")[2], dry_run, surveyed=survey(store, now))
    for decision in decide(collected.surveyed, policy, now):
        _apply(store, decision, now, collected)
    stay = {status.version for status in collected.surveyed} - set(collected.deleted)
    _remove_leftovers(store, find_leftovers(store, policy, now, stay), collected)
    return collected


def collection_line(collected: Collected) -> str:
    """Return what a collection did in one line."""
    freed, num_deleted, num_retired = shown_bytes(collected.bytes), len(collected.deleted), len(collected.retired)
    if collected.dry_run:
        did = f"would free {freed}, delete {num_deleted:,}, retire {num_retired:,}, keep {len(collected.kept):,}"
    else:
        did = f"freed {freed}; {num_deleted:,} deleted, {num_retired:,} retired, {len(collected.kept):,} kept"
    return f"{collected.dataset}: {did}"


def _apply(store: Store, decision: Decision, now: float, collected: Collected) -> None:
    """Do what was decided about a version, unless somebody uses it by now."""
    version, action = decision.status.version, decision.action
    try:
        collected.bytes += _do(store, decision, now, dry_run=collected.dry_run)
    except Used as error:
        collected.kept.append(Kept(version, str(error)))
        return
    if action == Action.DELETE:
        collected.deleted.append(version)
    elif action == Action.RETIRE:
        collected.retired.append(version)
    else:
        collected.kept.append(Kept(version, decision.why))


def _do(store: Store, decision: Decision, now: float, *, dry_run: bool) -> int:
    """Return how many bytes it frees, or would."""
    status = decision.status
    if decision.action == Action.DELETE:
        if not dry_run:
            return delete_version(store, status, now)
        return sum(file.num_bytes for file in version_files(store, status.version).values())
    state = {Action.RETIRE: RETIRED, Action.UN_RETIRE: KEPT}.get(decision.action)
    if state and not dry_run:
        change_unless_used(store, status.version, status.entry_number, state, f"gc: {decision.why}")
    return 0


def _remove_leftovers(store: Store, found: list[Leftovers], collected: Collected) -> None:
    collected.leftovers += found
    collected.bytes += sum(each.bytes for each in found)
    if collected.dry_run:
        return
    for each in found:
        for start in range(0, len(each.paths), FILES_AT_ONCE):
            store.remove_files(each.paths[start : start + FILES_AT_ONCE])
