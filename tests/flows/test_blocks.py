"""Stores and credentials from Prefect blocks: what they open, how errors are reported, and that no secret shows."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from prefect.blocks.system import Secret
from prefect.filesystems import LocalFileSystem
from prefect.settings import PREFECT_HOME

from tests.builders.datasets import make_spec, write_jsonl
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.prefect_servers import recorded_text
from tests.servers.s3_server import BUCKET, download, put
from tokenloom.errors import SpecError, StoreError, TokenloomError
from tokenloom.flows.blocks import using_credentials
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.flows.direct import build_from_spec
from tokenloom.flows.version_flows import collect_garbage
from tokenloom.spec.blocks import Credentials
from tokenloom.spec.build_spec import BuildSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    # of aiobotocore and s3fs, whose sessions end with the process
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
_PLANTED = "planted-8f3c1d7e5b"  # a secret that must not appear anywhere


@pytest.fixture
def options() -> Iterator[dict[str, Any]]:
    """The options of fsspec in this process, restored afterwards."""
    before = dict(fsspec.config.conf)
    yield fsspec.config.conf
    fsspec.config.conf.clear()
    fsspec.config.conf.update(before)


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An S3 server with a file of documents; the environment has no credentials for it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    lines = "".join(f'{{"text": "document {i} of a bucket"}}\n' for i in range(100))
    put(s3_url, "blocks/input/a.jsonl", lines.encode())
    return s3_url


def s3_spec(folder: Path, block: str) -> BuildSpec:
    source = {"kind": "jsonl", "path": f"s3://{BUCKET}/blocks/input/*.jsonl"}
    spec = make_spec(folder / "store", [source], credentials=[{"protocol": "s3", "block": block}])
    return spec.with_workers(1)


@pytest.mark.usefixtures("prefect_server")
def test_credentials_end_with_the_block(options: dict[str, Any]) -> None:
    Secret(value={"key": "of the block"}).save("any", overwrite=True)
    options["s3"] = {"key": "before"}
    options.pop("gs", None)
    with using_credentials([Credentials(protocol=protocol, block="any") for protocol in ("s3", "gs")]):
        assert options["s3"] == options["gs"] == {"key": "of the block"}
    assert options["s3"] == {"key": "before"}
    assert "gs" not in options


@pytest.mark.usefixtures("options", "quick_retries")
def test_a_store_on_s3_contains_no_secret_and_no_failure_shows_one(
    prefect_server: Path, tmp_path: Path, s3: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyProxy(s3) as proxy:
        options = {"key": "test", "secret": _PLANTED, "endpoint_url": proxy.url}
        Secret(value=options).save("bucket", overwrite=True)
        spec = s3_spec(tmp_path, "bucket").model_copy(update={"store": f"s3://{BUCKET}/blocks/store"})
        built = build_dataset(spec)
        assert built["published"] is True
        found = collect_garbage(f"s3://{BUCKET}/blocks/store/data", delete=False, credentials="s3=bucket")
        assert found["kept"] == [{"version": built["version"], "why": "tagged latest"}]
        proxy.refused = "PUT"
        with pytest.raises(StoreError, match="no permission to write it") as refused:
            build_dataset(spec.model_copy(update={"seed": 1}))
    download(s3, "blocks/store", tmp_path / "copy")
    places = [*(tmp_path / "copy").rglob("*"), *Path(PREFECT_HOME.value()).rglob("*")]
    files = [path for path in places if path.is_file()]
    assert any(path.name == "build.json" for path in files)
    assert [path for path in files if _PLANTED.encode() in path.read_bytes()] == []
    chain = "".join(traceback.format_exception(refused.value))
    recorded = recorded_text(prefect_server)
    assert built["reference"] in recorded and "no permission to write it" in recorded
    assert _PLANTED not in recorded + chain + caplog.text


@pytest.mark.usefixtures("prefect_server", "options")
def test_a_missing_or_malformed_block_is_named(tmp_path: Path, s3: str) -> None:
    with pytest.raises(
        SpecError, match=r"credentials of s3: Secret block 'nothing': .*create it in the UI under Blocks"
    ):
        build_dataset(s3_spec(tmp_path, "nothing"))
    Secret(value=_PLANTED).save("text", overwrite=True)
    with pytest.raises(SpecError, match="'text': its value is not a JSON object") as failed:
        build_dataset(s3_spec(tmp_path, "text"))
    assert _PLANTED not in str(failed.value)


@pytest.mark.usefixtures("prefect_server", "options")
def test_a_store_can_be_a_folder_in_a_block(tmp_path: Path) -> None:
    LocalFileSystem(basepath=str(tmp_path / "corpora")).save("corpora", overwrite=True)
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(60)])
    spec = make_spec(tmp_path, [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}]).with_workers(0)
    named = spec.model_copy(update={"store": "block://local-file-system/corpora/team"})
    version = build_dataset(named)["version"]
    assert (tmp_path / "corpora" / "team" / "data" / "versions" / version).is_dir()
    kept = collect_garbage(f"{named.store}/data", delete=False)["kept"]
    assert [each["version"] for each in kept] == [version]
    for store, said in (
        ("block://local-file-system/other", "Prefect has no such block"),
        ("block://secret/x", "write block://local-file-system/NAME or"),
        ("block://local-file-system/corpora/../x", "write block://local-file-system/NAME or"),
    ):
        with pytest.raises(SpecError, match=said):
            build_dataset(spec.model_copy(update={"store": store}))


def test_a_direct_build_refuses_what_only_prefect_has(tmp_path: Path) -> None:
    for fields, said in (
        ({"credentials": [{"protocol": "s3", "block": "a"}]}, "credentials: this needs Prefect"),
        ({"runner": {"kind": "dask"}}, "runner: this needs Prefect"),
        ({"store": "block://local-file-system/a"}, "store: this needs Prefect"),
    ):
        spec = make_spec(tmp_path, [{"kind": "jsonl", "path": "/a.jsonl"}])
        asked = BuildSpec.model_validate(spec.model_dump() | fields)
        with pytest.raises(TokenloomError, match=said):
            build_from_spec(asked)
