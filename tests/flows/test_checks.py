"""A run whose version fails a check: Failed, with a table of the checks, and no event that it was published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import make_spec, write_jsonl
from tests.servers.prefect_servers import send_all
from tests.servers.running import artifact, newest_run
from tokenloom.errors import GateFailed
from tokenloom.flows import build_dataset as module
from tokenloom.flows.build_dataset import build_dataset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("prefect_server")]


def test_a_failed_check_fails_the_run_with_a_table_and_relaxed_checks_complete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted: list[Any] = []
    monkeypatch.setattr(module, "emit_published", lambda *args: emitted.append(args))
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(50)])
    source = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}
    strict = {"min_tokens": 10, "min_documents": 1000}
    spec = make_spec(tmp_path / "store", [source], dataset="checked", checks=strict)
    with pytest.raises(GateFailed, match=r"1 of 2 checks failed.*min_documents: expected >= 1,000, found 50"):
        build_dataset(spec.with_workers(0))
    run = newest_run()
    send_all()
    assert run.state is not None
    assert run.state.is_failed()
    assert "min_documents: expected >= 1,000, found 50" in str(run.state.message)
    assert run.name == "build-checked"
    assert json.loads(artifact("checked-checks").data) == [
        {"check": "min_documents", "result": "failed", "expected": ">= 1,000", "found": "50"},
        {"check": "min_tokens", "result": "passed", "expected": ">= 10", "found": "590"},
    ]
    assert not emitted
    relaxed = make_spec(tmp_path / "store", [source], dataset="checked", checks={"min_documents": 50})
    result = build_dataset(relaxed.with_workers(0))
    assert (result["published"], result["partitions_encoded"], len(emitted)) == (True, 0, 1)
    summary = artifact("checked-summary").data
    assert "| min_documents | &gt;= 50 | 50 |" in summary
    assert re.search(r"^\| tokenize \| [\d.]+\xa0s \| `█*░*` \|$", summary, re.MULTILINE)
