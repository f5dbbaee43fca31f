"""A build on a real Dask cluster: a scheduler and two workers in processes and folders of their own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.builders.chats import with_chats
from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tests.counts import count, full_only
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.processes import wait_until
from tests.servers.s3_server import BUCKET, sent_through, upload
from tokenloom.errors import InputError, TokenloomError
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building.plan import Build, Partition
from tokenloom.tasks.building.tokenization import tokenize_partition
from tokenloom.tasks.running import progress

_ROOT = Path(__file__).parent.parent.parent
pytest.importorskip("prefect_dask", reason="needs prefect-dask: pip install 'tokenloom[dask]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    # Dask leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=folder,
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(_ROOT), "HOME": str(folder), "TOKENLOOM_CACHE": str(folder / "cache")},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Run a scheduler with two workers of one thread each; yield its address."""
    from distributed import Client

    file = folder / "scheduler.json"
    with ExitStack() as stack:
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        stack.enter_context(_running(folder / "scheduler", "scheduler", *options))
        for name in ("one", "two"):
            options = ["--scheduler-file", str(file), "--no-nanny", "--nthreads", "1", "--no-dashboard"]
            stack.enter_context(_running(folder / name, "worker", *options, "--host", "127.0.0.1"))
        wait_until(file.exists, 60, interval=0.1)
        with Client(scheduler_file=str(file)) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(2, timeout=60)
            address = str(client.scheduler.address)
        yield address
    gc.collect()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a worker creates before it kills itself."""
    return tmp_path_factory.mktemp("killed") / "killed"


@pytest.fixture(scope="module")
def address(shared_proxy: FaultyProxy, killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster."""
    with sent_through(shared_proxy), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENLOOM_TEST_KILLED", str(killed))
        with _cluster(tmp_path_factory.mktemp("cluster")) as address:
            yield address


def _spec(folder: Path, again: int = 1, **fields: Any) -> BuildSpec:
    """Return a build of 4 x 100 documents, each of which repeats its line `again` times."""
    for name in "abcd":
        texts = [f"document {i} of {name} on a cluster" * again for i in range(100)]
        write_jsonl(folder / "input" / f"{name}.jsonl", texts)
    source = {"kind": "jsonl", "path": str(folder / "input" / "*.jsonl")}
    return make_spec(folder / "store", [source], **{"shard_tokens": 3000 * again, **fields})


@full_only
@pytest.mark.usefixtures("prefect_server", "tiktoken_cache")
def test_workers_with_an_empty_home_use_the_fast_encoder(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.building.plan.MIN_FAST_BYTES", 0)
    tokenizer = {"kind": "tiktoken", "name": "gpt2"}
    result = build_dataset(_spec(tmp_path, runner={"kind": "dask", "address": address}, tokenizer=tokenizer))
    ((library, use),) = result["encoders"].items()
    assert (library.split()[0], use["partitions"]) == ("gigatoken", 4)


@pytest.mark.usefixtures("prefect_server")
def test_bad_input_on_a_cluster_fails_with_our_message(tmp_path: Path, address: str) -> None:
    spec = _spec(tmp_path, runner={"kind": "dask", "address": address})
    with (tmp_path / "input" / "b.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    with pytest.raises(InputError, match=r"b\.jsonl"):
        build_dataset(spec)
    assert not list(tmp_path.glob("store/data/versions/*/manifest.json"))


@pytest.mark.usefixtures("prefect_server")
def test_an_address_without_a_cluster_is_named(tmp_path: Path) -> None:
    import dask

    spec = _spec(tmp_path, runner={"kind": "dask", "address": "tcp://127.0.0.1:1", "workers": 2})
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(TokenloomError, match=r"runner\.address: no cluster at tcp://127\.0\.0\.1:1"),
    ):
        build_dataset(spec)


def _kill_worker_once(build: Build, part: Partition) -> int:
    """Encode, but kill this worker of the cluster the first time."""
    try:
        Path(os.environ["TOKENLOOM_TEST_KILLED"]).touch(exist_ok=False)
    except FileExistsError:
        return tokenize_partition(build, part)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process continues")


@pytest.mark.usefixtures("prefect_server")
def test_a_cluster_that_shares_only_s3_changes_no_bytes_even_if_a_worker_is_killed(
    tmp_path: Path, s3_url: str, killed: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = with_chats(_spec(tmp_path, again=count(1, 17_000)), tmp_path / "chats", 50)  # 200 MB
    for name in ("input", "chats"):
        upload(s3_url, tmp_path / name, f"cluster/{name}")
    sources = local.model_dump()["sources"]
    for source in sources:
        source["path"] = source["path"].replace(f"{tmp_path}/", f"s3://{BUCKET}/cluster/")
    fields = {"store": f"s3://{BUCKET}/cluster/store", "sources": sources}
    spec = BuildSpec.model_validate(local.model_dump() | fields | {"runner": {"kind": "dask", "address": address}})
    seen: list[progress.Event] = []
    with monkeypatch.context() as patch, progress.listening(seen.append):
        patch.setattr("tokenloom.flows.build_steps.tokenize_partition", _kill_worker_once)
        result = build_dataset(spec)
    assert killed.exists()
    encoded = [event.num_documents for event in seen if isinstance(event, progress.Advanced)]
    assert sum(encoded) >= 2 * 400  # tokenize and shuffle
    here = {"store": str(tmp_path / "direct"), "runner": {"kind": "process"}}
    same = BuildSpec.model_validate(spec.model_dump() | here)
    assert listed_files(spec, result["version"]) == listed_files(same, build(same).version)
    assert listed_files(spec, result["version"], ".tok") == listed_files(local, build(local).version, ".tok")
