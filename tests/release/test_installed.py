"""The wheel in empty environments: it works without the clone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.datasets import build, lines_spec
from tests.builders.distributions import CONSTRAINTS, ROOT, Distributions, Installation
from tests.counts import full_only
from tokenloom import __version__

#: Trains a table of logits, one row a token, with numpy alone; prints the losses of its first and last batches.
_TRAIN = """
import sys
import numpy as np
import tokenloom
from tokenloom import TokenDataset, TokenLoader

assert tokenloom.__file__.startswith(sys.prefix), tokenloom.__file__
data = TokenDataset(sys.argv[1], split="train", seq_len=64)
loader = TokenLoader(data, batch_size=8, seed=0, device="numpy")
logits = np.zeros((257, 257))
losses = []
for step in range(40):
    batch = next(loader)
    ids, labels = batch["input_ids"].ravel(), batch["labels"].ravel()
    shares = np.exp(logits[ids])
    shares /= shares.sum(1, keepdims=True)
    losses.append(-np.log(shares[range(len(ids)), labels]).mean())
    shares[range(len(ids)), labels] -= 1
    np.subtract.at(logits, ids, 0.1 * shares)
print(losses[0], np.mean(losses[-5:]), "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version of bytes of our own sources, which any installation can train on."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tokenloom").glob("*.py"))]
    spec = lines_spec(tmp_path_factory.mktemp("corpus"), texts * 3, tokenizer={"kind": "byte"})
    return f"{spec.store}/data@{build(spec).version}"


def test_a_bare_installation_reads_and_trains(distributions: Distributions, reference: str, tmp_path: Path) -> None:
    bare = Installation(tmp_path, distributions.wheel, *CONSTRAINTS)
    first, last, has_torch = bare.run("python", "-c", _TRAIN, reference).split()
    assert (f"{float(first):.2f}", has_torch) == ("5.55", "False")  # the logarithm of 257
    assert float(last) < 4
    assert bare.run("tokenloom", "--version") == f"tokenloom {__version__}\n"


_SPEC = """
dataset: news
store: ./store
sources:
  - {kind: jsonl, path: data/*.jsonl, text: text}
tokenizer: {kind: byte}
"""
_READ = """
from tokenloom import TokenDataset

data = TokenDataset("store/news@latest", split="train", seq_len=16)
print(len(data) > 100, data.decode(data[0]["input_ids"]).isprintable())
"""


@full_only
def test_an_installation_with_the_extra_build_follows_the_quick_start(
    distributions: Distributions, tmp_path: Path
) -> None:
    installed = Installation(tmp_path, f"{distributions.wheel}[build]", *CONSTRAINTS)
    work = tmp_path / "work"
    (work / "data").mkdir()
    (work / "news.yaml").write_text(_SPEC)
    lines = [json.dumps({"text": f"document {i}, which is long enough to be read"}) for i in range(200)]
    (work / "data/a.jsonl").write_text("\n".join(lines))
    assert json.loads(installed.run("tokenloom", "plan", "news.yaml", "--json"))["dataset"] == "news"
    assert json.loads(installed.run("tokenloom", "build", "news.yaml", "--prefect", "--json"))["published"]
    assert installed.run("python", "-c", _READ) == "True True\n"
