"""The code of the pages on training computes what they say; tests/docs/test_guides_alone.py runs all of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.reader.oracle import make_store

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """A function of a guide and a section: it runs the code under the title and in the section; returns the names."""
    texts = [f"def news_{i}(x):\n    return x + {i}\n" * (1 + i % 24) for i in range(1500)]
    source = {"kind": "jsonl", "path": str(write_jsonl(tmp_path / "news.jsonl", texts))}
    splits = {"train": 0.8, "validation": 0.2}
    build(make_spec(tmp_path / "store", [source], dataset="news", splits=splits, shard_tokens=60_000))
    monkeypatch.chdir(tmp_path)

    def run(guide: str, section: str) -> Any:
        text = (_ROOT / "docs/guides" / guide).read_text(encoding="utf-8")
        parts = text.partition("\n## ")[0], text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        names: dict[str, Any] = {}
        for code in re.findall(r"^```python\n(.*?)^```", "".join(parts), re.DOTALL | re.MULTILINE):
            exec(compile(code, guide, "exec"), names)
        return SimpleNamespace(**names)

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield run
    torch.set_num_threads(num_threads)


def _varlen(query: Any, key: Any, value: Any, ends: Any, other: Any, longest: int, most: int, **window: Any) -> Any:
    """Compute what varlen_attn does, run by run; it has no kernel for CPUs."""
    assert window == {"window_size": (-1, 0)}
    assert ends is other
    assert longest == most == int(ends.diff().max())
    runs = []
    for begin, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        q, k, v = (x[begin:end].transpose(0, 1) for x in (query, key, value))
        runs.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1))
    return torch.cat(runs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_packing_and_attention_within_documents(run: Callable[[str, str], Any]) -> None:
    names = run("packing.md", "Attention within documents")
    assert (names.batch["document_ids"].max(dim=1).values > 0).any()
    assert torch.allclose(names.dense, names.flexible, atol=1e-5)
    names.attend.__globals__["varlen_attn"] = _varlen
    found = names.attend(names.query, names.key, names.value, names.batch)
    assert torch.allclose(found, names.dense, atol=1e-5)


def test_the_mean_of_the_loss_weighs_each_target_the_same(run: Callable[[str, str], Any], tmp_path: Path) -> None:
    names = run("training.md", "The mean of the loss")
    reference = make_store(tmp_path / "made", (400,), has_masks=True)
    data = names.TokenDataset(reference, seq_len=12, packing="document_padded", learn="last")
    batches = list(names.EvaluationPass(data, batch_size=2))
    assert len({batch["num_targets"] for batch in batches}) > 5
    assert min(batch["num_targets"] for batch in batches) == 0
    model = torch.nn.Sequential(torch.nn.Embedding(5000, 4), torch.nn.Linear(4, 5000))
    other = copy.deepcopy(model)
    found = names.update(model, torch.optim.SGD(model.parameters(), lr=1.0), batches)
    inputs, labels = (torch.cat([batch[name] for batch in batches]) for name in ("input_ids", "labels"))
    expected = torch.nn.functional.cross_entropy(other(inputs).flatten(0, 1), labels.flatten())
    expected.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
