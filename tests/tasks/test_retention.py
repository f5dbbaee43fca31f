"""Retention: what a policy keeps, what a collection deletes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.memory_store import MemoryStore
from tests.builders.retention_actors import OLD_DAYS, RUTHLESS, built_files, collect_all
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tag_moves, tags
from tokenloom.storage.work.plans import PlanRecord, building, plan_path
from tokenloom.storage.work.records import write_work_record
from tokenloom.tasks.retention import DAY, Policy, collect, measure


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a dataset of two versions."""
    return built_files(tmp_path_factory.mktemp("built"))


@pytest.fixture
def store(files: dict[str, bytes]) -> MemoryStore:
    """A store of two versions, older than the grace."""
    store = MemoryStore(files)
    store.age(OLD_DAYS)
    return store


def versions_of(store: Store) -> tuple[str, str]:
    """Return the version without a tag, and the tagged one."""
    latest = tags.newest(store, "latest")
    assert latest is not None
    (other,) = set(store.names("versions")) - {latest.version}
    return other, latest.version


def test_a_version_stays_while_it_is_tagged_young_planned_or_among_the_last(store: MemoryStore) -> None:
    other, latest = versions_of(store)

    def kept(policy: Policy) -> dict[str, str]:
        return collect(store, policy).kept

    assert kept(RUTHLESS) == {latest: "tagged latest"}
    assert kept(Policy(keep_last=2)) == {latest: "tagged latest", other: "one of the last 2 published"}
    store.age(-1, f"versions/{latest}")
    assert kept(Policy(keep_last=1)) == {latest: "tagged latest"}
    assert kept(Policy(0, 21 * DAY))[other] == "written 20 days ago, kept 21 days"
    assert (Policy(), kept(Policy())) == (
        Policy(3, 14 * DAY),
        kept(Policy(keep_last=2)) | {other: kept(Policy())[other]},
    )
    with building(store, other):
        assert kept(RUTHLESS)[other] == "written 0 s ago, kept 14 days"
    assert other in kept(RUTHLESS)  # a killed build continues within the grace
    store.age(OLD_DAYS, f"work/plans/{other}")
    assert other not in kept(RUTHLESS)


def test_a_version_is_deleted_with_all_its_files_and_nothing_else_is(store: MemoryStore) -> None:
    other, latest = versions_of(store)
    store.replace(f"reports/{other}.html", b"report")
    store.age(OLD_DAYS, "reports")
    before = dict(store.files)
    would = collect(store, RUTHLESS)
    assert store.files == before
    did = collect(store, RUTHLESS, delete=True)
    assert would.to_json() | {"delete": True} == did.to_json()
    assert (did.deleted, did.bytes) == ([other], sum(len(data) for data, _ in before.values()) - _size(store))
    assert [path for path in store.files if other in path] == []
    assert [path for path in before if latest in path or path.startswith("tags/")] == [
        path for path in store.files if latest in path or path.startswith("tags/")
    ]
    assert collect(store, RUTHLESS, delete=True).bytes == 0


def _size(store: MemoryStore) -> int:
    return sum(file.num_bytes for file in store.files_below("").values())


def test_an_unfinished_version_goes_when_all_of_it_is_old(store: MemoryStore) -> None:
    other, _ = versions_of(store)
    store.remove(f"versions/{other}/manifest.json")
    store.replace(f"work/builds/{other}/train-000000.json", store.read(f"work/builds/{other}/train-000000.json"))
    assert collect_all(store).deleted == []
    store.age(OLD_DAYS, f"work/builds/{other}")
    assert collect_all(store).deleted == [other]


def test_spills_stay_while_a_version_that_stays_or_a_plan_needs_them(store: MemoryStore) -> None:
    other, _ = versions_of(store)
    spills = set(store.files_below("work/spills"))
    assert collect(store, Policy()).leftovers == {}
    names = {path.split("/")[-1].split(".")[0] for path in spills}
    with building(store, "c" * 16) as write_plan:  # another version, of the same spills
        write_plan(names)
    assert collect_all(store).leftovers == {}
    assert not store.files_below(f"versions/{other}")
    store.age(OLD_DAYS, "work/plans")
    assert collect_all(store).leftovers == {"spills": len(spills) / 2}
    assert len(store.files_below("work/spills")) == len(spills) / 2


def test_young_leftovers_stay(store: MemoryStore) -> None:
    _, latest = versions_of(store)
    collect_all(store)
    store.replace("work/tmp/exclusive", b"probe")
    for path in ("work/tmp/unfinished", f"reports/{latest}.html", f"reports/{'c' * 16}.html", "reports/mine.html"):
        store.replace(path, b"")
    assert collect_all(store).leftovers == {}
    store.age(OLD_DAYS)
    assert collect_all(store).leftovers == {"temporary files": 1, "reports": 1}
    assert set(store.files_below("reports")) == {f"reports/{latest}.html", "reports/mine.html"}
    assert store.exists("work/tmp/exclusive")


def test_a_version_that_is_tagged_just_before_its_manifest_is_deleted_stays(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = versions_of(store)
    remove, before = store.remove, dict(store.files)

    def tag_then_remove(path: str) -> None:
        if path.endswith("manifest.json"):
            tag_moves.move(store, "prod", other, 0, "tag")
        remove(path)

    monkeypatch.setattr(store, "remove", tag_then_remove)
    found = collect_all(store)
    assert (found.deleted, found.kept[other]) == ([], "tagged prod")
    assert {path: store.read(path) for path in before} == {path: data for path, (data, _) in before.items()}


class _ManyVersions(MemoryStore):
    """A store of 100 old versions without tags beside the tagged one; it counts the looks at the tags.

    `disturb` is called once, before the second manifest is deleted.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.looks = 0
        self.disturb: Callable[[], object] = lambda: None
        other, self.latest = versions_of(self)
        self.others = [f"{number:016x}" for number in range(100)]
        for path, data in files.items():
            for version in self.others if other in path else ():
                self.replace(path.replace(other, version), data)
            if other in path:
                self.remove(path)
        self.age(OLD_DAYS)
        self.before = dict(self.files)

    def names(self, folder: str) -> list[str]:
        self.looks += folder == "tags"
        return super().names(folder)

    def remove(self, path: str) -> None:
        if path == f"versions/{self.others[1]}/manifest.json":
            self.disturb()
        super().remove(path)


def test_many_versions_are_deleted_with_few_looks_at_the_tags(files: dict[str, bytes]) -> None:
    store = _ManyVersions(files)
    store.looks = 0
    assert collect_all(store).deleted == store.others
    assert store.names("versions") == [store.latest]
    assert store.looks <= 1 + 2 * 4


def test_versions_that_are_tagged_or_built_while_others_are_deleted_stay(files: dict[str, bytes]) -> None:
    store = _ManyVersions(files)
    tagged, planned = store.others[:4:2], store.others[3]

    def use() -> None:
        for number, version in enumerate(tagged):
            tag_moves.move(store, f"run-{number}", version, 0, "tag")
        write_work_record(store, plan_path(planned), PlanRecord([], "", "", ""))

    store.disturb = use
    found = collect_all(store)
    assert {version: found.kept[version] for version in tagged} == {
        version: f"tagged run-{number}" for number, version in enumerate(tagged)
    }
    assert found.kept[planned] == "a build has just begun to make it, or has published it"
    assert found.deleted == [version for version in store.others if version not in (*tagged, planned)]
    for path, (data, _) in store.before.items():
        if any(f"versions/{version}/" in path for version in (*tagged, planned, store.latest)):
            assert store.read(path) == data


@pytest.mark.parametrize("fault", ["damaged tag", "lost network", "ended"])
def test_no_manifest_is_lost_if_a_collection_fails_before_its_second_look(files: dict[str, bytes], fault: str) -> None:
    store = _ManyVersions(files)

    def fail() -> None:
        if fault == "damaged tag":
            store.replace("tags/prod/00000001.json", b"{}")
        else:
            raise StoreError("no answer") if fault == "lost network" else KeyboardInterrupt

    store.disturb = fail
    with pytest.raises((FormatError, StoreError, KeyboardInterrupt)):
        collect_all(store)
    assert {path: data for path, (data, _) in store.files.items() if "tags/prod" not in path} == {
        path: data for path, (data, _) in store.before.items()
    }


def test_a_damaged_tag_stops_the_collection(store: MemoryStore) -> None:
    store.replace("tags/prod/00000001.json", b"{}")
    before = dict(store.files)
    with pytest.raises(FormatError, match=r"tags/prod/00000001\.json"):
        collect_all(store)
    assert store.files == before


def test_a_folder_that_is_no_dataset_is_refused() -> None:
    with pytest.raises(StoreError, match="no such dataset"):
        collect(MemoryStore({"news/versions/x": b""}), RUTHLESS)


def test_the_parts_of_the_space_that_is_used_add_up(store: MemoryStore) -> None:
    other, latest = versions_of(store)
    store.remove(f"versions/{other}/manifest.json")
    usage = measure(store, RUTHLESS)
    assert [(each.version, each.published, each.tags) for each in usage.versions] == sorted(
        [(other, False, []), (latest, True, ["latest"])]
    )
    assert usage.bytes == sum(usage.parts.values()) == _size(store)
    assert usage.parts["versions"] == sum(each.bytes for each in usage.versions)
    assert usage.gc_frees == collect_all(store).bytes > 0


def test_folders_disappear_from_a_local_store(files: dict[str, bytes], tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "data")
    for path, data in files.items():
        store.replace(path, data, durable=False)
    other, latest = versions_of(store)
    assert collect(store, Policy(0, 0), delete=True).deleted == [other]
    assert store.names("versions") == store.names("work/builds") == [latest]
