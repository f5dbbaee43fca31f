"""Functions and files entered by the smallest build, and by TokenDataset, TokenLoader and three batches.

This is how much of the program a person must know for the common case: one parquet file, gpt2, the caller's process,
no Prefect, no report. tiktoken gives a made vocabulary under the name of gpt2's, so that no file is needed; the program
can't tell. From the project's root: python -m tests.measures.entered [--list]. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tiktoken import registry

from tests.builders.vocabularies import made_encoding
from tokenloom import TokenDataset, TokenLoader
from tokenloom.flows.direct import build_directly
from tokenloom.spec.loading import load_spec

__all__: list[str] = []

_ROOT = Path(__file__).resolve().parents[2]
_WITHIN = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>")  # parts of a function
_SPEC = """
dataset: news
store: ./store
sources: [{kind: parquet, path: data/*.parquet, text: text}]
tokenizer: {kind: tiktoken, name: gpt2}
report: false
"""


def entered_by(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the sorted (file, function) pairs of the program that `work` calls, in any thread."""
    calls, seen = set(), set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        if not code.co_filename.startswith(str(_ROOT)):
            return
        file = os.path.relpath(os.path.realpath(code.co_filename), _ROOT)
        if not file.startswith((".", "tests")) and not any(part in code.co_qualname for part in _WITHIN):
            calls.add((file, code.co_qualname))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(calls)


def _read(folder: Path) -> None:
    dataset = TokenDataset(str(folder / "store/news"), split="train", seq_len=128)
    loader = TokenLoader(dataset, batch_size=4, seed=0, prefetch=0, rank=0, world_size=1)
    for _ in range(3):
        next(loader)
    loader.close()


def main() -> None:
    """Print the counts; with --list, the names by file."""
    folder = Path(tempfile.mkdtemp())
    (folder / "data").mkdir()
    words = [" ".join(f"word{(i * 7 + j * 13) % 997}" for j in range(120)) for i in range(450)]
    texts = [f"Document {i}. {text}" for i, text in enumerate(words)]
    pq.write_table(pa.table({"text": texts}), folder / "data/a.parquet", row_group_size=100)

    registry.ENCODINGS["r50k_base"] = made_encoding("r50k_base")  # the name of gpt2's file
    (folder / "news.yaml").write_text(_SPEC)
    spec = load_spec(folder / "news.yaml")
    entered = {"build": entered_by(lambda: build_directly(spec, 0)), "read": entered_by(lambda: _read(folder))}
    print(json.dumps({n: {"functions": len(f), "files": len({file for file, _ in f})} for n, f in entered.items()}))
    if "--list" in sys.argv:
        for name, pairs in entered.items():
            for file in sorted({file for file, _ in pairs}):
                print(name, file, ", ".join(function for path, function in pairs if path == file))


if __name__ == "__main__":
    main()
