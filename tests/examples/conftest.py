"""A small dataset of real text that the examples train on."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.builders.datasets import build, make_spec, write_jsonl

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> ModuleType:
    """The example that a module tests. Its framework takes seconds to import, which only its tests should pay."""
    return importlib.import_module("examples." + request.module.__name__.rpartition(".test_")[2])


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference of a version of our own sources, as bytes; it has the splits train and validation."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [
        path.read_text(encoding="utf-8")
        for name in ("storage", "tasks")
        for path in sorted((_ROOT / name).rglob("*.py"))
    ]
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "in.jsonl", texts))}
    spec = make_spec(folder / "store", [source], splits={"train": 0.8, "validation": 0.2}, shard_tokens=50_000)
    return f"{spec.store}/data@{build(spec).version}"


@pytest.fixture(autouse=True)
def _one_thread_and_the_same_seeds_after() -> Iterator[None]:
    """Models this small are several times faster on one thread; frameworks set all global seeds."""
    import torch  # or skip

    num_threads, numpy_state, python_state = torch.get_num_threads(), np.random.get_state(), random.getstate()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(num_threads)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
