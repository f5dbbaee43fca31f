"""Workers whose reference runs in a process of its own have its ids and errors, also when that process is gone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from tests.servers.processes import children, is_running
from tests.tokenloom.test_fast_encoders import train
from tokenloom.errors import TokenizerError
from tokenloom.tasks.encoding import job_tokenizer
from tokenloom.tasks.encoding.encoders import _start_reference
from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer
from tokenloom.tasks.encoding.reference_process import RemoteTokenizer
from tokenloom.tasks.preload import preload_build
from tokenloom.tasks.running.workers import WorkerPool
from tokenloom.tokenizers import Tokenizer, load_tokenizer
from tokenloom.tokenizers.fast.gigatoken_library import NAME
from tokenloom.tokenizers.fast.verdict import Verdict, verdict_path, write_verdict
from tokenloom.tokenizers.identity import TokenizerIdentity, _files_and_path, identify
from tokenloom.tokenizers.machine_records import write_machine_record

_TEXTS = ["lorem ipsum", "", "it's naïve", "<|endoftext|> " * 9, "x" * 5000]

Definition = dict[str, Any]


@pytest.fixture
def definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Definition:
    """A tokenizer.json that this machine remembers, whose fast encoder is trusted."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tokenizer.json").write_bytes(train())
    definition = {"kind": "huggingface", "path": str(tmp_path / "tokenizer.json"), "backend": "auto"}
    trust(identify(definition)[0])
    return definition


def trust(tokenizer: TokenizerIdentity) -> None:
    """Write a verdict that trusts the fast encoder of a tokenizer."""
    verdict = Verdict(tokenizer.fingerprint, tokenizer.backend, NAME, None, [])
    write_verdict(verdict_path(RemoteTokenizer({}, tokenizer, {}), NAME), verdict)


@pytest.fixture
def pool(definition: Definition) -> Iterator[WorkerPool]:
    """One worker, whose server has preloaded the tokenizer."""
    with WorkerPool(1) as one:
        one.preload(preload_build, definition)
        yield one


def encode(job: tuple[Definition, str]) -> tuple[str, list[int], list[int]]:
    """Return which class encodes, and the tokens and their numbers."""
    tokenizer = load_job_tokenizer(*job)
    texts = pa.array(["before", *_TEXTS, "after"], pa.large_string())[1:-1]
    encoded = tokenizer.encode(texts, np.dtype(np.uint16))
    return type(tokenizer).__name__, encoded.tokens.tolist(), encoded.num_tokens.tolist()


def decode_and_take(job: tuple[Definition, str, list[int]]) -> tuple[str, bool]:
    definition, fingerprint, ids = job
    tokenizer = load_job_tokenizer(definition, fingerprint)
    return tokenizer.decode(np.array(ids)), tokenizer.takes(np.frombuffer(b"a b " * 1_000_000, np.uint8))


def fail(job: tuple[Definition, str]) -> None:
    load_job_tokenizer(*job).decode(np.array([-1]))


def encode_after_interruption(job: tuple[Definition, str]) -> tuple[str, list[int], list[int]]:
    """Run out of memory between a call and its answer, then encode other texts."""
    with patch.object(Connection, "recv", side_effect=MemoryError), pytest.raises(MemoryError):
        load_job_tokenizer(*job).encode(pa.array(["another text"], pa.large_string()), np.dtype(np.uint16))
    return encode(job)


def process_and_parent(_: object) -> tuple[int, int]:
    return os.getpid(), os.getppid()


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and theirs."""
    found = set(children(pid))
    return found.union(*map(descendants, found))


def helpers(pool: WorkerPool) -> set[int]:
    """Return the reference's process and its forks."""
    worker, server = pool.call(process_and_parent, None)
    return descendants(server) - {worker}


def expected(reference: Tokenizer) -> tuple[list[int], list[int]]:
    encoded = reference.encode(pa.array(_TEXTS, pa.large_string()), np.dtype(np.uint16))
    return encoded.tokens.tolist(), encoded.num_tokens.tolist()


def test_another_process_returns_and_raises_what_the_reference_does(definition: Definition, pool: WorkerPool) -> None:
    reference = load_tokenizer(definition)
    tokens, num_tokens = expected(reference)
    assert pool.call(encode, (definition, reference.fingerprint)) == ("RemoteTokenizer", tokens, num_tokens)
    assert len(helpers(pool)) == 2
    decoded = pool.call(decode_and_take, (definition, reference.fingerprint, tokens))
    assert decoded == (reference.decode(np.array(tokens)), reference.takes(np.frombuffer(b"a b " * 10**6, np.uint8)))
    with pytest.raises(OverflowError) as here:
        reference.decode(np.array([-1]))
    with pytest.raises(OverflowError, match=re.escape(str(here.value))):
        pool.call(fail, (definition, reference.fingerprint))
    assert len(helpers(pool)) == 2  # the connection is used again
    # An interrupted call leaves no answer for the next.
    job = (definition, reference.fingerprint)
    assert pool.call(encode_after_interruption, job) == ("RemoteTokenizer", tokens, num_tokens)


@pytest.mark.parametrize("is_used", [False, True])
def test_a_worker_whose_reference_is_killed_loads_its_own(
    is_used: bool, definition: Definition, pool: WorkerPool
) -> None:
    reference = load_tokenizer(definition)
    job, ids = (definition, reference.fingerprint), expected(reference)
    if is_used:
        pool.call(encode, job)
    for pid in helpers(pool):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker = pool.call(process_and_parent, None)
    for _ in range(2):
        assert pool.call(encode, job)[1:] == ids
    assert pool.call(process_and_parent, None) == worker
    assert not helpers(pool)


def test_a_reference_other_than_the_remembered_one_is_not_used(definition: Definition) -> None:
    _, path = _files_and_path(definition)
    known, _ = identify(definition)
    other = replace(known, fingerprint="f" * 64)
    assert path is not None
    write_machine_record(path, other)
    trust(other)
    with WorkerPool(1) as pool:
        pool.preload(preload_build, definition)
        with pytest.raises(TokenizerError, match="its files changed"):
            pool.call(encode, (definition, other.fingerprint))
        assert not helpers(pool)


def test_no_process_is_left_when_the_pool_is_closed_or_its_server_ends(definition: Definition) -> None:
    fingerprint = load_tokenizer(definition).fingerprint
    for ends_server in (False, True):
        with WorkerPool(1) as pool:
            pool.preload(preload_build, definition)
            pool.call(encode, (definition, fingerprint))
            found = helpers(pool)
            if ends_server:
                os.kill(pool.call(process_and_parent, None)[1], signal.SIGKILL)
                pool.call(encode, (definition, fingerprint))  # a worker outlives its server
        deadline = time.monotonic() + 20
        while any(map(is_running, found)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_reference_that_encodes_everything_gets_no_process(
    definition: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteTokenizer, "start", lambda self: True)
    monkeypatch.setattr(job_tokenizer, "_provided", {})
    assert isinstance(_start_reference(definition), RemoteTokenizer)
    assert _start_reference(definition | {"backend": "reference"}) is None
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "empty"))
    assert _start_reference(definition) is None
