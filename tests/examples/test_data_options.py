"""Every example runs on every dataset with its defaults: the demo's, README's news, and long documents of gpt2."""

from __future__ import annotations

import gzip
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.counts import full_only
from tokenloom.cli.commands import start
from tokenloom.examples.data_options import DEFAULTS, DataOptions
from tokenloom.examples.train_small import evaluate, make_model
from tokenloom.spec.loading import load_spec

_ROOT = Path(__file__).parents[2]
_NEWS = """\
dataset: news
store: ./store
sources:
  - {{kind: parquet, path: "{path}", text: text}}
tokenizer: {tokenizer}
report: false
"""
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("UserWarning", "FutureWarning")]


@pytest.fixture(scope="session")
def datasets(
    tmp_path_factory: pytest.TempPathFactory, any_data: Path, vocabulary: Callable[[str], dict[str, Any]]
) -> dict[str, str]:
    """References of the three datasets, of few documents each."""
    gpt2 = vocabulary("gpt2")
    folder = tmp_path_factory.mktemp("examples")
    (folder / "demo.yaml").write_text(start._SPEC + "report: false\n")
    sources = sorted((_ROOT / "tokenloom").rglob("*.py"))
    write_jsonl(folder / "stdlib.jsonl", [path.read_text() for path in sources if path.stat().st_size > 5200])
    news = any_data / "ag_news" / "train-00000-of-00008.parquet"
    (folder / "news.yaml").write_text(_NEWS.format(path=news, tokenizer=json.dumps(gpt2)))
    with gzip.open(any_data / "longdocs" / "scisummnet_papers.jsonl.gz", "rt", encoding="utf-8") as papers:
        long = write_jsonl(folder / "long.jsonl", [json.loads(next(papers))["article"] for _ in range(60)])
    options: dict[str, Any] = {"tokenizer": gpt2, "splits": {"train": 0.8, "test": 0.2}}
    spec = make_spec(folder / "store", [{"kind": "jsonl", "path": str(long)}], dataset="long", **options)
    for each in (load_spec(folder / "demo.yaml"), load_spec(folder / "news.yaml"), spec):
        build(each)
    return {name: f"{folder}/store/{name}" for name in ("stdlib", "news", "long")}


def _run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        if name == "train_ddp":
            monkeypatch.setenv(variable, value)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(_ROOT / "examples" / f"{name}.py"), run_name="__main__")


_OTHERS = ["train_ddp", "train_lightning", "train_accelerate", "train_trainer"]  # each has tests of its own
_RUNS = [("train_small", data) for data in ("stdlib", "news", "long")]
_LONG_RUNS = [(name, data) for name in (*_OTHERS, "train_chat") for data in ("stdlib", "news", "long")]


@pytest.mark.parametrize(("name", "data"), [*_RUNS, *(pytest.param(*run, marks=full_only) for run in _LONG_RUNS)])
def test_an_example_trains_and_evaluates_with_its_defaults(
    name: str, data: str, datasets: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(name, [datasets[data], "--steps", "1", "--batch-size", "2", "--evaluation-batches", "1"], monkeypatch)


@pytest.mark.parametrize(
    ("data", "others"), [("stdlib", ["validation", "test"]), ("news", ["validation"]), ("long", ["test"])]
)
def test_by_default_samples_are_as_long_as_every_split_allows(
    data: str, others: list[str], datasets: dict[str, str]
) -> None:
    train, evaluated = DEFAULTS.open(datasets[data], *others)
    smallest = min(each.num_tokens for each in (train, *evaluated) if each)  # each has samples
    assert all(evaluated)
    assert train.seq_len == min(512, 2 ** ((smallest - 1).bit_length() - 1))


def test_a_packing_without_such_samples_gets_shorter_ones(datasets: dict[str, str]) -> None:
    longest, _ = DEFAULTS.open(datasets["news"], "validation")
    train, (validation,) = DataOptions(packing="document").open(datasets["news"], "validation")
    assert train.seq_len < longest.seq_len
    assert validation is not None
    assert len(validation)


def test_splits_that_are_missing_or_empty_are_named_and_not_evaluated(datasets: dict[str, str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no split 'validation', so it is not evaluated"):
        _, (none,) = DEFAULTS.open(datasets["long"], "validation")
    source = {"kind": "jsonl", "path": str(write_jsonl(tmp_path / "in.jsonl", ["text " * 500]))}
    build(spec := make_spec(tmp_path / "store", [source], splits={"train": 0.99, "test": 0.01}))
    with pytest.warns(UserWarning, match="not evaluated: .* the split is empty"):
        train, (empty,) = DEFAULTS.open(f"{spec.store}/data", "test")
    assert (none, empty, len(train)) == (None, None, 4)
    assert np.isnan(evaluate(make_model(257, 0), empty, DEFAULTS))
