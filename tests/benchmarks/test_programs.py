"""The benchmarks run to completion at sizes too small to measure anything."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.builders.chat_families import Family, tokenizer_json
from tests.builders.synthetic_store import random_documents, write_store
from tests.counts import full_only

_FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


def _run(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    monkeypatch.syspath_prepend(_FOLDER)  # as for a program that is run: they share modules
    runpy.run_path(str(_FOLDER / program), run_name="__main__")


@full_only
def test_read_measures_everything_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))  # the program sets its own
    output = tmp_path / "read.json"
    options = ["--tiny", "--full", "--rounds", "1", "--folder", str(tmp_path), "--output", str(output)]
    _run(monkeypatch, "read.py", *options)
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(output.read_text())["figures"]
    assert len(lines) == len(figures) + 1
    names = {figure["name"] for figure in figures}
    assert {"bare", "TokenLoader, prefetch=0", "TokenLoader, thread"} <= names
    (packed,) = (figure["values"] for figure in figures if figure["name"] == "best_fit: samples")
    assert packed == [1.0]  # it is exact
    (cold,) = (figure["values"] for figure in figures if "still in memory" in figure["name"])
    assert all(0 <= share <= 1 for share in cold)


@full_only
@pytest.mark.parametrize(
    ("program", "options", "num_figures"),
    [("read_masks.py", [], 6), ("export.py", ["--workers", "0"], 11), ("gpu_feed.py", ["--workers", "0"], 9)],
)
def test_a_tiny_round_writes_each_figure(
    program: str, options: list[str], num_figures: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))  # a program counts the samples of made stores
    output = tmp_path / "figures.json"
    _run(monkeypatch, program, "--tiny", "--rounds", "1", *options, "--output", str(output))
    assert len(json.loads(output.read_text())["figures"]) == num_figures


@full_only
def test_build_scale_compares_the_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "scale.json"
    sizes = ["--gigabytes", "0.002", "0.001"]
    _run(monkeypatch, "build_scale.py", *sizes, "--folder", str(tmp_path), "--json", str(output))
    figures = {figure["name"]: figure["values"][0] for figure in json.loads(output.read_text())["figures"]}
    small, large = (figures[f"{size} GB: per million tokens"] for size in ("0.001", "0.002"))
    assert figures["time per token: largest / smallest"] == large / small
    assert list(tmp_path.iterdir()) == [output]
    assert len(capsys.readouterr().out.splitlines()) == len(figures) + 1


@full_only
def test_chat_compares_equal_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, data_dir: Path
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokens = Family(("<|im_start|>", "<|im_end|>"))
    made = tokenizer_json(data_dir / "tokenizers/gpt-neox-20b/tokenizer.json", tokens, in_pieces=True)
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    output = tmp_path / "chat.json"
    sizes = ["--conversations", "150", "--rounds", "1", "--batches", "4"]
    given = ["--data", str(data_dir / "chat"), "--tokenizer", str(folder)]
    _run(monkeypatch, "chat.py", *given, *sizes, "--json", str(output))
    figures = {figure["name"]: figure["values"][0] for figure in json.loads(output.read_text())["figures"]}
    rates = figures["ChatML: tokenloom"] / figures["ChatML: datasets.map"]
    assert figures["ChatML: tokenloom / datasets.map"] == pytest.approx(rates)
    assert figures["reading, best_fit: with masks"] > 0
    assert capsys.readouterr().out.startswith("left out: the template that TRL trains Qwen 3 with")


@full_only
def test_feed_measures_each_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reference = write_store(tmp_path / "store", [random_documents(40_000, 100, seed) for seed in range(2)])
    output = tmp_path / "feed.json"
    sizes = ["--seconds", "0.2", "--step-ms", "1", "--seq-len", "64", "--processes", "2"]
    _run(monkeypatch, "feed.py", reference, *sizes, "--output", str(output))
    figures = json.loads(output.read_text())["figures"]
    assert [len(figure["values"]) for figure in figures] == [2, 2, 2, 2, 2, 1]
    assert figures[-1]["values"] == [pytest.approx(sum(figures[-2]["values"]))]
