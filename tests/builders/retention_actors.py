"""Actors on a dataset that a collector works on, and what must hold after every interleaving of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders.datasets import build, local_store, make_spec, write_jsonl
from tests.builders.interleaving import Actor, Schedule
from tests.builders.memory_store import MemoryStore
from tokenloom.errors import FormatError, StoreError, VersionDeleted
from tokenloom.storage.formats.manifest import MANIFEST
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.leases import READER, READER_SECONDS, TAG, TAG_SECONDS, building, leasing
from tokenloom.storage.versions.published import check_lengths, is_published, load_manifest, version_path
from tokenloom.storage.versions.retirement import (
    DELETED,
    DELETING,
    RETIRED,
    change_state,
    newest_retirement,
    refuse_deleted,
)
from tokenloom.tasks.retention.collect import Collected, collect
from tokenloom.tasks.retention.policy import Policy

#: keeps nothing that is not tagged or leased, and waits for nothing
RUTHLESS = Policy(keep_last=0, keep_days=None, grace_seconds=0, work_seconds=0)
#: what became of the version that the actors use, before they begin
STATES = ("published", "retired", "candidate", "deleted", "killed collector")
_USERS = ("leased reader", "reader", "mover", "builder", "mover of latest")


class Lost(Exception):
    """Something that is used is lost, or a loss is not named."""


def built_files(folder: Path) -> dict[str, bytes]:
    """Build a dataset of two versions, the second of them tagged `latest`; return its files."""
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "a.jsonl", ["one text", "another text"]))}
    for seed in range(2):
        build(make_spec(folder / "store", [source], seed=seed, splits={"train": 1.0}))
    store = local_store(str(folder / "store"), "data")
    return {path: store.read(path) for path in store.files_below("") if not path.startswith("work/tmp/")}


class Scenario:
    """One interleaving: two users of versions, and one or two collectors.

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
        self.actors |= {"collector": collect_twice} | ({"second collector": collect_twice} if seed % 2 else {})
        self._set_state()

    def _set_state(self) -> None:
        states = {
            "retired": [RETIRED],
            "killed collector": [RETIRED, DELETING],
            "deleted": [RETIRED, DELETING, DELETED],
        }
        for number, state in enumerate(states.get(self.state, [])):
            change_state(self.store, self.used, number, state, "earlier")
        paths = list(files_of(self._files, self.used))
        gone = {"candidate": paths[-1:], "killed collector": paths[-1:] + paths[:1], "deleted": paths}
        self.store.remove_files(gone.get(self.state, []))
        if self.state == "deleted":
            self.store.remove_files(list(self.store.files_below(f"work/builds/{self.used}")))
        self.store.clock += 3 * 3600

    def _user(self, name: str) -> Actor:
        users: dict[str, Actor] = {
            "leased reader": lambda store: read_with_lease(store, self.used),
            "reader": lambda store: read_without_lease(store, self.used),
            "mover": lambda store: move_tag(store, "prod", self.used),
            "builder": lambda store: build_again(store, files_of(self._files, self.used)),
            "mover of latest": lambda store: move_tag(store, "latest", self.used),
        }
        return users[name]

    def run(self) -> None:
        """Run the actors; raise Lost if something that was used is lost."""
        schedule, names = Schedule(self.store, self._seed, self._longest()), random.Random(self._seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128)))
            results = schedule.run(self.actors)
        for name, result in results.items():
            if isinstance(result, Exception) and not self._may_raise(name, result):
                raise Lost(f"seed {self._seed}, {self.state}: {name}: {result!r}") from result
        self._check_end()

    def _longest(self) -> dict[str, int]:
        """Return how many operations each actor does in a row, at most: about as many as it does in all."""
        return {name: 70 if "collector" in name else 8 for name in self.actors}

    def _may_raise(self, name: str, error: Exception) -> bool:
        """Return whether an actor may fail so: it finds its version deleted or unpublished, or its tag moved."""
        if "collector" in name or isinstance(error, Lost):
            return False
        # A build publishes a deleted version again.
        may_be_unpublished = self.state == "candidate" or "builder" in self.actors
        unpublished = may_be_unpublished and name != "builder" and "no version" in str(error)
        return unpublished or isinstance(error, (VersionDeleted, FileExistsError))

    def _check_end(self) -> None:
        for version in tags.tagged_versions(self.store):
            check_complete(self.store, version)
        for version in (self.used, self.latest):
            entry = newest_retirement(self.store, version)
            if is_published(self.store, version):
                check_complete(self.store, version)
            if entry and entry.state == DELETED and (left := self.store.files_below(version_path(version))):
                raise Lost(f"deleted, but there are {sorted(left)}")
        if left := self.store.files_below("leases"):
            raise Lost(f"leases stay: {sorted(left)}")


def files_of(files: dict[str, bytes], version: str) -> dict[str, bytes]:
    """Return the files of a version, the manifest last."""
    found = {path: data for path, data in files.items() if path.startswith(f"versions/{version}/")}
    return dict(sorted(found.items(), key=lambda item: item[0].endswith(MANIFEST)))


def check_complete(store: Store, version: str) -> None:
    """Raise Lost if a version misses its manifest or a file."""
    try:
        check_lengths(store, load_manifest(store, version))
    except (StoreError, FormatError) as error:
        raise Lost(f"{version}: {error}") from error


def collect_twice(store: Store) -> Collected:
    """Collect twice: what one run retires, the next may delete."""
    collect(store, RUTHLESS)
    return collect(store, RUTHLESS)


def read_with_lease(store: Store, version: str) -> None:
    """Read as TokenDataset(..., lease=True) does, and renew the lease."""
    with leasing(store, version, READER, READER_SECONDS) as lease:
        manifest = load_manifest(store, version)
        for _ in range(3):
            with losing(version):
                check_lengths(store, manifest)
                lease.renew()


def read_without_lease(store: Store, version: str) -> None:
    """Read as a TokenDataset does; raise VersionDeleted if gc deletes a shard, Lost if it is just missing."""
    for split in load_manifest(store, version).splits.values():
        for shard in split.shards:
            try:
                store.read(version_path(version, shard.name))
            except FileNotFoundError as error:
                refuse_deleted(store, version)
                raise Lost(f"{shard.name}: its loss is not named") from error


def move_tag(store: Store, tag: str, version: str) -> None:
    """Name a version that exists, as a person does."""
    load_manifest(store, version)
    tags.move(store, tag, version, tags.newest_number(store, tag), "tag")


def build_again(store: Store, files: dict[str, bytes]) -> None:
    """Build a version that may be there, retired or deleted, with the steps of flows/build_steps.py."""
    version = next(iter(files)).split("/")[1]
    if is_published(store, version):
        with leasing(store, version, TAG, TAG_SECONDS):
            manifest = load_manifest(store, version)
            with losing(version):
                check_lengths(store, manifest)
                _tag(store, version)
        return
    with building(store, version) as lease, losing(version):
        _write(store, files)
        lease.renew()
        _publish(store, files)
        check_complete(store, version)
        _tag(store, version)


def _write(store: Store, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        if not path.endswith(MANIFEST) and not store.exists(path):  # a shard that is there is not written again
            store.replace(path, data)


def _publish(store: Store, files: dict[str, bytes]) -> None:
    path = next(path for path in files if path.endswith(MANIFEST))
    try:
        store.create(path, files[path])
    except FileExistsError:
        return


def _tag(store: Store, version: str) -> None:
    tags.move(store, "built", version, tags.newest_number(store, "built"), "build")


@contextmanager
def losing(version: str) -> Iterator[None]:
    """Raise Lost if a version is deleted or incomplete in the block, during which a lease is held on it."""
    try:
        yield
    except (StoreError, FormatError) as error:
        raise Lost(f"{version}, leased: {error}") from error
