"""`tokenloom demo` and `init`: a dataset and a model from Python's own sources, and a spec for files of one's own."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from tokenloom.cli.arguments import Argument, Direct, Prefect, Workers, positive
from tokenloom.cli.commands.build import print_build, run_build
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Json, Output, Result
from tokenloom.errors import SpecError
from tokenloom.spec.syntax import escaped
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tasks.running import progress
from tokenloom.wording import counted, printable_line

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
_SPEC_ENDS = (".yaml", ".yml")
_COMMENT_COLUMN = 36
_CHAT = "chat: {template: chatml}                                  # or llama3, ...; tokenizer: the one of a model"


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
    result = run_build(load_spec(path / "demo.yaml").with_workers(workers), direct, prefect)
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


def starter_spec() -> str:
    """Read the spec that shows every kind of source, and all keys with their default values."""
    return resources.files("tokenloom.cli.commands").joinpath("starter.yaml").read_text(encoding="utf-8")


def init(files: Annotated[Sequence[str], Argument("FILES")], *, out: Output) -> Result:
    """Write a commented spec that reads given files.

    It looks at names and first rows: kind, text, conversations and their layout, id. Without files, it writes a starter
    spec.

    Args:
        files: files, folders and patterns to read; a name that ends in .yaml is the spec to write, which must not exist
            (default: tokenloom.yaml)

    Example:
        init data/*.parquet news.yaml
    """
    *others, path = [name for name in files if name.endswith(_SPEC_ENDS)] or ["tokenloom.yaml"]
    if others:
        raise SpecError(f"{others[0]} and {path}: two specs to write; name one")
    if Path(path).exists():
        raise SpecError(f"{path}: the file exists; choose another name")
    inputs = [name for name in files if name != path]
    text, sources = _spec_of(inputs, path, out) if inputs else (starter_spec(), [])
    with Path(path).open("x", encoding="utf-8") as file:
        file.write(text)
    first = "" if inputs else "set its sources, then "
    out.line(f"wrote {path}: {first}run `tokenloom plan {quote(path)}` and `tokenloom build {quote(path)}`")
    return Result({"path": path, "sources": sources})


def _spec_of(inputs: list[str], path: str, out: Output) -> tuple[str, list[dict[str, Any]]]:
    """Write a spec that reads some files; return it and its sources."""
    from tokenloom.tasks.proposal import propose

    proposals, notes = propose(inputs)
    sources = [one.source | {"path": _relative(one.source["path"], Path(path).absolute().parent)} for one in proposals]
    lines = []
    for one, source in zip(proposals, sources, strict=True):
        lines.append(f"  - {_yaml(source)}" + (f"  # {printable_line(one.note)}" if one.note else ""))
        out.line(f"{source['kind']} {source['path']}: {one.files}{_described(source)}{one.note and f' ({one.note})'}")
    for note in notes:
        out.line(note)
    comments = [f"  # {printable_line(note)}" for note in notes]
    before, _, rest = starter_spec().partition("sources:")
    text = "\n".join([f"{_named(before, inputs, path)}sources:", *lines, *comments, rest[rest.index("\ntokenizer:") :]])
    if any("messages" in source for source in sources):
        text = re.sub("(?m)^# chat: .*$", _CHAT, text)
    return text, sources


def _named(before: str, inputs: list[str], path: str) -> str:
    """Name the dataset in the start of a spec: that of the spec, or of the first file or folder."""
    named = Path(path).stem if Path(path).name != "tokenloom.yaml" else Path(inputs[0].split("*")[0]).absolute().name
    name = re.sub("[^a-z0-9._-]+", "-", named.split(".")[0].lower()).lstrip("0123456789._-")[:64].rstrip("-")
    return re.sub("dataset: news *", f"dataset: {name or 'data'}".ljust(_COMMENT_COLUMN - 1) + " ", before)


def _relative(path: str, folder: Path) -> str:
    """Make a path relative to the folder of the spec, if it is in it."""
    start = f"{escaped(str(folder))}/"
    return path.removeprefix(start) if "://" not in path else path


def _yaml(source: dict[str, Any]) -> str:
    import yaml

    options = {"kind": source["kind"], "path": source["path"]} | source
    return yaml.safe_dump(options, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9).strip()


def _described(source: dict[str, Any]) -> str:
    """Describe the columns that a source reads: ", text body, id url"."""
    return "".join(
        f", {key} {source[key]!r}" for key in ("text", "messages", "layout", "id", "separator") if key in source
    )
