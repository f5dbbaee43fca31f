"""Measure what marks cost: a first build, and builds after it with marks, another threshold, and repeats.

    python benchmarks/marks.py [--megabytes 320] [--tokenizer gpt2] [--workers 2] [--rounds 3] [--output FILE.json]
        [--folder FOLDER] [--no-repeats]

The text is that of build.py; more than 1 GB is 300 MB of it over and over, each copy with its number. Three columns of
made marks stand beside it. Each round has a store of its own, and a first build with the reference library. Ratios are
within a round: to that build, to a first build with the fast encoder, and to the shuffle and the ends of it (all but
reading and encoding). Shards are deleted once they are measured: with gpt2 and without repeats, the folder needs twice
the size of the text.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corpus import distinct_documents, write_corpus, write_numbered_copies
from figures import Figure, print_table, write_json
from tokenloom.flows.direct import build_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building.publish import BuildResult

FIRST, REFERENCE = "first build, fast encoder", "first build, reference"
MARKS, THRESHOLD, REPEATS = "with marks", "another threshold", "repeats"


def write_marks(folder: Path, files: list[Path]) -> None:
    """Write a file of three marks for each file of texts."""
    folder.mkdir()
    rng = random.Random(0)
    for path in files:
        rows = range(pq.read_metadata(path).num_rows)
        marks = {
            "quality": [rng.randrange(6) for _ in rows],
            "score": [rng.random() for _ in rows],
            "contaminated": [rng.random() < 0.1 for _ in rows],
        }
        pq.write_table(pa.table(marks), folder / path.name)


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Build once in each way; return seconds, and those of steps of the first build, by name."""
    marks = [{"path": str(folder / "marks/*.parquet"), "key": "row"}]
    keep = {"marks": marks, "keep": "quality >= 2 and not contaminated"}
    found: dict[str, float] = {}

    def build(name: str, store: str, documents: dict[str, Any], **fields: Any) -> BuildResult:
        spec = {
            "dataset": "d",
            "store": str(folder / store),
            "sources": [{"kind": "parquet", "path": str(folder / "in/*.parquet")}],
            "tokenizer": {"kind": "tiktoken", "name": arguments.tokenizer} | fields,
            "documents": documents,
            "report": False,
        }
        os.sync()  # nothing else is written during the build
        begin = time.perf_counter()
        result = build_directly(BuildSpec.model_validate(spec), arguments.workers)
        found[name] = time.perf_counter() - begin
        for shard in (folder / store / "d/versions").rglob("*.tok"):  # nothing reads it any more
            shard.unlink()
        return result

    build(REFERENCE, "reference", {}, backend="reference")
    shutil.rmtree(folder / "reference")
    first = build(FIRST, "store", {})
    assert first.facts.build is not None
    found["all of it but encoding"] = found[FIRST] - first.facts.build.seconds["tokenize"]
    marked = build(MARKS, "store", keep)
    assert marked.facts.build is not None
    found["the pass over marks"] = marked.facts.build.seconds["mark"]
    threshold = build(THRESHOLD, "store", keep | {"keep": "quality >= 3 and score > 0.1"})
    if not arguments.no_repeats:
        build(REPEATS, "store", keep | {"repeat": {"by": "quality", "times": {"4": 2.5, "5": 7}}})
    assert marked.num_encoded == threshold.num_encoded == 0
    shutil.rmtree(folder / "store")
    return found


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what marks cost.")
    parser.add_argument("--megabytes", type=float, default=320)
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="a JSON file to write")
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--no-repeats", action="store_true", help="leave out the build with repeats")
    arguments = parser.parse_args()
    num_bytes = arguments.megabytes * 1e6
    with tempfile.TemporaryDirectory(prefix="marks-", dir=arguments.folder) as name:
        folder = Path(name)
        if num_bytes <= 1e9:
            files = write_corpus(folder / "in", distinct_documents(num_bytes))
        else:
            files = write_numbered_copies(folder / "in", distinct_documents(300e6), num_bytes)
        write_marks(folder / "marks", files)
        rounds = [measure(folder, arguments) for _ in range(arguments.rounds)]
    figures = [Figure(name, "s", [each[name] for each in rounds]) for name in rounds[0]]

    def ratio(name: str, part: str, whole: str, target: str) -> Figure:
        return Figure(name, "", [each[part] / each[whole] for each in rounds], target)

    figures += [
        ratio("threshold / reference", THRESHOLD, REFERENCE, "at most 0.25"),
        ratio("threshold / first but encoding", THRESHOLD, "all of it but encoding", "at most 1.1"),
        ratio("threshold / first", THRESHOLD, FIRST, ""),
        ratio("the pass / first", "the pass over marks", FIRST, "at most 0.05"),
    ]
    print_table(figures)
    if arguments.output:
        write_json(arguments.output, figures, tokenizer=arguments.tokenizer, megabytes=arguments.megabytes)


if __name__ == "__main__":
    main()
