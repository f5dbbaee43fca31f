"""Plans: they tell `tokenloom gc` which version is being built, and which spills it reads.

A build writes `work/plans/VERSION.json` before it reads any other file of work/, and again each day while it runs: gc
keeps the version and the spills of a plan that is younger than its grace.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.tag_moves import now, user
from tokenloom.storage.work.records import find_work_records, write_work_record

PLANS = "work/plans"
WritePlan = Callable[[Iterable[str]], None]
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


@contextmanager
def building(store: Store, version: str) -> Iterator[WritePlan]:
    """Write the plan of a version, and renew it each day while the block runs.

    It stays afterwards, so that a build that was killed finds its work again within gc's grace. If the block fails, the
    unfinished files of its workers are deleted.

    Yields:
        A function that writes the plan again, with further names of spills that the build reads.

    Raises StoreError if the store can't be written.
    """
    names: set[str] = set()
    ended = threading.Event()

    def write(spills: Iterable[str]) -> None:
        names.update(spills)
        record = PlanRecord(sorted(names), now(), user(), os.uname().nodename)
        write_work_record(store, plan_path(version), record)

    def renew_daily() -> None:
        while not ended.wait(_RENEW_SECONDS):
            try:
                write(())
            except StoreError as error:
                _logger.warning("the plan of the build can't be renewed: %s", error)

    write(())
    thread = threading.Thread(target=renew_daily, name="tokenloom-plan", daemon=True)
    thread.start()
    try:
        yield write
    except BaseException:
        if store.is_local:
            with suppress(StoreError):  # the block's own error says more
                store.remove_stale_temporaries()  # of its workers, which have been killed
        raise
    finally:
        ended.set()
        thread.join()
