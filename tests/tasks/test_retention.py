"""Retention: what a policy keeps, what a collection deletes, and what it leaves alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.builders.memory_store import MemoryStore
from tests.builders.retention_actors import RUTHLESS, built_files
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import retirement, tags
from tokenloom.storage.versions.leases import BUILD, BUILD_SECONDS, READER, READER_SECONDS, leasing
from tokenloom.storage.versions.retirement import DELETED, RETIRED, RetirementEntry, newest_retirement
from tokenloom.tasks.retention.collect import collect
from tokenloom.tasks.retention.policy import DAY, Action, Policy, decide
from tokenloom.tasks.retention.survey import VersionStatus
from tokenloom.tasks.retention.usage import measure

NOW = 100 * DAY


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a dataset of two versions."""
    return built_files(tmp_path_factory.mktemp("built"))


@pytest.fixture
def store(files: dict[str, bytes]) -> MemoryStore:
    return MemoryStore(files)


def versions_of(store: Store) -> tuple[str, str]:
    """Return the version without a tag, and the tagged one."""
    latest = tags.newest(store, "latest")
    assert latest is not None
    (other,) = set(store.names("versions")) - {latest.version}
    return other, latest.version


# ---- what a policy keeps


def status(
    version: str,
    days_ago: float,
    *,
    tagged: bool = False,
    leased: bool = False,
    published: bool = True,
    state: str = "",
    state_age: float = 0.0,
) -> VersionStatus:
    written = NOW - days_ago * DAY
    return VersionStatus(
        version=version,
        published=written if published else None,
        touched=written,
        tags=("prod",) if tagged else (),
        users=("reader of mara",) if leased else (),
        entry=RetirementEntry(state, "", "", "", 1) if state else None,
        entry_time=NOW - state_age if state else None,
    )


def decided(policy: Policy, *versions: VersionStatus) -> dict[str, tuple[Action, str]]:
    return {each.status.version: (each.action, each.why) for each in decide(versions, policy, NOW)}


def test_the_last_versions_and_the_young_ones_stay() -> None:
    versions = [status(f"{day:016x}", day) for day in (1, 10, 20, 40, 50)]
    found = decided(Policy(keep_last=1, keep_days=30), *versions)
    assert [action for action, _ in found.values()] == [Action.KEEP] * 3 + [Action.RETIRE] * 2
    assert [why for _, why in found.values()][:2] == [
        "one of the last 1 published",
        "published 10 days ago, kept 30 days",
    ]
    found = decided(Policy(keep_last=4, keep_days=None), *versions)
    assert [action for action, _ in found.values()] == [Action.KEEP] * 4 + [Action.RETIRE]
    found = decided(Policy(keep_last=None, keep_days=30), *versions)
    assert [action for action, _ in found.values()] == [Action.KEEP] * 3 + [Action.RETIRE] * 2


def test_a_retired_version_is_deleted_after_the_grace() -> None:
    for age, action in ((0.0, Action.KEEP), (DAY - 1, Action.KEEP), (DAY, Action.DELETE), (-3600.0, Action.KEEP)):
        found = decided(RUTHLESS_DAY, status("a", 40, state=RETIRED, state_age=age))
        assert found["a"][0] == action, age
    assert decided(RUTHLESS_DAY, status("a", 40, state=RETIRED))["a"][1] == "retired 0 s ago; a run in 24 h deletes it"


RUTHLESS_DAY = Policy(keep_last=0, keep_days=0)


@pytest.mark.parametrize("state", ["", RETIRED])
def test_what_is_tagged_or_leased_stays(state: str) -> None:
    tagged = status("a", 40, tagged=True, state=state, state_age=9 * DAY)
    leased = status("b", 40, leased=True, state=state, state_age=9 * DAY)
    found = decided(RUTHLESS_DAY, tagged, leased)
    assert found["a"] == (Action.UN_RETIRE if state else Action.KEEP, "tagged prod")
    assert found["b"] == (Action.KEEP, "leased: reader of mara")


def test_a_rule_that_keeps_a_retired_version_un_retires_it() -> None:
    found = decided(Policy(keep_last=None, keep_days=50), status("a", 40, state=RETIRED, state_age=9 * DAY))
    assert found["a"][0] == Action.UN_RETIRE


def test_a_candidate_stays_a_week_and_an_unfinished_deletion_an_hour() -> None:
    found = decided(RUTHLESS_DAY, *[status(str(day), day, published=False) for day in (6, 8)])
    assert [action for action, _ in found.values()] == [Action.KEEP, Action.RETIRE]
    for age, action in ((60.0, Action.KEEP), (3600.0, Action.DELETE)):
        found = decided(RUTHLESS_DAY, status("a", 1, published=False, state=retirement.DELETING, state_age=age))
        assert found["a"][0] == action


# ---- what a collection does


def test_a_version_is_retired_then_deleted_with_all_its_files(store: MemoryStore) -> None:
    other, latest = versions_of(store)
    policy = Policy(keep_last=0, keep_days=None)
    first = collect(store, policy)
    assert (first.deleted, first.retired, [kept.version for kept in first.kept]) == ([], [other], [latest])
    assert collect(store, policy).retired == []
    store.clock += DAY
    size = sum(file.num_bytes for path, file in store.files_below("").items() if other in path)
    size -= sum(file.num_bytes for file in store.files_below(f"retired/{other}").values())  # the log stays
    last = collect(store, policy)
    assert (last.deleted, last.bytes) == ([other], size)
    assert [path for path in store.files_below("") if other in path] == [
        f"retired/{other}/0000000{number}.json" for number in (1, 2, 3)
    ]
    assert collect(store, policy).deleted == []


def test_a_dry_run_changes_nothing_and_says_what_a_run_does(store: MemoryStore) -> None:
    for _ in range(2):
        before = dict(store.files)
        would = collect(store, RUTHLESS, dry_run=True)
        assert store.files == before
        did = collect(store, RUTHLESS)
        assert would.to_json() | {"dry_run": False} == did.to_json()
    assert did.deleted


def test_a_damaged_tag_stops_the_collection(store: MemoryStore) -> None:
    collect(store, RUTHLESS)
    store.replace("tags/prod/00000001.json", b"{}")
    before = dict(store.files)
    with pytest.raises(FormatError, match=r"tags/prod/00000001\.json"):
        collect(store, RUTHLESS)
    assert store.files == before


def test_a_store_that_lets_two_writers_create_a_name_is_refused(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "creates_exclusively", lambda: False)
    with pytest.raises(StoreError, match="nothing can be deleted safely"):
        collect(store, RUTHLESS)
    assert collect(store, RUTHLESS, dry_run=True).retired


def test_a_folder_that_is_no_dataset_is_refused() -> None:
    with pytest.raises(StoreError, match="no such dataset"):
        collect(MemoryStore({"news/versions/x": b""}), RUTHLESS)


def test_a_collector_that_stood_still_deletes_nothing_more(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(store, RUTHLESS)
    now = iter([0.0, 1.0, *[3000.0] * 100])
    monkeypatch.setattr(time, "clock_gettime", lambda _: next(now))
    with pytest.raises(StoreError, match="deleting the version for 3,000 s, or stood still"):
        collect(store, RUTHLESS)


def test_leftovers_go_by_age_and_use(store: MemoryStore) -> None:
    other, latest = versions_of(store)
    spills = set(store.files_below("work/spills"))
    store.replace("work/tmp/unfinished", b"half")
    store.replace("work/tmp/exclusive", b"probe")
    for version in ("c" * 16, other, latest):
        store.replace(f"reports/{version}.html", b"report")
    store.replace(f"leases/{other}.{'0' * 32}.json", b"damaged")
    policy = Policy(keep_last=0, keep_days=None, grace_seconds=0)
    assert collect(store, policy).leftovers == []
    store.clock += 8 * DAY
    found = {each.kind: each.paths for each in collect(store, policy).leftovers}
    assert found == {
        "temporary files": ["work/tmp/unfinished"],
        "reports": [f"reports/{'c' * 16}.html"],
        "ended leases": [f"leases/{other}.{'0' * 32}.json"],
    }
    assert set(store.files_below("work/spills")) == spills  # both versions were made of spills that are there
    with leasing(store, latest, BUILD, BUILD_SECONDS):
        assert [each.paths for each in collect(store, policy).leftovers] == [[f"reports/{other}.html"]]
    collect(store, policy)
    assert newest_retirement(store, other).state == DELETED  # type: ignore[union-attr]
    left = set(store.files_below("work/spills"))
    assert left < spills
    assert len(left) == len(spills) / 2
    assert set(store.files_below("reports")) == {f"reports/{latest}.html"}


def test_the_parts_of_the_space_that_is_used_add_up(store: MemoryStore) -> None:
    other, latest = versions_of(store)
    collect(store, RUTHLESS)
    with leasing(store, latest, READER, READER_SECONDS):
        usage = measure(store, RUTHLESS)
    assert [(each.version, each.state, each.tags) for each in usage.versions] == sorted(
        [(other, "retired", []), (latest, "published", ["latest"])]
    )
    parts = sum(each.bytes for each in usage.versions)
    parts += usage.spills + usage.candidates + usage.temporaries + usage.reports + usage.other
    assert usage.bytes == parts
    assert usage.gc_frees > 0
    did = collect(store, RUTHLESS)
    assert abs(usage.gc_frees - did.bytes) <= 200  # a lease


def test_folders_disappear_from_a_local_store(files: dict[str, bytes], tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for path, data in files.items():
        store.replace(path, data, durable=False)
    other, latest = versions_of(store)
    collect(store, RUTHLESS)
    assert collect(store, RUTHLESS).deleted == [other]
    assert store.names("versions") == [latest]
    assert store.names("work/builds") == [latest]


def test_a_version_that_is_a_link_out_of_the_store_stays_usable(files: dict[str, bytes], tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "data")
    for path, data in files.items():
        store.replace(path, data, durable=False)
    other, _ = versions_of(store)
    folder = store.local(f"versions/{other}")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    collect(store, RUTHLESS)
    with pytest.raises(StoreError, match="leads out of it"):
        collect(store, RUTHLESS)
    assert newest_retirement(store, other).state == RETIRED  # type: ignore[union-attr]
    assert (tmp_path / "elsewhere" / "manifest.json").exists()


def test_usage_names_no_lease_that_has_ended(store: MemoryStore) -> None:
    _, used = versions_of(store)

    def leases() -> list[str]:
        return [lease for each in measure(store, RUTHLESS).versions for lease in each.leases]

    with leasing(store, used, READER, READER_SECONDS):
        assert len(leases()) == 1
        store.clock += READER_SECONDS + 1
        assert leases() == []
