"""`tokenloom gc` on real stores: beside real builds and readers, and on S3."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tests.builders.retention_actors import OLD_DAYS, RUTHLESS, check_complete, collect_all
from tests.counts import SUMMARY
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom import TokenDataset
from tokenloom.errors import StoreError, VersionDeleted
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves
from tokenloom.tasks.retention import DAY, Policy, collect

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
    folder = tmp_path_factory.mktemp("built") / "store"
    return Built(folder, *(build(spec_of(folder, source, seed)).version for seed in (0, 1)))


def spec_of(store: str | Path, source: dict[str, str], seed: int) -> BuildSpec:
    """Return a spec of several shards."""
    return make_spec(store, [source], seed=seed, splits={"train": 1.0}, shard_tokens=6000)


def copy_of(built: Built, store: Path) -> tuple[Store, str, str]:
    """Copy the two versions; return the dataset's store, the older one, and the one that `latest` names."""
    shutil.copytree(built.folder, store)
    return open_store(f"{store}/data"), built.older, built.newer


def aged(store: Store) -> Store:
    """Make all files of a local store older than the grace."""
    assert isinstance(store, LocalStore)
    for path in store.files_below(""):
        os.utime(store.local(path), (time.time() - OLD_DAYS * DAY,) * 2)
    return store


def test_a_training_whose_untagged_version_is_deleted_ends_and_says_what_to_do(tmp_path: Path, built: Built) -> None:
    store, older, newer = copy_of(built, tmp_path / "store")
    aged(store)
    reference = f"{store.root}@{older}"
    with pytest.warns(UserWarning, match=f"no tag names {reference}, .* `tokenloom tag {reference} NAME`") as warned:
        untagged = TokenDataset(reference, seq_len=16, max_open_shards=1)
    assert (len(warned), warned[0].filename) == (1, __file__)
    TokenDataset(f"{store.root}@{newer}", seq_len=16)
    TokenDataset(f"{store.root}@{newer[:6]}", seq_len=16)
    assert collect_all(store).deleted == [older]
    with pytest.raises(
        VersionDeleted, match=f"@{older}: the version was deleted.* tag what you train on: `tokenloom tag"
    ):
        untagged.__getitems__(range(len(untagged)))
    with pytest.raises(StoreError, match=f"no version {older}"):
        TokenDataset(reference, seq_len=16)


def test_a_tag_keeps_a_version_and_ends_the_warning(tmp_path: Path, built: Built) -> None:
    store, older, _ = copy_of(built, tmp_path / "store")
    tag_moves.move(store, "run-7", older, 0, "tag")
    aged(store)
    whole = TokenDataset(f"{store.root}@{older}", seq_len=16, max_open_shards=1)
    assert collect_all(store).deleted == []
    assert len(whole.__getitems__(range(len(whole)))) == len(whole)
    store.replace("tags/run-8/00000001.json", b"{}")  # gc deletes nothing, so nobody needs a warning
    store.remove("tags/run-7/00000001.json")
    TokenDataset(f"{store.root}@{older}", seq_len=16)


def test_a_build_beside_a_collector_publishes_a_whole_version(
    tmp_path: Path, built: Built, source: dict[str, str]
) -> None:
    """The collector runs without a pause; all that is in the store before the build is older than the grace.

    What it had found before the build wrote its plan, it may delete: the same command then continues.
    """
    store, older, _ = copy_of(built, tmp_path / "store")
    aged(store).remove(f"versions/{older}/manifest.json")
    spec = tmp_path / "spec.json"
    spec.write_text(spec_of(tmp_path / "store", source, 0).model_dump_json())
    command = [sys.executable, "-m", "tokenloom", "build", "--direct", "--json", "--workers", "0", str(spec)]
    num_runs, errors = 0, ""
    for attempt in range(2):
        builder = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while builder.poll() is None:
            collect_all(store)
            num_runs += 1
        output, errors = builder.communicate()
        if builder.returncode == 0 or not ("work file damaged: " in errors and attempt == 0):
            break
    assert builder.returncode == 0, errors
    result = json.loads(output)
    assert (result["version"], result["published"], result["tag_moved"]) == (older, True, True)
    alone = spec_of(tmp_path / "alone", source, 0)
    assert listed_files(alone, build(alone).version) == listed_files(spec_of(tmp_path / "store", source, 0), older)
    SUMMARY.append(f"a build beside {num_runs} runs of gc: a whole version")


def test_on_s3_a_version_is_deleted_and_built_again(
    s3_url: str, s3_proxy: FaultyProxy, built: Built, source: dict[str, str]
) -> None:
    url = f"s3://{BUCKET}/lifecycle"
    upload(s3_url, built.folder, "lifecycle")
    store, older, newer = open_store(f"{url}/data"), built.older, built.newer
    assert collect(store, RUTHLESS, delete=True).deleted == []
    time.sleep(1.1)  # S3 rounds to seconds
    assert collect(store, Policy(0, 0), delete=True).deleted == [older]
    assert store.names("versions") == [newer]
    assert build(spec_of(url, source, 0)).version == older
    check_complete(store, older)
