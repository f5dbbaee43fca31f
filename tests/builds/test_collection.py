"""`tokenloom gc` on real stores: beside real builds and readers, killed, with a wrong clock, on S3."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tests.builders.interleaving import Actor, Schedule
from tests.builders.retention_actors import (
    RUTHLESS,
    build_again,
    check_complete,
    collect_twice,
    files_of,
    move_tag,
    read_with_lease,
)
from tests.counts import SUMMARY, count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom import TokenDataset, TokenLoader
from tokenloom.cli.main import main
from tokenloom.errors import StoreError, VersionDeleted
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.retirement import DELETED, newest_retirement
from tokenloom.tasks.retention.collect import collect
from tokenloom.tasks.retention.policy import Policy

_ROOT = Path(__file__).parents[2]


class Built(NamedTuple):
    """The folder of a store with two versions of a dataset, and their names."""

    folder: Path
    older: str
    newer: str


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A source of 400 documents."""
    texts = [f"document {i}, said {i % 7} times " * (1 + i % 5) for i in range(400)]
    return {"kind": "jsonl", "path": str(write_jsonl(tmp_path_factory.mktemp("in") / "a.jsonl", texts))}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: dict[str, str]) -> Built:
    """Two versions, the newer one named by `latest`; tests work on copies."""
    return build_two(tmp_path_factory.mktemp("built") / "store", source)


def spec_of(store: str | Path, source: dict[str, str], seed: int) -> BuildSpec:
    """Return a spec of several shards."""
    return make_spec(store, [source], seed=seed, splits={"train": 1.0}, shard_tokens=6000)


def build_two(folder: Path, source: dict[str, str]) -> Built:
    """Build two versions of a dataset in a store."""
    return Built(folder, *(build(spec_of(folder, source, seed)).version for seed in (0, 1)))


def copy_of(built: Built, store: Path) -> tuple[Store, str, str]:
    """Copy the two versions; return the dataset's store, the older one, and the one that `latest` names."""
    shutil.copytree(built.folder, store)
    return open_store(f"{store}/data"), built.older, built.newer


def uploaded(built: Built, s3_url: str, key: str) -> tuple[Store, str, str]:
    """Upload the two versions below a key; return as copy_of."""
    upload(s3_url, built.folder, key)
    return open_store(f"s3://{BUCKET}/{key}/data"), built.older, built.newer


def test_a_leased_training_keeps_its_version_and_another_one_is_named(tmp_path: Path, built: Built) -> None:
    store, older, _ = copy_of(built, tmp_path / "store")
    reference = f"{store.root}@{older}"
    leased = TokenDataset(reference, seq_len=16, lease=True, max_open_shards=1)
    whole = [sample["input_ids"].tolist() for sample in leased.__getitems__(range(len(leased)))]
    collect_twice(store)
    loader = TokenLoader(leased, 8, prefetch=0, num_epochs=1, order="sequential")
    assert [row for batch in loader for row in batch["input_ids"].tolist()] == whole[: len(whole) // 8 * 8]
    assert leased.lease is not None
    leased.lease.release()
    assert store.names("leases") == []
    collect(store, RUTHLESS)
    with pytest.warns(UserWarning, match="retired this version at .*lease=True"):
        unleased = TokenDataset(reference, seq_len=16, max_open_shards=1)
    collect(store, RUTHLESS)
    with pytest.raises(VersionDeleted, match=f"@{older}: `tokenloom gc` deleted this version at "):
        unleased.__getitems__(range(len(unleased)))
    with pytest.raises(VersionDeleted, match="deleted this version"):
        TokenDataset(reference, seq_len=16)
    with pytest.raises(VersionDeleted, match="deleted this version"):
        TokenDataset(reference, seq_len=16, lease=True)


def test_a_lease_ends_with_its_dataset_and_after_a_failure(tmp_path: Path, built: Built) -> None:
    store, older, _ = copy_of(built, tmp_path / "store")
    data = TokenDataset(f"{store.root}@{older}", seq_len=16, lease=True)
    assert len(store.names("leases")) == 1
    del data
    assert store.names("leases") == []
    with pytest.raises(StoreError, match="no split 'test'"):
        TokenDataset(f"{store.root}@{older}", "test", lease=True)
    with pytest.raises(StoreError, match="no version"):
        TokenDataset(f"{store.root}@{'0' * 16}", lease=True)
    assert store.names("leases") == []


def test_a_lease_needs_the_right_to_write(tmp_path: Path, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    store, older, _ = copy_of(built, tmp_path / "store")

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("no permission to write it")

    monkeypatch.setattr(LocalStore, "replace", refuse)
    assert len(TokenDataset(f"{store.root}@{older}", seq_len=16))
    with pytest.raises(StoreError, match=r"lease=True .*no permission to write it"):
        TokenDataset(f"{store.root}@{older}", seq_len=16, lease=True)


def test_builds_beside_a_ruthless_collector_publish_whole_versions(
    tmp_path: Path, built: Built, source: dict[str, str]
) -> None:
    """The collector runs without a pause, and waits for nothing; each build is a process of its own."""
    store_path = tmp_path / "store"
    store, _, _ = copy_of(built, store_path)
    num_runs = num_deleted = 0
    for seed in (0, 2)[: count(1, 2)]:
        spec = tmp_path / f"{seed}.json"
        spec.write_text(spec_of(store_path, source, seed).model_dump_json())
        command = [sys.executable, "-m", "tokenloom", "build", "--direct", "--json", "--workers", "0", str(spec)]
        builder = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while builder.poll() is None:
            num_deleted += len(collect(store, RUTHLESS).deleted)
            num_runs += 1
        output, errors = builder.communicate()
        assert builder.returncode == 0, errors
        result = json.loads(output)
        assert (result["published"], result["tag_moved"]) == (True, True)
        check_complete(store, result["version"])
        alone = spec_of(tmp_path / f"alone-{seed}", source, seed)
        assert listed_files(alone, build(alone).version) == listed_files(
            spec_of(store_path, source, seed), result["version"]
        )
    assert num_deleted
    SUMMARY.append(f"builds beside {num_runs} runs of gc --grace 0: whole versions")


def test_a_killed_collector_is_completed_by_the_next_run(tmp_path: Path, built: Built, source: dict[str, str]) -> None:
    store, older, newer = copy_of(built, tmp_path / "store")
    assert isinstance(store, LocalStore)
    collect(store, RUTHLESS)
    program = (
        "import os, signal, sys\n"
        "from tokenloom.storage.stores.local import LocalStore\n"
        "from tests.builders.retention_actors import RUTHLESS\n"
        "from tokenloom.tasks.retention.collect import collect\n"
        "remove, seen = LocalStore.remove, []\n"
        "def die(self, path):\n"
        "    seen.append(path)\n"
        "    if path.startswith('versions/') and len([p for p in seen if p.startswith('versions/')]) == 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    remove(self, path)\n"
        "LocalStore.remove = die\n"
        "collect(LocalStore(sys.argv[1]), RUTHLESS)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(store.root)], cwd=_ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not store.exists(f"versions/{older}/manifest.json")
    assert store.files_below(f"versions/{older}")
    with pytest.raises(VersionDeleted, match="has been deleting this version since"):
        TokenDataset(f"{store.root}@{older}", seq_len=16)
    assert any("another gc has been deleting it for" in kept.why for kept in collect(store, RUTHLESS).kept)
    for path in store.files_below(f"retired/{older}"):
        os.utime(store.local(path), (time.time() - 3700,) * 2)
    assert collect(store, RUTHLESS).deleted == [older]
    assert store.names("versions") == [newer]
    assert build(spec_of(tmp_path / "store", source, 0)).version == older
    check_complete(store, older)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_changes_nothing(
    tmp_path: Path, built: Built, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    store, older, newer = copy_of(built, tmp_path / "store")
    policy = Policy(keep_last=0, keep_days=None, grace_seconds=1800)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    with_lease = TokenDataset(f"{store.root}@{newer}", seq_len=16, lease=True)
    assert collect(store, policy).retired == [older]
    assert collect(store, policy).deleted == []  # the machine's clock may say that an hour has passed, or none
    assert isinstance(store, LocalStore)
    os.utime(store.local(f"retired/{older}/00000001.json"), (now() - 1900,) * 2)
    assert collect(store, policy).deleted == [older]
    assert with_lease.lease is not None
    with_lease.lease.release()


def test_on_s3_nothing_that_is_used_is_lost(s3_url: str, s3_proxy: FaultyProxy, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in" / "small.jsonl", ["one", "two"])
    small = build_two(tmp_path / "store", {"kind": "jsonl", "path": str(path)})
    for seed in range(count(3, 40)):
        store, older, _ = uploaded(small, s3_url, f"collected-{seed}")
        files = {path: store.read(path) for path in store.files_below(f"versions/{older}")}
        users: dict[str, Actor] = {
            "leased reader": lambda each, version=older: read_with_lease(each, version),  # type: ignore[misc]
            "mover": lambda each, version=older: move_tag(each, "prod", version),  # type: ignore[misc]
            "builder": lambda each, made=files, version=older: build_again(each, files_of(made, version)),  # type: ignore[misc]
        }
        name = list(users)[seed % 3]
        longest = {name: 8, "collector": 70}
        results = Schedule(store, seed, longest).run({name: users[name], "collector": collect_twice})
        for result in results.values():
            assert not isinstance(result, Exception) or isinstance(result, VersionDeleted), result
        for version in tags.tagged_versions(store):
            check_complete(store, version)
    collect_twice(store)


def test_on_s3_a_version_is_retired_deleted_and_built_again(
    s3_url: str, s3_proxy: FaultyProxy, built: Built, source: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{BUCKET}/lifecycle"
    store, older, newer = uploaded(built, s3_url, "lifecycle")
    leased = TokenDataset(f"{url}/data@{older}", seq_len=16, lease=True, access="range")
    assert collect(store, RUTHLESS).retired == []
    assert leased.lease is not None
    leased.lease.release()
    # Not 1: S3 rounds to seconds, so either of the two may be the last that was published.
    arguments = ["gc", f"{url}/data", "--keep-last", "0", "--grace", "0", "--json"]
    for key in ("retired", "deleted"):
        capsys.readouterr()
        assert main(arguments) == 0
        assert json.loads(capsys.readouterr().out)[key] == [older]
    assert store.names("versions") == [newer]
    entry = newest_retirement(store, older)
    assert entry is not None and entry.state == DELETED
    assert build(spec_of(url, source, 0)).version == older
    check_complete(store, older)
