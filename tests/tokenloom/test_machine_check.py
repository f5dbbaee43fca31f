"""The check of a proven encoder on this machine: what it finds, when it is made, and what is kept of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.counts import full_only
from tests.tokenloom.test_fast_encoders import train
from tokenloom.tokenizers import load_tokenizer, machine_records
from tokenloom.tokenizers.fast import machine_check
from tokenloom.tokenizers.fast.machine_check import MachineCheck, check_here, find_check
from tokenloom.tokenizers.fast.parts import parts_of
from tokenloom.tokenizers.fast.probe import SliceEncoder
from tokenloom.tokenizers.fast.probe_texts import NUM_SLICES
from tokenloom.tokenizers.fast.proofs import Proof, installed_library
from tokenloom.tokenizers.machine_records import keep_record

Definition = dict[str, Any]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without checks."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_records, "_held", {})
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> Definition:
    """A small tokenizer.json."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(train())
    return {"kind": "huggingface", "path": str(path), "backend": "auto"}


@pytest.fixture(scope="module")
def proof(definition: Definition) -> Proof:
    """A proof whose hashes are those of the fast encoder, without a comparison."""
    reference = load_tokenizer(definition)
    parts = parts_of(reference)
    encoder = SliceEncoder(parts)
    slices = tuple(encoder.ids_hash(index, ()) for index in range(NUM_SLICES))
    return Proof(parts.key, str(installed_library()), reference.backend, (), slices)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the processes that are started."""
    started: list[list[str]] = []
    run = subprocess.run

    def counting(command: list[str], **options: Any) -> Any:
        started.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counting)
    return started


def in_process(monkeypatch: pytest.MonkeyPatch, code: str, seconds: int = 5) -> None:
    """Let the library do something in the process of a check, which may take some seconds."""
    start = (
        "import sys; sys.path[:] = sys.argv[1:]; import os, signal, time, gigatoken; original = gigatoken.Tokenizer\n"
        "from tokenloom.tokenizers.fast import machine_check\n"
        f"def broken(*arguments): {code}\n"
        f"machine_check._MAX_SECONDS = {seconds}; machine_check._speed = lambda *_: 1.0\n"
        "gigatoken.Tokenizer = type('Broken', (), {'from_json': broken, 'from_tiktoken': broken})\n"
        "machine_check.main()"
    )
    monkeypatch.setattr(machine_check, "_START", start)


def test_a_check_is_made_once_and_measures_both(
    definition: Definition, proof: Proof, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = counted(monkeypatch)
    assert find_check(proof.key, proof) is None
    first = check_here(definition, proof.key, proof)
    assert first.refused is None
    assert first.speeds is not None and first.speeds.fast is not None and first.speeds.fast > first.speeds.reference > 0
    assert check_here(definition, proof.key, proof) == first == find_check(proof.key, proof)
    assert len(started) == 1
    assert len(list(cache.rglob("MachineCheck-*.json"))) == 1


@pytest.mark.parametrize("index", [0, pytest.param(10, marks=full_only), NUM_SLICES - 10])
def test_another_hash_of_a_checked_slice_refuses_the_encoder(
    index: int, definition: Definition, proof: Proof, cache: Path
) -> None:
    slices = (*proof.slices[:index], "0" * 16, *proof.slices[index + 1 :])
    found = check_here(definition, proof.key, replace(proof, slices=slices))
    assert found.refused == f"it gives other ids than those of its proof (slice {index} of the probe's texts)"
    assert check_here(definition, proof.key, proof).refused is None  # another proof


def test_another_version_of_the_library_is_checked_on_all_slices(
    definition: Definition, proof: Proof, cache: Path
) -> None:
    older = replace(proof, library="gigatoken 0.9.0", slices=proof.slices[:20])
    assert check_here(definition, older.key, older).refused is None
    for index in (1, 19):
        slices = (*older.slices[:index], "0" * 16, *older.slices[index + 1 :])
        assert f"slice {index} of" in str(check_here(definition, proof.key, replace(older, slices=slices)).refused)


def test_a_library_that_is_wrong_once_in_ten_thousand_texts_is_refused(
    definition: Definition, proof: Proof, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "lambda text: right(text)[: None if next(count) % 10_000 != 9999 else -1]"
    broken = f"right = original.from_json(*arguments).encode; count = iter(range(10**9)); encode = {wrong}"
    in_process(monkeypatch, f"{broken}; return type('Wrong', (), {{'encode': staticmethod(encode)}})", 100)
    assert "it gives other ids than those of its proof" in str(check_here(definition, proof.key, proof).refused)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("installed_library", lambda: "gigatoken 0.10.1"),
        ("sys.version", "3.99.0 (main)"),
        ("unidata_version", "99.0.0"),
        ("_CPU_INFO", Path(__file__)),
    ],
)
def test_other_versions_and_vector_flags_need_another_check(
    name: str, value: object, proof: Proof, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_check, "this_machine", machine_check.this_machine.__wrapped__)
    keep_record(MachineCheck(), machine_check._deciding(proof.key, proof))
    assert find_check(proof.key, proof) == MachineCheck()
    monkeypatch.setattr(f"tokenloom.tokenizers.fast.machine_check.{name}", value)
    assert find_check(proof.key, proof) is None


@pytest.mark.parametrize(
    ("code", "refused", "is_kept"),
    [
        ("os.abort()", "its check crashed (SIGABRT)", True),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its check crashed (SIGSEGV)", True),
        ("time.sleep(100)", "its check took longer than 120 s", True),
        ("raise RuntimeError('no tables')", "gigatoken does not take it (RuntimeError: no tables)", True),
        ("raise KeyError('no tables')", "gigatoken does not take it (KeyError: 'no tables')", True),
        ("raise MemoryError", "its check was ended (exit code 1)", False),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its check was ended (exit code -9)", False),
        ("os.kill(os.getpid(), signal.SIGTERM)", "its check was ended (exit code -15)", False),
    ],
)
def test_a_crash_or_a_hang_refuses_the_encoder_and_a_kill_only_until_the_process_ends(
    code: str,
    refused: str,
    is_kept: bool,
    definition: Definition,
    proof: Proof,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_process(monkeypatch, code)
    started = counted(monkeypatch)
    for _ in range(2):
        assert check_here(definition, proof.key, proof).refused == refused
    assert len(started) == 1
    machine_records._held.clear()  # as in the next process
    assert (find_check(proof.key, proof) is not None) == is_kept


def test_a_refused_encoder_is_checked_again_if_asked(
    definition: Definition, proof: Proof, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        in_process(patch, "os.abort()")
        assert check_here(definition, proof.key, proof).refused is not None
    assert check_here(definition, proof.key, proof).refused is not None
    assert check_here(definition, proof.key, proof, again=True).refused is None
    assert check_here(definition, proof.key, proof).refused is None


def test_without_a_cache_a_process_checks_once(
    definition: Definition, proof: Proof, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")
    started = counted(monkeypatch)
    for _ in range(2):
        assert check_here(definition, proof.key, proof).refused is None
    assert len(started) == 1


def test_a_check_that_can_not_be_started_is_named(
    definition: Definition, proof: Proof, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert str(check_here(definition, proof.key, proof).refused).startswith("its check can't be started (")
    monkeypatch.undo()
    monkeypatch.setattr(machine_records, "_held", {})
    assert find_check(proof.key, proof) is None


def test_what_a_library_prints_is_not_the_answer(
    definition: Definition,
    proof: Proof,
    cache: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_process(monkeypatch, "print('hello'); os.write(2, b'warning'); raise KeyError('x')")
    assert check_here(definition, proof.key, proof).refused == "gigatoken does not take it (KeyError: 'x')"
    assert capfd.readouterr() == ("", "")


def test_a_vocabulary_without_proof_is_measured_once(
    definition: Definition, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = counted(monkeypatch)
    assert find_check("key", None) is None
    found = check_here(definition, "key", None)
    assert found.speeds is not None and found.speeds.fast is not None
    assert check_here(definition, "key", None) == found == find_check("key", None)
    assert len(started) == 1
    byte = check_here({"kind": "byte"}, "byte", None).speeds
    assert byte is not None and byte.fast is None and byte.reference > 0
