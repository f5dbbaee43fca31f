"""`tokenloom doctor`: what is not well is found, each with what to do, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

import tokenloom
from tests.builders.commands import run_json
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, S3_ENVIRONMENT, keys
from tokenloom.cli.doctor import machine, packages
from tokenloom.cli.doctor.packages import installed_version
from tokenloom.cli.main import main
from tokenloom.reader.shards import disk_reads
from tokenloom.storage.stores import remote_retries
from tokenloom.tokenizers.fast.machine_check import MachineCheck, _deciding
from tokenloom.tokenizers.fast.proofs import shipped_proofs
from tokenloom.tokenizers.machine_records import keep_record

Findings = dict[str, list[dict[str, str]]]  # by topic

_ALONE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from tokenloom.cli.main import main
sys.exit(main(["doctor", "--json"]))
"""
_OF_THE_READER = ("fsspec", "numpy", "pyarrow", "filelock", "xxhash", "tokenloom-")


@pytest.fixture(autouse=True)
def _quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of this test, and no server."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENLOOM_UP_HOME", str(tmp_path / "up"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "vocabularies"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def _findings(result: dict[str, Any]) -> Findings:
    """Return the findings by topic; whatever is not well says what to do."""
    found: Findings = {}
    for finding in result["findings"]:
        assert bool(finding["advice"]) == (finding["status"] != "ok"), finding
        found.setdefault(finding["topic"], []).append(finding)
    return found


def _examined(capsys: pytest.CaptureFixture[str], *stores: object, code: int = 0) -> Findings:
    return _findings(run_json(capsys, "doctor", *stores, code=code))


def test_nothing_is_left_where_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _examined(capsys, tmp_path / "store")
    assert found["tokenloom"][0]["found"].startswith(f"{version('tokenloom')}, Python 3.")
    assert f"pyarrow {version('pyarrow')}" in found["packages"][0]["found"]
    assert {"build", "fast"} <= set(found["extras"][0]["found"].replace(";", ",").replace(":", ",").split(", "))
    assert " gpt2, " in found["fast encoders"][0]["found"]
    assert "answers, no dataset yet, takes writes" in found[f"store {tmp_path}/store"][0]["found"]
    assert "none; " in found["Prefect's server"][0]["found"]
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_the_topics_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(tokenloom.__file__).parents[1] / "docs/guides/doctor.md").read_text(encoding="utf-8")
    shown = re.findall("^(?:ok|warning|problem) +(.{20}) ", page, re.MULTILINE)
    shown = [topic.strip() for topic in shown if not topic.startswith("store ")]
    assert [topic for topic in shown if topic != "torch"] == [topic for topic in _examined(capsys) if topic != "torch"]


def test_lines_for_people_have_a_status_and_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["doctor", str(tmp_path / "file")]) == 3
    lines = capsys.readouterr().out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(f"problem store {tmp_path}/file "))
    assert lines[at + 1].endswith(
        " -> a file is in the place of a folder: choose another store and run the same command again"
    )
    assert lines[-1].startswith("a build would fail here: 1 problem, ")


@pytest.mark.parametrize(
    ("topic", "variable"), [("cache", "TOKENLOOM_CACHE"), ("tiktoken's cache", "TIKTOKEN_CACHE_DIR")]
)
def test_a_cache_that_cant_be_written_is_a_warning(
    topic: str, variable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file" / "cache"))
    (finding,) = _examined(capsys)[topic]
    assert finding["status"] == "warning" and f"{tmp_path}/file/cache can't be written" in finding["found"]
    assert finding["advice"] == f"set {variable} to a folder that this user can write"


def test_an_installation_without_the_extra_reads_but_does_not_build(tmp_path: Path) -> None:
    for package in _OF_THE_READER:
        for path in Path(np.__file__).parents[1].glob(f"{package}*"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tokenloom").symlink_to(Path(tokenloom.__file__).parent)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TOKENLOOM_CACHE")}
    command = [sys.executable, "-I", "-S", "-c", _ALONE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    found = _findings(json.loads(done.stdout))
    assert found["extra build"][0]["advice"] == "pip install 'tokenloom[build]'"
    assert "this installation reads and trains, but can't build" in found["extra build"][0]["found"]
    assert "not installed: arrayrecord, fast, dask, ray, s3, gcs, azure" in found["extras"][0]["found"]
    assert [topic for topic, (each, *_) in found.items() if each["status"] == "problem"] == ["extra build"]
    assert found["open files"][0]["status"] == "warning"  # 256 of them
    assert found["open files"][0]["advice"].startswith("run `ulimit -n 4096` first")


def _with(package: str, changed: str) -> Callable[[str], str | None]:
    """Return `installed_version` where a package has another version."""
    return lambda name: changed if name == package else installed_version(name)


def test_a_version_that_does_not_work_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "installed_version", _with("fastapi", "0.155"))
    (finding,) = _examined(capsys, code=3)["extra build"]
    assert "fastapi<0.151,>=0.139 (0.155 is installed)" in finding["found"]


def test_proofs_of_another_version_and_refused_encoders_are_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = shipped_proofs()["qwen3"]
    keep_record(MachineCheck("it gives other ids"), _deciding(proof.key, proof))
    keep_record(replace(proof, key="of this machine"), "anything")
    monkeypatch.setattr(packages, "installed_version", _with("tiktoken", "0.13.0"))
    holds, other, refused = _examined(capsys)["fast encoders"]
    assert "gpt2" not in holds["found"].split(", ") and "and 1 vocabulary proven on this machine" in holds["found"]
    assert "gpt2, " in other["found"] and other["advice"].startswith("pip install tiktoken==0.14.0, or let")
    assert refused["found"] == "qwen3 is refused on this machine: it gives other ids"


def test_little_memory_is_a_warning(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_reads, "memory_bytes", lambda: 10**9)
    monkeypatch.setattr(machine, "num_cores", lambda: 8)
    monkeypatch.setattr(machine, "free_bytes", lambda path: 64 * 2**20)
    found = _examined(capsys)
    assert found["memory"][0]["advice"] == "build with --workers 1, or raise the limit"
    assert "docker run --shm-size" in found["shared memory"][0]["advice"]
    assert "set TMPDIR" in found["temporary files"][0]["advice"]


def test_a_server_that_does_not_answer_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        (finding,) = _examined(capsys, code=3)["Prefect's server"]
    assert finding["found"] == "the Prefect server http://127.0.0.1:9/api (PREFECT_API_URL) does not answer"
    assert finding["advice"] == "--direct builds without a server"


def test_the_catalogue_of_a_store_is_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "news/versions").mkdir(parents=True)
    (tmp_path / "index.html").touch()
    (finding,) = _examined(capsys, tmp_path)[f"store {tmp_path}"]
    assert finding["found"].startswith("answers, 1 dataset, takes writes")


def test_what_is_broken_ends_no_other_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE_LIMIT", "much")
    found = _examined(capsys, code=3)
    assert found["caches"][0]["found"].endswith("TOKENLOOM_CACHE_LIMIT is 'much': write bytes, such as 100GB or 93GiB")
    assert "Prefect's server" in found


def test_a_store_that_does_not_answer_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    monkeypatch.setattr(remote_retries, "FIRST_WAIT_SECONDS", 0.01)
    for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    (finding,) = _examined(capsys, "s3://corpora/store", code=3)["store s3://corpora/store"]
    assert "the store did not answer correctly in 2 tries" in finding["found"]
    assert finding["advice"].startswith("check whether it can be reached from here")


def test_an_object_store_is_tried_without_leaving_anything(
    s3_url: str, s3_proxy: FaultyProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    before = keys(s3_url, "")
    (finding,) = _examined(capsys, f"s3://{BUCKET}/store")[f"store s3://{BUCKET}/store"]
    assert finding["found"] == "answers, no dataset yet, takes writes"
    assert {method for method, _, _ in s3_proxy.seen} >= {"PUT", "GET"}
    assert keys(s3_url, "") == before
    (finding,) = _examined(capsys, "s3://no-such-bucket/store", code=3)["store s3://no-such-bucket/store"]
    assert "no such bucket or container" in finding["found"]
    s3_proxy.refused = "PUT"
    (finding,) = _examined(capsys, f"s3://{BUCKET}/store", code=3)[f"store s3://{BUCKET}/store"]
    assert "answers, no dataset yet, but does not take what a build writes" in finding["found"]


def test_a_store_without_exclusive_names_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    held = dict(fsspec.filesystem("memory").store)
    takes, warned = _examined(capsys, "memory://doctor/store")["store memory://doctor/store"]
    assert (takes["status"], warned["status"]) == ("ok", "warning")
    assert warned["advice"] == "run one build of a dataset at a time"
    assert fsspec.filesystem("memory").store == held
