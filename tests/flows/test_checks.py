"""A run whose version fails a check: Failed, with a table of the checks, and no event that it was published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.servers.prefect_servers import send_all
from tests.servers.running import artifact, event, log_lines, newest_run
from tokenloom.cli.main import main
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
    assert "\n" not in str(run.state.message)
    assert re.match(r"checked \w{16} \([a-z-]+\) failed: /\S+: 1 of ", run.name)
    assert log_lines(run)[-1] == ("ERROR", f"failed: {run.state.message}")
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


def test_a_publication_by_hand_emits_the_event_of_a_build(
    tmp_path: Path, flows_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", flows_url)
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(50)])
    source = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}
    spec = make_spec(tmp_path / "store", [source], dataset="by-build", report=True)
    by_build = build_dataset(spec.with_workers(0))
    checks = {"min_documents": 1000, "min_tokens": 1}
    with pytest.raises(GateFailed) as failed:
        build(make_spec(tmp_path / "store", [source], dataset="by-hand", checks=checks, report=True))
    reference = f"{tmp_path}/store/by-hand@{failed.value.version}"
    assert main(["publish", reference, "--force", "--reason", "a small corpus", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    send_all()
    expected, found = (event("tokenloom.dataset.published", name) for name in ("by-build", "by-hand"))
    assert found.keys() == expected.keys()
    assert found == expected | {
        "dataset": "by-hand",
        "version": result["version"],
        "reference": reference,
        "report": result["report"],
        "seconds": found["seconds"],
        "partitions": None,
        "partitions_reused": None,
        "flow_run_id": None,
        "message": found["message"],
        "read": expected["read"].replace(by_build["reference"], reference),
    }
    assert found["message"].startswith(f"published {reference}: 590 tokens in 50 documents, 3 shards, in ")
    assert "; 1 of 2 checks passed; " in found["message"]
    assert expected["report"] == by_build["report"] is not None
