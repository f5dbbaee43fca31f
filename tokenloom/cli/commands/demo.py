"""The demo: from the sources of the running interpreter's standard library to a trained model."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenloom.cli.display import showing_progress
from tokenloom.errors import SpecError, TokenloomError
from tokenloom.spec.spec_file import load_spec
from tokenloom.tasks.running import progress
from tokenloom.wording import counted

_MIN_CHARS = 5121
_SPEC = f"""\
# Written by `tokenloom demo`: the Python sources of the standard library, as bytes.
dataset: stdlib
store: ./store
sources:
  - {{kind: jsonl, path: stdlib.jsonl, text: text, name: stdlib}}
tokenizer: {{kind: byte}}
documents: {{min_chars: {_MIN_CHARS}}}  # so that each gives a chunk of 5,120 tokens and their labels
splits: {{train: 0.8, validation: 0.1, test: 0.1}}
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
        from tokenloom.examples.train_small import BATCH_SIZE, SEQ_LEN, train
    except ModuleNotFoundError as error:
        raise TokenloomError(
            f"the demo trains with torch, and {error.name!r} is not installed: pip install torch"
        ) from error
    from tokenloom import TokenDataset

    num_files = _write_folder(folder, tell)
    result = build(load_spec(folder / "demo.yaml"))
    _describe(result, num_files, tell)
    reference = f"{folder}/store/stdlib"
    data = TokenDataset(reference, split="validation", seq_len=SEQ_LEN, packing="document")
    sample = data.decode(data[0]["input_ids"])
    tell(f"3. {data!r}\n   the first sample, decoded:\n")
    tell("\n".join("     | " + line for line in sample.splitlines()[:8]))
    tell(
        f"\n4. training a small model, {counted(updates, 'update')} of 8 x 512 bytes, 10 a batch (loss in nats a byte)"
    )
    with showing_progress():
        losses = train(
            reference,
            updates=updates,
            tell=lambda text: tell("     " + text),
            track=lambda numbers: _tracked(numbers, BATCH_SIZE * SEQ_LEN),
        )
    tell(f"\nspec       {folder}/demo.yaml\ndataset    {reference}\nlook in    tokenloom inspect {reference}")
    tell(f"           tokenloom peek {reference}")
    tell(f"again      tokenloom build {folder}/demo.yaml    (the same bytes: nothing to do)")
    return result | {"sample": sample, "losses": losses, "spec": str(folder / "demo.yaml")}


def _write_folder(folder: Path, tell: Callable[[str], None]) -> int:
    """Write text and spec; return the number of files that the text holds."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise SpecError(f"--dir {folder}: a file is in the way; name a folder") from error
    with showing_progress():
        num_files, num_left_out = _write_sources(folder / "stdlib.jsonl")
    (folder / "demo.yaml").write_text(_SPEC, encoding="utf-8")
    tell(f"1. {num_files:,} Python files of the standard library -> {folder}/stdlib.jsonl")
    if num_left_out:
        tell(f"   {counted(num_left_out, 'file')} left out: not UTF-8")
    return num_files


def _describe(result: dict[str, Any], num_files: int, tell: Callable[[str], None]) -> None:
    """Print what was built of so many files, and what was left out."""
    tell(f"2. built {result['reference']}")
    if num_filtered := result["rows"]["filtered"]:
        tell(
            f"   {num_filtered:,} of {counted(num_files, 'file')} left out: "
            f"shorter than {_MIN_CHARS:,} characters (min_chars)"
        )
    if num_duplicates := result["rows"]["duplicates"]:
        tell(f"   {counted(num_duplicates, 'file')} left out: the same text as another")
    for name, counts in result["splits"].items():
        tell(f"     {name:<11}{counted(counts['tokens'], 'token'):>19} {counted(counts['documents'], 'document'):>17}")


def _tracked(numbers: range, num_tokens: int) -> Iterator[int]:
    """Pass on the numbers of batches of `num_tokens`, and report each that is done."""
    _begin("train", len(numbers))
    for number in numbers:
        yield number
        progress.report(progress.Advanced(0, 0, num_tokens, 1))


def _begin(step: str, total: int) -> None:
    progress.report(progress.WorkKnown(((step, 1.0),)))
    progress.report(progress.StepStarted(step, total))


def _write_sources(path: Path) -> tuple[int, int]:
    """Write the library's files as JSON lines, sorted by path; return their number, and that of those left out."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [name for file in sorted(root.rglob("*.py")) if _is_source(name := file.relative_to(root).as_posix())]
    _begin("write", len(names))
    lines = []
    for name in names:
        try:  # test data is not UTF-8 on purpose
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            text = None
        if text is not None:
            lines.append(json.dumps({"path": name, "text": text}) + "\n")
        progress.report(progress.Advanced(1, len(text or ""), 0, 1))
    data = "".join(lines)
    if not path.exists() or path.read_text(encoding="utf-8") != data:
        path.write_text(data, encoding="utf-8")
    return len(lines), len(names) - len(lines)


def _is_source(name: str) -> bool:
    return "site-packages/" not in name and "dist-packages/" not in name and not name.startswith("test/")
