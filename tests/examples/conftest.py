"""A small dataset of real text that the examples train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import build, make_spec, write_jsonl

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference of a version of our own sources, as bytes; it has the splits train and validation."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [path.read_text(encoding="utf-8") for name in ("storage", "tasks") for path in (_ROOT / name).glob("*.py")]
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "in.jsonl", texts))}
    spec = make_spec(folder / "store", [source], splits={"train": 0.8, "validation": 0.2}, shard_tokens=50_000)
    return f"{spec.store}/data@{build(spec).version}"
