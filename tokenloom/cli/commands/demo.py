"""`tokenloom demo`: build a dataset from Python's standard library, and train a small model on it."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from tokenloom.cli.arguments import Argument, Direct, Prefect, Workers, positive
from tokenloom.cli.commands.build import print_build, run_build
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Json, Output, Result
from tokenloom.errors import SpecError
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tasks.running import progress
from tokenloom.wording import counted

_SEQ_LEN, _BATCH_SIZE = 5120, 8
_MIN_CHARS = _SEQ_LEN + 1
_SPEC = f"""\
# Written by `tokenloom demo`: the Python sources of the standard library, as bytes.
dataset: stdlib
store: ./store
sources:
  - {{kind: jsonl, path: stdlib.jsonl, text: text, name: stdlib}}
tokenizer: {{kind: byte}}
documents: {{min_chars: {_MIN_CHARS}}}  # enough for one chunk of 5,120 tokens and their labels
splits: {{train: 0.8, validation: 0.1, test: 0.1}}
"""


def demo(
    *,
    folder: Annotated[str, Argument("DIR", option="--dir")] = "tokenloom-demo",
    updates: Annotated[int, Argument("N", positive)] = 3000,
    workers: Workers = None,
    direct: Direct = False,
    prefect: Prefect = False,
    out: Output,
) -> Result:
    """Build a dataset from Python's own sources and train a model on it.

    Its folder then has a spec, the text and a store to look at.

    Args:
        folder: folder for the spec, the text and the store
        updates: training steps

    Example:
        demo --updates 300

    Exit code 3:
        A check of the spec failed, or documents that were encoded again have other ids.
    """
    if "://" in folder:
        raise SpecError("--dir: the demo writes to a local folder, not to a URL")
    path = Path(folder)
    from tokenloom import TokenDataset
    from tokenloom.examples import train_small  # noqa: F401  (without torch, the demo ends before it builds)
    from tokenloom.spec.loading import load_spec

    path.mkdir(parents=True, exist_ok=True)
    with showing_progress():
        num_files, num_left_out = _write_sources(path / "stdlib.jsonl")
    (path / "demo.yaml").write_text(_SPEC, encoding="utf-8")
    left_out = f"; {counted(num_left_out, 'file')} left out: not UTF-8" if num_left_out else ""
    out.line(f"1. {num_files:,} Python files of the standard library -> {path}/stdlib.jsonl{left_out}")
    out.line(f"2. tokenloom build {path}/demo.yaml")
    result = run_build(load_spec(path / "demo.yaml"), workers, direct, prefect)
    print_build(out, result)
    reference = f"{path}/store/stdlib"
    data = TokenDataset(reference, split="validation", seq_len=_SEQ_LEN, packing="document")
    sample = data.decode(data[0]["input_ids"])
    out.lines(f"3. {data!r}\n   the first sample, decoded:\n")
    out.lines("\n".join("     | " + line for line in sample.splitlines()[:8]))
    losses = _train(reference, updates, out)
    out.lines(f"\nspec       {path}/demo.yaml\ndataset    {reference}\ninspect    tokenloom inspect {reference}")
    out.line(f"           tokenloom peek {reference}")
    out.line(f"rebuild    tokenloom build {path}/demo.yaml    (the same bytes: nothing to do)")
    return Result(result | {"sample": sample, "losses": losses, "spec": str(path / "demo.yaml")})


def _train(reference: str, updates: int, out: Output) -> Json:
    from tokenloom.examples.data_options import DataOptions
    from tokenloom.examples.train_small import train

    steps = f"{counted(updates, 'update')} of 8 x 512 bytes, 10 per batch"
    out.lines(f"\n4. training a small model: {steps} (loss in nats per byte)")
    with showing_progress():
        return train(
            reference,
            updates=updates,
            print_line=lambda text: out.line("     " + text),
            options=DataOptions(_SEQ_LEN, "document", _BATCH_SIZE, evaluation_batches=None),
            track=_tracked,
        )


def _tracked(numbers: range) -> Iterator[int]:
    """Yield the numbers of batches, and report each batch as it is done."""
    progress.report(progress.StepStarted("train", len(numbers)))
    for number in numbers:
        yield number
        progress.report(progress.Advanced(num_tokens=_BATCH_SIZE * _SEQ_LEN, done=1))


def _write_sources(path: Path) -> tuple[int, int]:
    """Write the library's files as JSON lines, sorted by path; return how many were written and how many left out."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [file.relative_to(root).as_posix() for file in sorted(root.rglob("*.py"))]
    names = [name for name in found if "-packages/" not in name and not name.startswith("test/")]
    progress.report(progress.StepStarted("write", len(names)))
    lines = []
    for name in names:
        try:  # some test data is deliberately not UTF-8
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = None
        if text is not None:
            lines.append(json.dumps({"path": name, "text": text}) + "\n")
        progress.report(progress.Advanced(num_documents=1, num_bytes=len(text or ""), done=1))
    data = "".join(lines)
    if not path.exists() or read_regular(path) != data.encode():
        path.write_text(data, encoding="utf-8")
    return len(lines), len(names) - len(lines)
