"""Decide what becomes of each version: pure functions of a survey, a policy and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tokenloom.storage.versions.retirement import CLAIM_SECONDS, DELETING, RETIRED
from tokenloom.tasks.retention.survey import VersionStatus
from tokenloom.wording import shown_age

DAY = 24 * 3600.0


@dataclass(frozen=True)
class Policy:
    """Which versions and work files a collection keeps.

    Args:
        keep_last: keep this many of the versions that were published last; None: no such rule.
        keep_days: keep versions that were published less than this many days ago; None: no such rule.
        grace_seconds: how long a version stays retired before a run may delete it.
        work_seconds: how long candidates, and spills that no version uses, stay after they were written.
    """

    keep_last: int | None
    keep_days: float | None
    grace_seconds: float = DAY
    work_seconds: float = 7 * DAY


class Action(Enum):
    """What a collection does with a version."""

    KEEP = "keep"
    UN_RETIRE = "un-retire"
    RETIRE = "retire"
    DELETE = "delete"


@dataclass(frozen=True)
class Decision:
    """What a collection does with a version, and why."""

    status: VersionStatus
    action: Action
    why: str


def decide(versions: Sequence[VersionStatus], policy: Policy, now: float) -> list[Decision]:
    """Return what becomes of each version.

    Args:
        versions: the survey of a dataset.
        policy: which to keep.
        now: the time by the store's clock.
    """
    published = [status for status in versions if status.published is not None]
    newest = sorted(published, key=lambda status: (status.touched, status.version), reverse=True)
    last = {status.version for status in newest[: policy.keep_last or 0]}
    return [_decide(status, policy, now, is_last=status.version in last) for status in versions]


def _decide(status: VersionStatus, policy: Policy, now: float, *, is_last: bool) -> Decision:
    if status.state == DELETING:
        return _decide_deleting(status, now)
    if why := _used(status):
        # An un-retired version is out of reach of any collector that looked before.
        action = Action.UN_RETIRE if status.state == RETIRED and status.tags else Action.KEEP
        return Decision(status, action, why)
    if why := _kept(status, policy, now, is_last=is_last):
        return Decision(status, Action.UN_RETIRE if status.state == RETIRED else Action.KEEP, why)
    if status.state != RETIRED:
        return Decision(status, Action.RETIRE, "no rule keeps it")
    age = now - (status.entry_time or now)
    if age < policy.grace_seconds:
        left = shown_age(policy.grace_seconds - max(0.0, age))
        return Decision(status, Action.KEEP, f"retired {shown_age(age)} ago; a run in {left} deletes it")
    return Decision(status, Action.DELETE, f"retired {shown_age(age)} ago")


def _decide_deleting(status: VersionStatus, now: float) -> Decision:
    age = now - (status.entry_time or now)
    if age < CLAIM_SECONDS:
        why = f"another gc has been deleting it for {shown_age(age)}; if it was killed, "
        return Decision(status, Action.KEEP, f"{why}a run in {shown_age(CLAIM_SECONDS - max(0.0, age))} continues")
    return Decision(status, Action.DELETE, "a gc that was deleting it was killed")


def _used(status: VersionStatus) -> str:
    """Return the tags and leases that use a version, "" if there are none."""
    tagged = f"tagged {', '.join(status.tags)}" if status.tags else ""
    leased = f"leased: {', '.join(status.users)}" if status.users else ""
    return "; ".join(filter(None, (tagged, leased)))


def _kept(status: VersionStatus, policy: Policy, now: float, *, is_last: bool) -> str:
    """Return which rule of a policy keeps a version, "" if none does."""
    age = max(0.0, now - status.touched)
    if status.published is None:
        kept = policy.work_seconds
        return f"not published; last written {shown_age(age)} ago, kept {shown_age(kept)}" if age < kept else ""
    if is_last:
        return f"one of the last {policy.keep_last:,} published"
    if policy.keep_days is not None and age < policy.keep_days * DAY:
        return f"published {shown_age(age)} ago, kept {policy.keep_days:g} days"
    return ""
