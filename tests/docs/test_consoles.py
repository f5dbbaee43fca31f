"""The consoles of pages print what the pages show, on a small store of made texts.

Numbers, ids, dates, paths and texts differ from those of the pages; all other words and the columns must be the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.docs.sessions import commands, run_here
from tests.docs.walk import blocks
from tokenloom import TokenDataset, TokenLoader
from tokenloom.cli.main import main

_SPEC = """
dataset: news
store: ./store
sources:
  - {kind: parquet, path: data/*.parquet, text: text, name: SOURCE}
tokenizer: byte
shard_tokens: 10_000
"""
_REQUEST = "A text that somebody wants to be removed. "  # it ends with a blank, as that of the page
_TEXT_OF_A_DOCUMENT = re.compile(r" {6}(?! *\d+ to )")
#: what differs, and what stands for it
_VARIABLE = [
    (re.compile(r"/home/\w+"), "HOME"),
    (re.compile(r"\b[0-9a-f]{16}(?:[0-9a-f]{16})?\b"), "ID"),
    (re.compile(r"\d+(?:[.,:-]\d+)*(?: [kMG]B| bytes)?"), "N"),
    (re.compile(r"train-N(?:-of-N)?\.parquet"), "FILE"),
    (re.compile(r"\s+"), " "),
]


def form(line: str) -> str:
    """Return a line with names for what differs between two stores."""
    for pattern, name in _VARIABLE:
        line = pattern.sub(name, line)
    return line.strip()


def check(session: str, replaced: Mapping[str, str] | None = None) -> list[str]:
    """Run the commands of a console; every line that the page shows must be printed. Return the lines.

    Args:
        session: the block.
        replaced: parts of its commands, and what stands for them here.
    """
    code, lines = 0, []
    for command, shown in commands(session):
        if command == "echo $?":
            assert [str(code)] == shown
            continue
        for part, other in (replaced or {}).items():
            command = command.replace(part, other)
        if command.startswith("tokenloom build") and "--direct" not in command:
            command += " --direct"
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code, printed = run_here(command)
        output = printed + errors.getvalue()
        for part, other in (replaced or {}).items():
            output = output.replace(other, part)
        lines = output.replace(str(Path.cwd()), "/home/you").splitlines()
        forms = {form(line) for line in lines}
        wanted = [line for line in shown if line not in ("...", "") and not _TEXT_OF_A_DOCUMENT.match(line)]
        assert not (missing := [line for line in wanted if form(line) not in forms]), (
            f"{command}: {missing}, not {lines}"
        )
    return lines


def console(page: str, index: int, folder: str = "guides") -> str:
    """Return a console block of a page, by its place among them."""
    return [text for language, text in blocks(f"docs/{folder}/{page}.md") if language == "console"][index]


def write_texts(name: str, texts: Iterable[str]) -> None:
    """Write a file of the source."""
    pq.write_table(pa.table({"text": list(texts)}), f"data/train-{name}.parquet")


def build(**changes: Any) -> str:
    """Build the dataset, and return its version."""
    options = [f"--set={name}={json.dumps(value)}" for name, value in changes.items()]
    assert main(["build", "news.yaml", "--direct", "--workers", "0", *options]) == 0
    version: str = TokenDataset("store/news", "train", 16).manifest["version"]
    return version


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with a spec and three files of 100 texts; one text is there twice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "ada")
    Path("data").mkdir()
    Path("news.yaml").write_text(_SPEC.replace("SOURCE", "agnews"))
    rng = np.random.default_rng(0)
    for index in range(3):
        texts = ["".join(map(chr, rng.integers(97, 123, rng.integers(40, 200)))) for _ in range(100)]
        texts[5] = _REQUEST if index == 1 else texts[5]
        write_texts(f"0000{index}-of-00003", [*texts[:99], texts[0]] if index == 2 else texts)


def test_inputs() -> None:
    Path("news.yaml").write_text(_SPEC.replace("SOURCE", "parquet-0"))
    check(console("inputs", 0))


def test_encoders(tiktoken_cache: Path) -> None:
    Path("spec.yaml").write_text(_SPEC.replace("SOURCE", "news").replace("byte", "gpt2"))
    check(console("tokenizers", 0))


def test_faults() -> None:
    Path("a.jsonl").write_text('{"text": "ab"}\n{"text": 7}\n')
    source = "{kind: jsonl, path: a.jsonl, text: text}"
    Path("lines.yaml").write_text(f"dataset: lines\nstore: ./store\nsources:\n  - {source}\ntokenizer: byte\n")
    check(console("faults", 0, "project"))


def test_report() -> None:
    version = build()
    check(console("report", 0), {"s3://bucket/store/news@6f6e75a47b3e9a29": f"store/news@{version}"})
    check(console("report", 1))


def test_exports(tmp_path: Path) -> None:
    build()
    check(console("exports", 0), {"/data/news-megatron": str(tmp_path / "out")})


def test_verify() -> None:
    version = Path("store/news/versions") / build()
    check(console("verify", 0))
    (version / "test/000000.docs").unlink()
    for name in ("train/000000.tok", "inputs.json"):
        damaged = bytearray((version / name).read_bytes())
        damaged[-2 if name == "inputs.json" else 4100] ^= 1  # 4100: in the tokens
        (version / name).write_bytes(damaged)
    (version / "README.txt").touch()
    check(console("verify", 1))


def test_versions() -> None:
    first = build(splits={"train": 0.98, "validation": 0.01, "test": 0.01})
    table = pq.read_table("data/train-00001-of-00003.parquet")["text"].to_pylist()
    write_texts("00001-of-00003", [*table[10:], *(f"{text} again" for text in table[:20])])
    second = build(splits={"train": 0.98, "validation": 0.01, "test": 0.01})
    ids = {"b82f0df7f9f0941b": first, "0aeeaac430d1ae05": second}
    check(console("versions", 0), ids)
    moved = build(splits={"train": 0.9, "validation": 0.1})
    check("$ tokenloom diff A B\n" + console("versions", 1), {"A": f"store/news@{second}", "B": f"store/news@{moved}"})
    listed = console("versions", 2).replace(" | head -1", "").replace('"test', '"train')
    check(listed, ids | {"store/news --list": f"store/news@{second} --list"})


def test_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "lena")
    (checks,) = (text for language, text in blocks("docs/guides/checks.md") if language == "yaml" and "5000" in text)
    with Path("news.yaml").open("a") as spec:
        spec.write(checks.replace("5000", "50").replace("max_length_drift: 0.1", "max_length_drift: 0.9"))
    build()
    hidden = {path: path.read_bytes() for path in Path("data").glob("*0[12]-of*")}
    for path in hidden:
        path.unlink()
    (failed,) = set(re.findall(r"news@(\w{16}): 1 of", "\n".join(_refused(console("checks", 0)))))
    check(console("checks", 1), {"ebfccf8d9eefe50a": failed})


def _refused(session: str) -> list[str]:
    """Check a console, and return what its first command prints when it runs again."""
    check(session)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert run_here("tokenloom build news.yaml --direct")[0] == 3
    return errors.getvalue().splitlines()


def test_trace() -> None:
    Path("news.yaml").write_text(_SPEC.replace("SOURCE", "ag_news"))
    build()
    check(console("trace", 0), {"--seq-len 256": "--seq-len 64"})
    data = TokenDataset("store/news", "train", 1024)
    Path("state.json").write_text(json.dumps(TokenLoader(data, 2, prefetch=0).state_dict()))
    Path("request.txt").write_text(f"{_REQUEST}\n")
    check(console("trace", 1))
    check(console("trace", 2), {"00002-of-00008": "00002-of-00003", "2330": "99"})


def test_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "mara")
    for index in range(4):
        write_texts("more", [f"text {index} of a version, {number}" for number in range(20)])
        build()
        if index == 1:
            assert main(["gc", "store/news", "--keep-last", "0", "--grace", "0"]) == 0
        if index == 2:
            leased = TokenDataset("store/news", "train", 16, lease=True)
    options = {"s3://corpora/store": "store", "--keep-last 3 --keep-days 30": "--keep-last 0 --grace 0 --keep-work 0"}
    lines = check(console("versions", 3), options)
    assert any("1 deleted, 1 retired, 2 kept" in line for line in lines)
    leased.lease.release()  # type: ignore[union-attr]
    assert main(["build", "news.yaml", "--direct", "--workers", "0", "--set=checks.min_documents=5000"]) == 3
    check(console("versions", 4))
