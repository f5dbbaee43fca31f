"""The scripts and the flow of docs/guides/clusters.md, as they stand there, on a real Slurm of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.builders.datasets import built_alone, listed_files, write_jsonl
from tests.counts import count
from tests.docs.walk import files
from tests.servers.prefect_servers import serving_flows
from tests.servers.processes import wait_until
from tests.servers.slurm import programs, slurm_cluster
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_SHARES = count(2, 8)
# The first and the last share stay at a document until their job is queued again.
_TRANSFORM = """
import os, time
from pathlib import Path

def stay(text):
    task, again = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_RESTART_COUNT", "0")
    if task and task in ("0", os.environ.get("SLURM_ARRAY_TASK_MAX")):
        Path(f"began-{task}-{again}").write_text(os.environ["SLURM_ARRAY_JOB_ID"])
        time.sleep(0 if int(again) else 600)
    return text
"""


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """The environment variables of a Slurm cluster that runs all shares at the same time."""
    if programs() is None:
        pytest.skip("needs Slurm (Debian: apt-get install slurmctld slurmd slurm-client munge)")
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,  # the path of a socket must be short
        slurm_cluster(Path(folder), _SHARES) as variables,
    ):
        yield variables


def test_arrays_of_shares_of_which_one_is_terminated_and_one_killed_make_the_bytes_of_a_plain_build(
    cluster: dict[str, str], migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {**files("docs/guides/clusters.md"), "staying.py": _TRANSFORM}.items():
        Path(name).write_text(text, encoding="utf-8")
    for number in range(16):
        write_jsonl(tmp_path / "data" / f"{number}.jsonl", [f"text {i} of {number}" for i in range(100 + 10 * number)])
    asked = {
        "dataset": "news",
        "store": str(tmp_path / "store"),
        "sources": [{"kind": "jsonl", "path": str(tmp_path / "data" / "*.jsonl")}],
        "tokenizer": "byte",
        "documents": {"transform": {"function": "staying:stay", "version": "1"}},
        "shard_tokens": 2000,
        "report": False,
    }
    Path("news.yaml").write_text(yaml.safe_dump(asked), encoding="utf-8")
    spec = BuildSpec.model_validate(asked)
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    paths["PYTHONPATH"] = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"

    def begun(time: int) -> bool:
        """Return whether the two shares that stay have begun, for the first or the second time."""
        return {f"began-0-{time}", f"began-{_SHARES - 1}-{time}"} <= set(os.listdir())

    flow = f"import submit_build; submit_build.build_on_slurm('news.yaml', {_SHARES}, 1, seconds=0.5)"
    with serving_flows(migrated, tmp_path / "prefect") as url:
        environment = os.environ | paths | cluster | {"PREFECT_API_URL": url}
        with (
            Path("flow.log").open("wb") as log,
            subprocess.Popen([sys.executable, "-c", flow], env=environment, stdout=log, stderr=log) as process,
        ):
            wait_until(lambda: begun(0) or process.poll() is not None, 120)
            assert process.poll() is None, Path("flow.log").read_text()[-3000:]
            array = Path("began-0-0").read_text()
            for command in (
                ["scancel", "--signal=TERM", f"{array}_0"],
                ["scontrol", "requeue", f"{array}_{_SHARES - 1}"],
            ):
                subprocess.run(command, env=environment, check=True)
            assert process.wait(200) == 0, Path("flow.log").read_text()
    assert begun(1)
    store = dataset_store(spec.store, spec.dataset)
    (version,) = published_versions(store)
    assert listed_files(spec, version) == built_alone(spec, tmp_path)
