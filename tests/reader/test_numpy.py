"""Batches of numpy arrays: those of tensors, in a process without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reader.oracle import FIELDS, make_store
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import EvaluationPass, TokenLoader
from tokenloom.reader.mixture import Mixture

_ROOT = Path(__file__).parents[2]
_FIELDS = [*FIELDS, "classes", "member"]

#: Prints what is in batches, which `loader` makes of the arguments of TokenLoader.
_BATCHES = """
import json
import numpy as np

def as_text(batch):
    arrays = {name: np.asarray(value) for name, value in batch.items()}
    return json.dumps({name: [str(array.dtype), array.tolist()] for name, array in arrays.items()})

def show(loader, evaluation, state):
    print(*map(as_text, [next(loader) for _ in range(20)]), sep="\\n")
    print(as_text(next(loader)), as_text(loader.batch_at(20)), as_text(loader.batch_at(7, range(1, 6, 2))), sep="\\n")
    print(*map(as_text, evaluation), sep="\\n")
    print(json.dumps(loader.state_dict()))
    loader.load_state_dict(state)
    print(as_text(next(loader)))
    loader.close()
"""
_WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from tokenloom import EvaluationPass, Mixture, TokenDataset, TokenLoader, context_shard

one = TokenDataset(sys.argv[1], seq_len=16, packing="best_fit", fields=json.loads(sys.argv[2]))
mixture = Mixture({"a": (one, 2), "b": (one, 1)})
loader = TokenLoader(mixture, 3, rank=1, world_size=2, device="numpy")
assert "the CPU, as numpy arrays" in loader.describe() and loader.device is None
show(loader, EvaluationPass(one, 4, device="numpy"), {**loader.state_dict(), "samples": 60})
assert context_shard(loader.batch_at(0), 1, 2)["labels"].shape == (3, 8)
try:
    TokenLoader(one, 3)
except ModuleNotFoundError as error:
    print(error)
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "numpy", (300, 90, 500), has_masks=True)


def _show() -> Callable[[TokenLoader, EvaluationPass, dict[str, Any]], None]:
    names: dict[str, Any] = {}
    exec(_BATCHES, names)
    show: Callable[[TokenLoader, EvaluationPass, dict[str, Any]], None] = names["show"]
    return show


def test_a_process_without_torch_gets_the_same_batches(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", _BATCHES + _WITHOUT_TORCH, reference, str(_FIELDS).replace("'", '"')]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one = TokenDataset(reference, seq_len=16, packing="best_fit", fields=_FIELDS)
    loader = TokenLoader(Mixture({"a": (one, 2), "b": (one, 1)}), 3, rank=1, world_size=2)
    _show()(loader, EvaluationPass(one, 4), {**loader.state_dict(), "samples": 60})
    *found, message = done.stdout.splitlines()
    assert found == capsys.readouterr().out.splitlines()
    assert message == 'tensors need torch: pip install torch, or pass device="numpy" for batches of numpy arrays'


def test_arrays_that_are_kept_are_not_written_again(reference: str) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=16, fields=FIELDS), 2, device="numpy", prefetch=4)
    kept = [next(loader) for _ in range(100)]
    loader.close()
    for step, batch in enumerate(kept):
        again = loader.batch_at(step)
        assert all(np.array_equal(batch[name], again[name]) for name in batch)
    kept[0]["labels"][:] = 0
    assert (kept[1]["labels"] != 0).any()
