"""Builds from S3 to S3 make the bytes of a local build despite errors of the network and the store."""

from __future__ import annotations

import gzip
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.builders.chats import with_chats
from tests.builders.datasets import build, listed_files, make_spec, write_jsonl, write_parquet
from tests.builders.observing import at_step
from tests.counts import count, full_only
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, put, upload
from tokenloom.errors import InputError, StoreError
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.references import dataset_store
from tokenloom.tasks.building.publish import BuildResult


def write_inputs(folder: Path, num_documents: int = 300) -> list[str]:
    """Write one file for each of several kinds; return their names."""
    texts = [f"document {i}, said {i % 7} times. " * (1 + i % 50) for i in range(num_documents)]
    write_parquet(folder / "a.parquet", [*texts[: num_documents // 2], "twice"], group_rows=60)
    write_jsonl(folder / "b.jsonl", texts[num_documents // 3 :])
    packed = folder / "c.jsonl.gz"
    packed.write_bytes(gzip.compress((folder / "b.jsonl").read_bytes(), mtime=0))
    (folder / "d.txt").write_text("one text file\n")
    return ["a.parquet", "b.jsonl", "c.jsonl.gz", "d.txt"]


def spec_of(root: str, names: list[str], store: str, **fields: Any) -> BuildSpec:
    """Return a spec that reads the files below `root`."""
    kinds = {".parquet": "parquet", ".txt": "text"}
    sources = [{"kind": kinds.get(Path(name).suffix, "jsonl"), "path": f"{root}/{name}"} for name in names]
    spec = make_spec(Path("/"), sources, **{"shard_tokens": 100_000, **fields})
    return spec.model_copy(update={"store": store})


def fresh_store() -> str:
    """Return the URL of an unused store in the bucket."""
    return f"s3://{BUCKET}/builds/{uuid.uuid4().hex}"


# ---- the same bytes


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=full_only), 1])
def test_a_build_to_s3_has_the_bytes_of_a_build_to_a_folder(
    tmp_path: Path, s3_proxy: FaultyProxy, num_workers: int
) -> None:
    names = write_inputs(tmp_path / "in")
    local = with_chats(spec_of(str(tmp_path / "in"), names, str(tmp_path / "store")), tmp_path, 40)
    remote = local.model_copy(update={"store": fresh_store()})
    result, expected = build(remote, num_workers), build(local)
    assert result.version == expected.version
    assert listed_files(remote, result.version) == listed_files(local, expected.version)
    again = build(remote, num_workers)
    assert (again.published, again.tag_moved, again.num_encoded) == (False, False, 0)


def test_exactly_one_of_two_builds_with_the_same_bytes_publishes(tmp_path: Path, s3_proxy: FaultyProxy) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["a text"])
    spec = spec_of(str(tmp_path), ["a.jsonl"], fresh_store())
    found: list[BuildResult] = []
    with at_step("publish", lambda: found.append(build(spec))):  # the other, all of it
        found.append(build(spec))
    assert [result.published for result in found] == [True, False]
    assert [(result.version, result.tag_note) for result in found] == [(found[0].version, None)] * 2
    assert len(tags.log(dataset_store(spec.store, "data"), "latest")) == 1


# ---- the network


def test_build_and_epoch_have_the_bytes_of_a_local_build_if_a_tenth_of_requests_fail(
    tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy
) -> None:
    names = write_inputs(tmp_path / "in", count(300, 9000))
    key = uuid.uuid4().hex
    upload(s3_url, tmp_path / "in", key)
    moved, found, epochs, faults = [], [], [], []
    for rate in (0.0, 0.1):
        s3_proxy.seen.clear()
        s3_proxy.bytes_up = s3_proxy.num_faults = 0
        s3_proxy.fail(rate, seed=5)
        spec = spec_of(f"s3://{BUCKET}/{key}", names, fresh_store())
        version = build(spec).version
        assert len(s3_proxy.seen) < 500  # the check reads the documents of a shard at once
        loader = TokenLoader(
            TokenDataset(f"{spec.store}/data", seq_len=512, cache=ShardCache(tmp_path / f"cache {rate}")),
            8,
            num_epochs=1,
        )
        epochs.append([batch["input_ids"].tolist() for batch in loader])
        moved.append(s3_proxy.bytes_up + sum(num_bytes for _, _, num_bytes in s3_proxy.seen))
        faults.append(s3_proxy.num_faults / len(s3_proxy.seen))
        s3_proxy.fail(0.0, 0)
        found.append(listed_files(spec, version))
    assert found[0] == found[1]
    assert epochs[0] == epochs[1]
    local = spec_of(str(tmp_path / "in"), names, str(tmp_path / "store"))
    assert listed_files(spec, version, ".tok") == listed_files(local, build(local).version, ".tok")
    assert faults[0] == 0
    assert 0.05 < faults[1] < 0.2
    assert moved[1] <= 1.3 * moved[0]


def test_a_store_that_stays_unreachable_fails_the_build_and_is_named(tmp_path: Path, s3_proxy: FaultyProxy) -> None:
    names = write_inputs(tmp_path / "in")
    spec = spec_of(str(tmp_path / "in"), names, fresh_store())
    s3_proxy.fail(1.0, seed=1)
    with pytest.raises(StoreError, match=r"s3://corpora/builds/.*: the store did not answer correctly, although"):
        build_once(spec)
    s3_proxy.fail(0.0, seed=1)
    assert build(spec).published


def build_once(spec: BuildSpec) -> None:
    """Build without waiting between retries of a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenloom.tasks.running.steps.RETRY_SECONDS", ())
        build(spec)


@pytest.mark.parametrize("name", ["b.jsonl", "c.jsonl.gz", "a.parquet"])
def test_a_network_that_fails_while_an_input_is_read_is_not_reported_as_damage(
    tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy, name: str
) -> None:
    write_inputs(tmp_path / "in")
    key = uuid.uuid4().hex
    upload(s3_url, tmp_path / "in", key)
    spec = spec_of(f"s3://{BUCKET}/{key}", [name], str(tmp_path / "store"))
    with (
        at_step("tokenize", lambda: setattr(s3_proxy, "always", "503")),
        pytest.raises(InputError, match=rf"s3://.*/{name}: the store did not answer"),
    ):
        build_once(spec)
    s3_proxy.always = "ok"
    assert build(spec).published


def test_an_object_that_changes_while_it_is_read_fails_the_build(
    tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy
) -> None:
    names = write_inputs(tmp_path / "in")
    key = uuid.uuid4().hex
    upload(s3_url, tmp_path / "in", key)
    spec = spec_of(f"s3://{BUCKET}/{key}", names, fresh_store())
    write_jsonl(tmp_path / "new" / "b.jsonl", ["another text"])
    with (
        at_step("shuffle", lambda: upload(s3_url, tmp_path / "new", key)),
        pytest.raises(InputError, match=rf"s3://corpora/{key}/b.jsonl: .*(changed|shorter|are gone)"),
    ):
        build(spec)
    assert dataset_store(spec.store, "data").names("tags/latest") == []


def test_verify_over_a_bad_network_reports_only_real_damage(tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy) -> None:
    names = write_inputs(tmp_path / "in")
    spec = spec_of(str(tmp_path / "in"), names, fresh_store())
    version = build(spec).version
    s3_proxy.fail(0.1, seed=3)
    found = verify_directly(f"{spec.store}/data", True, None, 0)
    assert (found["damages"], found["documents_encoded_again"]) == ([], 302)
    s3_proxy.fail(0.0, seed=3)
    s3_proxy.plan("ok", "ok", "flip", "ok", "flip")
    assert verify_directly(f"{spec.store}/data", False, None, 0)["damages"] == []
    key = f"{spec.store.removeprefix(f's3://{BUCKET}/')}/data/versions/{version}/train/000000.tok"
    put(s3_url, key, b"damaged")
    (damage,) = verify_directly(f"{spec.store}/data", False, None, 0)["damages"]
    assert damage["file"].endswith("train/000000.tok")
