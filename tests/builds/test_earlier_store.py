"""A store, its spills and loader states that an earlier release wrote keep their meaning.

golden/version-1.zip holds inputs, spec.yaml, the store that 0.1.0 built from them on 2026-11-22 (its tag entry gained
`number` later), and states.json: for two packings, the state of a loader after five batches, and the SHA-256 (16
digits) of the next three.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenloom.flows.direct import build_directly, verify_directly
from tokenloom.spec.loading import load_spec

_VERSION = "e0cbb980a8ad9abb"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The folder of what the earlier release wrote."""
    with zipfile.ZipFile(Path(__file__).parent / "golden/version-1.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def _shards(folder: Path) -> dict[str, bytes]:
    version = folder / "store/golden/versions" / _VERSION
    return {path.relative_to(version).as_posix(): path.read_bytes() for path in sorted(version.rglob("*.tok"))}


def test_its_version_is_up_to_date(earlier: Path) -> None:
    result = build_directly(load_spec(earlier / "spec.yaml"), 0)
    assert (result.version, result.published) == (_VERSION, False)


def test_its_version_verifies(earlier: Path) -> None:
    spec = load_spec(earlier / "spec.yaml")
    result = verify_directly(str(earlier / "store/golden"), True, spec, 0)
    assert (result["damages"], result["warnings"], result["documents_encoded_again"]) == ([], [], 126)


def test_its_spills_are_reused_for_the_same_shards(earlier: Path) -> None:
    before = _shards(earlier)
    shutil.rmtree(earlier / "store/golden/versions")
    shutil.rmtree(earlier / "store/golden/tags")
    result = build_directly(load_spec(earlier / "spec.yaml"), 0)
    assert (result.version, result.published) == (_VERSION, True)
    assert (result.num_partitions, result.num_encoded) == (7, 0)
    assert _shards(earlier) == before


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_its_loader_states_resume_at_the_same_samples(packing: str, earlier: Path) -> None:
    pytest.importorskip("torch")
    from tokenloom import TokenLoader

    state = json.loads((earlier / "states.json").read_text())[packing]
    loader = TokenLoader.from_state(str(earlier / "store"), state["state"], batch_size=4)
    assert _digests(iter(loader), 3) == state["next"]


def _digests(batches: Iterator[Any], count: int) -> list[dict[str, str]]:
    return [
        {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16] for name, tensor in next(batches).items()}
        for _ in range(count)
    ]
