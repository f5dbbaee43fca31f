"""The files of the wheel build through Prefect without the clone.

tests/release installs the wheel and what it needs, which takes a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.builders.datasets import write_jsonl
from tests.builders.distributions import Distributions

_BUILD = """
import sys
import tokenloom
from tokenloom.cli.main import main

assert tokenloom.__file__.startswith(sys.argv[1]), tokenloom.__file__
sys.exit(main(sys.argv[2:]))
"""


def test_the_files_of_the_wheel_build_through_prefect(
    distributions: Distributions, flows_url: str, tmp_path: Path
) -> None:
    zipfile.ZipFile(distributions.wheel).extractall(tmp_path / "package")
    write_jsonl(tmp_path / "data/a.jsonl", [f"document {i}" for i in range(50)])
    spec = {"dataset": "news", "store": "store", "tokenizer": {"kind": "byte"}}
    (tmp_path / "news.yaml").write_text(json.dumps(spec | {"sources": [{"kind": "jsonl", "path": "data/*.jsonl"}]}))
    command = [
        sys.executable,
        "-c",
        _BUILD,
        str(tmp_path / "package"),
        "build",
        "news.yaml",
        "--workers",
        "1",
        "--json",
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "package"), "PREFECT_API_URL": flows_url}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["published"]
    assert f"Prefect server {flows_url}" in done.stderr
    assert list((tmp_path / "store/news/reports").glob("*.html"))
