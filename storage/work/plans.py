"""Plans: they tell `tokenloom gc` which version is being built, and which spills it reads.

A build writes `work/plans/VERSION.json` before it reads any other file of work/, and again each day while it runs: gc
keeps the version and the spills of a plan that is younger than its grace.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.tags import now, user
from tokenloom.storage.work.work_files import find_work_records, write_work_record

PLANS = "work/plans"
_RENEW_SECONDS = 24 * 3600.0
_logger = logging.getLogger("tokenloom")


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan, as its file records it: the names of the spills that the build reads. The rest is for people."""

    spills: list[str]
    at: str
    by: str
    host: str


def plan_path(version: str) -> str:
    """Return the path of the plan of a version."""
    return f"{PLANS}/{version}.json"


def planned_spills(store: Store, versions: Iterable[str]) -> set[str]:
    """Return the names of the spills that the plans of some versions name."""
    records = find_work_records(store, [plan_path(version) for version in versions], PlanRecord)
    return {name for record in records.values() for name in record.spills}


class HeldPlan:
    """The plan of a build that runs in this process.

    Args:
        store: the dataset's store.
        version: the version that it builds.
    """

    def __init__(self, store: Store, version: str) -> None:
        self._store, self._path = store, plan_path(version)
        self._spills: list[str] = []

    def name_spills(self, names: Collection[str]) -> None:
        """Write the plan with the names of the spills that the build reads."""
        self._spills = sorted(names)
        self.renew()

    def renew(self) -> None:
        """Write the plan again; raises StoreError if the store can't be written."""
        write_work_record(self._store, self._path, PlanRecord(self._spills, now(), user(), os.uname().nodename))

    def renew_daily(self, ended: threading.Event) -> None:
        """Renew the plan each day until the build has ended; log a failure."""
        while not ended.wait(_RENEW_SECONDS):
            try:
                self.renew()
            except StoreError as error:
                _logger.warning("the plan of the build can't be renewed: %s", error)


@contextmanager
def building(store: Store, version: str) -> Iterator[HeldPlan]:
    """Write the plan of a version, and renew it while the block runs.

    It stays afterwards, so that a build that was killed finds its work again within gc's grace.

    Raises StoreError if the store can't be written.
    """
    plan, ended = HeldPlan(store, version), threading.Event()
    plan.renew()
    thread = threading.Thread(target=plan.renew_daily, args=(ended,), name="tokenloom-plan", daemon=True)
    thread.start()
    try:
        yield plan
    finally:
        ended.set()
        thread.join()
