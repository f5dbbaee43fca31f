"""Probes start once, say why they can't, and count if they crash or hang."""

from __future__ import annotations

import errno
import faulthandler
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.tokenloom.test_fast_encoders import judge, train
from tokenloom.cli.main import main
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast import probe_process
from tokenloom.tokenizers.fast.choice import choose
from tokenloom.tokenizers.fast.libraries import libraries
from tokenloom.tokenizers.fast.probe_process import run_probe, start_probe
from tokenloom.tokenizers.fast.verdict import Verdict, failures_path, num_failed, verdict_path


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """A tokenizer, and a cache without verdicts."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tokenizer.json").write_bytes(train())
    return load_tokenizer({"kind": "huggingface", "path": str(tmp_path / "tokenizer.json")})


def trusting(reference: Tokenizer, encoder: Any, *_: object) -> Verdict:
    """Return a verdict without a comparison."""
    return Verdict(reference.fingerprint, reference.backend, encoder.library, None, [])


def write_spec(folder: Path) -> str:
    tokenizer = f"{{kind: huggingface, path: {folder / 'tokenizer.json'}}}"
    path = folder / "spec.yaml"
    path.write_text(f"dataset: d\nstore: st\nsources: [{{kind: text, path: a.txt}}]\ntokenizer: {tokenizer}\n")
    return str(path)


_PROBE = """
import os, signal, sys, time
from tokenloom.tokenizers.fast import probe_process
probe_process.probe = lambda *_: exec(sys.argv[3])
probe_process._MAX_SECONDS = 0.5
probe_process.main()
"""


@pytest.mark.parametrize(
    ("what", "num_counted"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", 0),
        ("os.abort()", 2),
        ("time.sleep(100)", 2),
    ],
    ids=["killed", "terminated", "crashed", "hung"],
)
def test_a_probe_counts_if_it_crashes_or_hangs_not_if_it_is_killed(
    what: str, num_counted: int, reference: Tokenizer, tmp_path: Path
) -> None:
    library = libraries()[0][0]
    definition = {"kind": "huggingface", "path": str(tmp_path / "tokenizer.json")}
    for _ in range(2):
        command = [sys.executable, "-c", _PROBE, json.dumps(definition), library.NAME, what]
        assert subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False).returncode != 0
    assert num_failed(verdict_path(reference, library.NAME)) == num_counted
    assert choose(reference, "auto").pending is library


def test_an_interrupted_probe_does_not_count(reference: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    library = libraries()[0][0]
    monkeypatch.setattr(probe_process, "probe", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_probe(reference, library, lambda what, num_texts: None)
    assert num_failed(verdict_path(reference, library.NAME)) == 0
    assert faulthandler.is_enabled()  # as pytest has it


def test_a_library_whose_probes_crashed_is_named_and_probed_again_by_the_command(
    reference: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = libraries()[0]
    path = verdict_path(reference, first.NAME)
    judge(reference, second.NAME)
    failures_path(path).write_bytes(b"Fatal Python error: Aborted\n\n" * 3)
    choice = choose(reference, "auto")
    assert (choice.encoder, choice.pending) == (second.NAME, None)
    assert str(choice.reason).startswith(f"{first.NAME} is refused: three probes crashed or took too long (")
    monkeypatch.setattr(probe_process, "probe", trusting)
    assert main(["tokenizer", write_spec(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"probing {first.NAME} (" in shown
    assert f"encoder    {first.NAME}: " in shown
    assert num_failed(path) == 0
    assert choose(reference, "auto").encoder == first.NAME


def test_two_workers_start_one_probe(reference: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one asks while the process of the first has not taken its lock yet."""
    library = libraries()[0][0]
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def starting(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(probe_process, "_START", "import time; time.sleep(100)")
    monkeypatch.setattr(subprocess, "Popen", starting)
    answers = []
    for _ in range(2):
        answers += [start_probe(reference, library, {}) for _ in range(2)]
        started[-1].kill()
        started[-1].wait()
    assert answers == [True, False, True, False]


@pytest.mark.parametrize("reason", ["Not a directory", "No space left on device"])
def test_a_cache_that_can_not_be_written_is_named_before_a_probe(
    reason: str,
    reference: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = tmp_path / "cache"
    if reason == "Not a directory":
        shutil.rmtree(cache, ignore_errors=True)  # it holds the record that loading `reference` wrote
        cache.write_text("a file")
    else:
        full: Any = Mock(side_effect=OSError(errno.ENOSPC, reason))
        monkeypatch.setattr("tokenloom.tokenizers.fast.verdict.TemporaryFile", full)
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=AssertionError))
    assert not start_probe(reference, libraries()[0][0], {})
    assert main(["tokenizer", write_spec(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{cache}: the cache can't be used: {reason}; " in shown.err
    assert "set TOKENLOOM_CACHE to another folder" in shown.err
