"""A store, its spills and loader states that a release wrote keep their meaning in every later one.

golden/version-1.zip holds inputs, spec.yaml, the store that was built from them when the formats of 0.1.0 were final,
and states.json: for two packings, the state of a loader after five batches, and the SHA-256 (16 digits) of the next
three.
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

from tokenloom.flows.direct import build_directly
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.spec.loading import load_spec

_VERSION = "90a91830377506d3"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The folder of what was written."""
    with zipfile.ZipFile(Path(__file__).parent / "golden/version-1.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files whose bytes do not depend on the release of pyarrow."""
    version = folder / "store/golden/versions" / _VERSION
    paths = [*version.rglob("*.tok"), *version.rglob("*.blocks"), version / "inputs.json"]
    return {path.relative_to(version).as_posix(): path.read_bytes() for path in paths}


def test_its_version_is_up_to_date(golden: Path) -> None:
    result = build_directly(load_spec(golden / "spec.yaml"), 0)
    assert (result.version, result.published) == (_VERSION, False)


def test_its_version_verifies(golden: Path) -> None:
    spec = load_spec(golden / "spec.yaml")
    result = verify_directly(str(golden / "store/golden"), True, spec, 0)
    assert (result["damages"], result["warnings"], result["documents_encoded_again"]) == ([], [], 126)


def test_its_spills_are_reused_for_the_same_files(golden: Path) -> None:
    before = _files(golden)
    shutil.rmtree(golden / "store/golden/versions")
    shutil.rmtree(golden / "store/golden/tags")
    result = build_directly(load_spec(golden / "spec.yaml"), 0)
    assert (result.version, result.published) == (_VERSION, True)
    assert (result.num_partitions, result.num_encoded) == (7, 0)
    assert _files(golden) == before


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_its_loader_states_resume_at_the_same_samples(packing: str, golden: Path) -> None:
    pytest.importorskip("torch")
    from tokenloom import TokenLoader

    state = json.loads((golden / "states.json").read_text())[packing]
    loader = TokenLoader.from_state(str(golden / "store"), state["state"], batch_size=4)
    assert _digests(iter(loader), 3) == state["next"]


def _digests(batches: Iterator[Any], count: int) -> list[dict[str, str]]:
    found = [next(batches) for _ in range(count)]
    tensors = [{name: value for name, value in batch.items() if name != "num_targets"} for batch in found]
    return [
        {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16] for name, tensor in batch.items()}
        for batch in tensors
    ]
