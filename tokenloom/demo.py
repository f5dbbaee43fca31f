"""The demo: from the sources of the running interpreter's standard library to a trained model."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenloom.errors import TokenloomError
from tokenloom.spec_file import load_spec

_SPEC = """\
# Written by `tokenloom demo`: the Python sources of the standard library, as bytes.
dataset: stdlib
store: ./store
sources:
  - {kind: jsonl, path: stdlib.jsonl, text: text, name: stdlib}
tokenizer: {kind: byte}
documents: {min_chars: 5121}  # so that each gives a chunk of 5,120 tokens and their labels
splits: {train: 0.8, validation: 0.1, test: 0.1}
"""


def run_demo(
    folder: Path, updates: int, build: Callable[[Any], dict[str, Any]], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Write a spec, build it, read it back, train on it; return what happened.

    Args:
        folder: where the spec, the text and the store go.
        updates: training steps.
        build: builds a spec and returns its result.
        tell: prints a line for the reader.

    Raises:
        TokenloomError: torch is not installed, or the build failed.
    """
    try:
        from tokenloom.examples.train_small import train
    except ModuleNotFoundError as error:
        raise TokenloomError(
            f"the demo trains with torch, and {error.name!r} is not installed: pip install torch"
        ) from error
    from tokenloom import TokenDataset

    folder.mkdir(parents=True, exist_ok=True)
    num_files = _write_sources(folder / "stdlib.jsonl")
    (folder / "demo.yaml").write_text(_SPEC, encoding="utf-8")
    tell(f"1. {num_files} Python files of the standard library -> {folder}/stdlib.jsonl")
    result = build(load_spec(folder / "demo.yaml"))
    tell(f"2. built {result['reference']}")
    for name, counts in result["splits"].items():
        tell(f"     {name:<11}{counts['tokens']:>12,} tokens {counts['documents']:>7,} documents")
    reference = f"{folder}/store/stdlib"
    data = TokenDataset(reference, split="validation", seq_len=5120, packing="document")
    sample = data.decode(data[0]["input_ids"])
    tell(f"3. {data!r}\n   the first sample, decoded:\n")
    tell("\n".join("     | " + line for line in sample.splitlines()[:8]))
    tell(f"\n4. training a small model, {updates:,} updates of 8 x 512 bytes, 10 a batch (loss in nats a byte)")
    losses = train(reference, updates=updates, tell=lambda text: tell("     " + text))
    tell(f"\nspec       {folder}/demo.yaml\ndataset    {reference}\nlook in    tokenloom inspect {reference}")
    tell(f"           tokenloom peek {reference}")
    tell(f"again      tokenloom build {folder}/demo.yaml    (the same bytes: nothing to do)")
    return result | {"sample": sample, "losses": losses, "spec": str(folder / "demo.yaml")}


def _write_sources(path: Path) -> int:
    """Write the library's files as JSON lines, sorted by path, and return their number."""
    lines = [json.dumps({"path": name, "text": text}) + "\n" for name, text in _sources()]
    data = "".join(lines)
    if not path.exists() or path.read_text(encoding="utf-8") != data:
        path.write_text(data, encoding="utf-8")
    return len(lines)


def _sources() -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the standard library's files; test data that is no UTF-8 on purpose is left out."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if "site-packages/" in name or "dist-packages/" in name or name.startswith("test/"):
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
