"""benchmarks/build.py compares equal work."""

from __future__ import annotations

import json
import os
import runpy
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.builders.datasets import build, make_spec, stored_documents, write_jsonl
from tests.counts import full_only

_FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _as_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_FOLDER)  # as for a program that is run: they share modules


def _trained_tokenizer(path: Path) -> Path:
    """Write a tokenizer.json of 300 ids, trained on this file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(path))
    return path


def test_rates_and_ratios_agree(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "build.json"
    options = ["--rounds", "1", "--megabytes", "0.3", "--tokenizer", "byte", "--json", str(output)]
    monkeypatch.setattr(sys, "argv", ["build.py", *options])
    runpy.run_path(str(_FOLDER / "build.py"), run_name="__main__")
    result = json.loads(output.read_text())
    figures = {figure["name"]: figure["values"][0] for figure in result["figures"]}
    assert figures["tokenloom / bare"] == pytest.approx(figures["tokenloom"] / figures["bare"])
    assert result["tokens"] == pytest.approx(result["text_mb"] * 1e6 + result["documents"])  # an end for each
    assert figures["memory of a process: tokenloom"] > figures["memory of a process: bare"] > 10
    assert (
        "left out: bare-gigatoken, megatron-fast, hf, hf-tiktoken, litdata, datatrove; give" in capfd.readouterr().out
    )


def _megatron_documents(folder: Path, dtype: type[np.generic]) -> Iterator[tuple[int, ...]]:
    """Yield the ids of each document of data.bin, and hold data.idx against them."""
    ids, index = np.fromfile(folder / "data.bin", dtype), (folder / "data.idx").read_bytes()
    magic, version, code, num_documents, num_ends = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, num_ends) == (b"MMIDIDX\0\0", 1, num_documents + 1)
    assert code == {np.uint16: 8, np.int32: 4}[dtype]
    lengths = np.frombuffer(index, np.int32, num_documents, 34)
    starts = np.frombuffer(index, np.int64, num_documents, 34 + 4 * num_documents) // ids.itemsize
    assert np.frombuffer(index, np.int64, -1, 34 + 12 * num_documents).tolist() == list(range(num_ends))
    for start, length in zip(starts, lengths, strict=True):
        yield tuple(ids[start : start + length].tolist())
    assert sum(lengths) == len(ids)


@pytest.mark.parametrize("name", ["tokenizer.json", pytest.param("gpt2", marks=full_only), "o200k_base"])
def test_the_work_of_megatron_makes_the_documents_of_a_build(name: str, tmp_path: Path) -> None:
    from build_tools import write_ranks

    if name == "tokenizer.json":
        vocabulary = _trained_tokenizer(tmp_path / name)
        tokenizer = {"kind": "huggingface", "path": str(vocabulary), "eot": "<|endoftext|>"}
    elif "TIKTOKEN_CACHE_DIR" in os.environ:
        vocabulary, tokenizer = write_ranks(name, tmp_path), {"kind": "tiktoken", "name": name}
    else:
        pytest.skip("needs the vocabulary: set TIKTOKEN_CACHE_DIR to a folder that contains it")
    lines = {line for line in Path(__file__).read_text().splitlines(True) if "<|" not in line}
    texts = [*lines, "é😀\u2028中文\x00", " \t\n\n", 'a"b\\n', "  \r\n" * 50]
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "in.jsonl")}], tokenizer=tokenizer)
    program = [sys.executable, str(_FOLDER / "peers/megatron_build.py"), str(vocabulary), "<|endoftext|>", "2"]
    subprocess.run([*program, str(tmp_path), str(write_jsonl(tmp_path / "in.jsonl", texts))], check=True)
    documents = list(_megatron_documents(tmp_path, np.int32 if name == "o200k_base" else np.uint16))
    (eot_id,) = {document[-1] for document in documents}
    built = stored_documents(spec, build(spec).version)
    assert Counter(documents) == Counter((*document["ids"].tolist(), eot_id) for document in built)
    assert len(documents) == len(texts)


def test_a_tool_with_other_tokens_is_refused() -> None:
    from build import run_rounds
    from build_tools import Bench, Run, Tools

    tools: Tools = {"bare": lambda _: Run(1, 1, 1000), "hf": lambda _: Run(1, 1, 1001)}
    with pytest.raises(SystemExit, match="hf made 1,001 tokens, bare 1,000"):
        run_rounds(Bench.__new__(Bench), tools, 1)
