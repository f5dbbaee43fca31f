"""Actors on a dataset that a collector works on, and what must hold after every interleaving of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.builders.datasets import build, local_store, make_spec, write_jsonl
from tests.builders.interleaving import Actor, Schedule
from tests.builders.memory_store import MemoryStore
from tokenloom.errors import FormatError, StoreError, VersionDeleted
from tokenloom.storage.formats.manifest import MANIFEST, read_manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification import is_as_listed
from tokenloom.storage.versions import published, tag_moves, tags
from tokenloom.storage.versions.published import check_lengths, is_published, load_manifest, missing_file, version_path
from tokenloom.storage.work.plans import building
from tokenloom.storage.work.records import ShardRecord, find_work_records, shard_record_path
from tokenloom.tasks.retention import Collected, Policy, collect

#: keeps only what is tagged or young
RUTHLESS = Policy(keep_last=0)
#: older than the grace
OLD_DAYS = 20.01
#: what became of the version that the actors use, before they begin
STATES = ("published", "unfinished", "killed collector", "deleted")
_USERS = ("reader", "mover", "builder", "mover of latest")


class Lost(Exception):
    """Something that is used is lost, or a loss is not named."""


class Interrupted(StoreError):
    """A build found a file deleted before it published, and ends."""


def built_files(folder: Path) -> dict[str, bytes]:
    """Build a dataset of two versions of two shards, the second of them tagged `latest`; return its files."""
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "a.jsonl", [f"text {i}" for i in range(9)]))}
    for seed in range(2):
        build(make_spec(folder / "store", [source], seed=seed, splits={"train": 0.5, "validation": 0.5}))
    store = local_store(str(folder / "store"), "data")
    return {path: store.read(path) for path in store.files_below("") if not path.startswith("work/tmp/")}


class Scenario:
    """One interleaving: two users of versions, and a collector.

    Args:
        files: those of a dataset, from built_files.
        seed: determines who acts, what happened before, and the order of all operations.
        users: who acts beside the collectors; two that the seed determines by default.
        state: what happened before; determined by the seed by default.
    """

    def __init__(self, files: dict[str, bytes], seed: int, users: Sequence[str] = (), state: str | None = None) -> None:
        self._files, self._seed = files, seed
        choose = random.Random(-seed)
        self.store = MemoryStore(files)
        latest = tags.newest(self.store, "latest")
        assert latest is not None
        names = {path.split("/")[1] for path in files if path.startswith("versions/")}
        self.latest = latest.version
        (self.used,) = names - {self.latest}
        self.state = state or choose.choice(STATES)
        self.actors = {name: self._user(name) for name in users or choose.sample(_USERS, 2)}
        self.actors["collector"] = collect_all
        paths = list(files_of(files, self.used))
        gone = {"unfinished": paths[-1:], "killed collector": paths[-1:] + paths[:4], "deleted": paths}
        self.store.remove_files(gone.get(self.state, []))
        self.store.age(OLD_DAYS)

    def _user(self, name: str) -> Actor:
        users: dict[str, Actor] = {
            "reader": lambda store: read_shards(store, self.used),
            "mover": lambda store: move_tag(store, "prod", self.used),
            "builder": lambda store: build_again(store, files_of(self._files, self.used)),
            "mover of latest": lambda store: move_tag(store, "latest", self.used),
        }
        return users[name]

    def run(self) -> dict[str, object]:
        """Run the actors, and return their results; raise Lost if something that was used is lost."""
        # A collector looks at a plan and ages, and then deletes; no build begins and ends between the two.
        longest = {name: 40 if name == "collector" else 6 for name in self.actors}
        results = Schedule(self.store, self._seed, longest).run(self.actors)
        for name, result in results.items():
            if isinstance(result, Exception) and not self._may_raise(name, result):
                raise Lost(f"seed {self._seed}, {self.state}: {name}: {result!r}") from result
        self._check_end({str(result) for result in results.values() if isinstance(result, VersionDeleted)})
        return results

    def _may_raise(self, name: str, error: Exception) -> bool:
        """Return whether an actor may fail so: it finds its version deleted or unpublished, or its tag moved."""
        if name == "collector" or isinstance(error, Lost):
            return False
        return isinstance(error, (VersionDeleted, FileExistsError, Interrupted)) or "no version" in str(error)

    def _check_end(self, deleted: set[str]) -> None:
        """Check that what is visible is complete, and that tags name it unless whoever moved one got an error."""
        for version in (self.used, self.latest):
            if is_published(self.store, version):
                check_complete(self.store, version)
        for version in tags.tagged_versions(self.store):
            if not any(f"@{version}: " in message for message in deleted):
                check_complete(self.store, version)


def files_of(files: dict[str, bytes], version: str) -> dict[str, bytes]:
    """Return the files of a version and the records of its build: those first, the manifest last."""
    found = {
        path: data for path, data in files.items() if path.split("/")[-2:-1] == [version] or f"/{version}/" in path
    }
    return dict(sorted(found.items(), key=lambda item: (item[0].endswith(MANIFEST), item[0].startswith("versions/"))))


def check_complete(store: Store, version: str) -> None:
    """Raise Lost if a version misses its manifest or a file."""
    try:
        check_lengths(store, load_manifest(store, version))
    except (StoreError, FormatError) as error:
        raise Lost(f"{version}: {error}") from error


def collect_all(store: Store) -> Collected:
    """Delete all that is old and has no tag."""
    return collect(store, RUTHLESS, delete=True)


def read_shards(store: Store, version: str) -> None:
    """Read as a TokenDataset does; raise VersionDeleted if gc deletes a shard, Lost if it is just missing."""
    for split in load_manifest(store, version).splits.values():
        for shard in split.shards:
            try:
                store.read(version_path(version, shard.name))
            except FileNotFoundError as error:
                published.refuse_deleted(store, version)
                raise Lost(f"{shard.name}: its loss is not named") from error


def move_tag(store: Store, tag: str, version: str) -> None:
    """Name a version that exists, as a person does."""
    manifest = load_manifest(store, version)
    tag_moves.move_by_hand(store, tag, manifest, tags.newest(store, tag), "tag")


def build_again(store: Store, files: dict[str, bytes]) -> None:
    """Build a version that may be there, or half deleted, with the steps of flows/build_steps.py."""
    path, data = list(files.items())[-1]
    manifest = read_manifest(data, path)
    if not is_published(store, manifest.version):
        with building(store, manifest.version) as write_plan:
            _write(store, files, manifest.version)
            write_plan(())
            if missing_file(store, manifest):
                raise Interrupted("deleted since it was written")
            with suppress(FileExistsError):  # another build published it
                store.create(path, data)
    check_lengths(store, load_manifest(store, manifest.version))
    if tag_moves.move_by_build(store, "built", manifest.version, tag_moves.newest_number(store, "built")) is None:
        published.refuse_deleted(store, manifest.version)


def _write(store: Store, files: dict[str, bytes], version: str) -> None:
    """Write the shards that have no record, each with its record last, and the small files."""
    for split in ("train", "validation"):
        name = f"{split}/000000"
        path = shard_record_path(version, name)
        record = find_work_records(store, [path], ShardRecord).get(path)
        if record is None or not is_as_listed(store, version, record):
            shard = [path for path in files if path.startswith(version_path(version, name))]
            for path in [*shard, shard_record_path(version, name)]:
                store.replace(path, files[path])
    for path in files:
        if path.count("/") == 2 and path.startswith("versions/") and not path.endswith(MANIFEST):
            store.replace(path, files[path])
