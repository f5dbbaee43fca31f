"""Leases and the log of retirement: who may use a version, and until when."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import pytest

from tests.builders.memory_store import MemoryStore
from tokenloom.errors import FormatError, StoreError, VersionDeleted
from tokenloom.storage.formats.canonical import sign_record
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import retirement, tags
from tokenloom.storage.versions.leases import (
    BUILD,
    BUILD_SECONDS,
    MAX_SECONDS,
    READER,
    READER_SECONDS,
    Lease,
    building,
    held_leases,
    leasing,
)
from tokenloom.storage.versions.retirement import (
    CLAIM_SECONDS,
    DELETED,
    DELETING,
    KEPT,
    RETIRED,
    RetirementEntry,
    change_state,
    newest_retirement,
    refuse_deleted,
)

A, B = "a" * 16, "b" * 16


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def states(store: MemoryStore, *changes: str) -> None:
    """Append to the log of version A."""
    for number, state in enumerate(changes):
        change_state(store, A, number, state, "test")


def state_of(store: MemoryStore) -> str | None:
    entry = newest_retirement(store, A)
    return entry.state if entry else None


def test_a_lease_is_held_until_it_is_released(store: MemoryStore) -> None:
    with leasing(store, A, READER, READER_SECONDS):
        (lease,) = held_leases(store, store.clock)
        assert (lease.version, lease.purpose) == (A, READER)
    assert store.files_below("leases") == {}
    lease_again = Lease(store, A, READER, READER_SECONDS)
    lease_again.release()
    lease_again.release()
    assert store.files_below("leases") == {}


def test_a_lease_that_is_not_renewed_ends_by_the_clock_of_the_store(store: MemoryStore) -> None:
    lease = Lease(store, A, BUILD, BUILD_SECONDS)
    store.clock += BUILD_SECONDS - 1
    assert held_leases(store, store.clock)
    lease.renew()
    store.clock += BUILD_SECONDS - 1
    assert held_leases(store, store.clock)
    store.clock += 2
    assert held_leases(store, store.clock) == []
    lease.release()


def test_a_renewed_lease_is_another_file(store: MemoryStore) -> None:
    with leasing(store, A, READER, READER_SECONDS) as lease:
        before = set(store.files_below("leases"))
        lease.renew()
        after = set(store.files_below("leases"))
        assert (len(before), len(after), before & after) == (1, 1, set())


def test_a_lease_is_renewed_only_when_a_part_of_its_time_has_passed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leasing(store, A, READER, READER_SECONDS) as lease:
        before = set(store.files_below("leases"))
        for _ in range(3):
            lease.renew_if_due()
        assert set(store.files_below("leases")) == before
        monkeypatch.setattr(lease, "_due", 0.0)
        lease.renew_if_due()
        assert not set(store.files_below("leases")) & before


def test_a_lease_that_cannot_be_renewed_is_logged_and_does_not_end_the_training(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the network is down")

    with leasing(store, A, READER, READER_SECONDS) as lease:
        monkeypatch.setattr(lease, "_due", 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(store, "replace", refuse)
            lease.renew_if_due()
        assert "the lease can't be renewed: the network is down" in caplog.text
        assert held_leases(store, store.clock)


def test_the_lease_of_a_build_is_renewed_by_a_thread(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.storage.versions.leases._BUILD_RENEWALS", 10**6)
    with building(store, A):
        before = set(store.files_below("leases"))
        for _ in range(1000):
            if not set(store.files_below("leases")) & before:
                break
            multiprocessing.Event().wait(0.01)
        assert not set(store.files_below("leases")) & before
    assert store.files_below("leases") == {}


def test_a_damaged_lease_lasts_as_long_as_any(store: MemoryStore) -> None:
    store.replace(f"leases/{A}.{'0' * 32}.json", b"{}")
    store.replace("leases/notes.txt", b"")
    store.clock += MAX_SECONDS - 1
    (lease,) = held_leases(store, store.clock)
    assert (lease.version, lease.purpose) == (A, f"damaged lease leases/{A}.{'0' * 32}.json")
    store.clock += 2
    assert held_leases(store, store.clock) == []


def test_a_copy_in_another_process_leaves_the_lease_of_the_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with leasing(store, A, READER, READER_SECONDS) as lease:
        held = store.names("leases")
        copy = pickle.loads(pickle.dumps(lease))  # noqa: S301  (our own bytes)
        copy.release()
        assert store.names("leases") == held
        if (child := os.fork()) == 0:
            try:
                lease.renew()
                lease.release()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert store.names("leases") == held


def test_using_a_retired_version_un_retires_it(store: MemoryStore) -> None:
    states(store, RETIRED)
    Lease(store, A, READER, READER_SECONDS).release()
    assert state_of(store) == KEPT
    change_state(store, A, 2, RETIRED, "again")
    tags.move(store, "prod", A, 0, "tag")
    assert state_of(store) == KEPT
    tags.move(store, "prod", A, 1, "tag")
    assert len(store.files_below("retired")) == 4  # a version that is not retired gets no entry


@pytest.mark.parametrize("last", [DELETING, DELETED])
def test_a_deleted_version_is_refused_by_name_and_leaves_nothing(store: MemoryStore, last: str) -> None:
    states(store, *(RETIRED, DELETING, DELETED)[: 2 + (last == DELETED)])
    with pytest.raises(VersionDeleted, match=f"data@{A}: `tokenloom gc` "):
        Lease(store, A, READER, READER_SECONDS)
    with pytest.raises(VersionDeleted, match="or build"):
        tags.move(store, "prod", A, 0, "tag")
    with pytest.raises(VersionDeleted):
        refuse_deleted(store, A)
    refuse_deleted(store, B)
    assert store.files_below("leases") == {}
    assert tags.newest(store, "prod") is None


def test_a_deleted_version_that_was_restored_from_a_copy_can_be_used(store: MemoryStore) -> None:
    states(store, RETIRED, DELETING, DELETED)
    store.replace(f"versions/{A}/manifest.json", b"{}")
    retirement.warn_if_retired(store, A)
    tags.move(store, "prod", A, 0, "tag")
    assert state_of(store) == KEPT
    change_state(store, A, 4, RETIRED, "again")
    change_state(store, A, 5, DELETING, "again")
    with pytest.raises(VersionDeleted):
        tags.move(store, "prod", A, 1, "tag")


def test_a_build_waits_for_a_collector_and_for_one_that_was_killed_an_hour(store: MemoryStore) -> None:
    states(store, RETIRED, DELETING)
    with pytest.raises(VersionDeleted, match="build it again once gc has ended"), building(store, A):
        pass
    store.clock += CLAIM_SECONDS
    with building(store, A):
        assert state_of(store) == KEPT
    change_state(store, A, 3, RETIRED, "")
    change_state(store, A, 4, DELETING, "")
    change_state(store, A, 5, DELETED, "")
    with building(store, A):
        assert state_of(store) == KEPT


def test_a_retired_version_that_is_opened_by_name_warns(store: MemoryStore) -> None:
    retirement.warn_if_retired(store, A)
    states(store, RETIRED)
    with pytest.warns(UserWarning, match=rf"@{A}: `tokenloom gc` retired this version at .*tag it, or .*lease=True"):
        retirement.warn_if_retired(store, A)
    change_state(store, A, 1, KEPT, "")
    retirement.warn_if_retired(store, A)


def test_a_damaged_log_is_refused_and_named(store: MemoryStore) -> None:
    states(store, RETIRED)
    path = f"retired/{A}/00000001.json"
    good = store.read(path)
    store.replace(path, good.replace(b"retired", b"forgott"))
    with pytest.raises(FormatError, match=r"retired/a{16}/00000001\.json"):
        Lease(store, A, READER, READER_SECONDS)
    assert store.files_below("leases") == {}
    store.remove(path)
    store.replace(path, sign_record(RetirementEntry("forgotten", "", "", "", 1)))
    with pytest.raises(FormatError, match="state must be one of retired, kept, deleting, deleted, not 'forgotten'"):
        newest_retirement(store, A)
