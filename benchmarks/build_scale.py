"""Measure whether the time per token and the memory of a build grow with its input.

    python benchmarks/build_scale.py [--gigabytes 1 10] [--tokenizer byte] [--workers 2] [--folder FOLDER] [--json FILE]
        [--keep-cache]

One `tokenloom build --direct` of each size, the smallest first, into a new store. The text is that of build.py, over
and over; each copy of a document begins with the number of its turn, so that no two are equal. With the byte tokenizer,
the folder needs about five times the largest size. Times are those of the disk as much as of the processor.

The page cache is full before each build, as it is on a machine that has run for a while; --keep-cache leaves it as it
is, and --folder in a tmpfs needs that. The host of a virtual machine may reclaim its free memory. Each new page then
waits for the host, so a build that fills an empty cache measures the host (docs/project/decisions.md).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from build_tools import Vocabulary
from corpus import distinct_documents, write_numbered_copies
from figures import Figure, print_table, write_json
from watched import run_measured

GB = 1e9


def fill_page_cache(file: Path) -> None:
    """Fill the page cache: read a sparse file as large as the machine's memory, which takes no space on the disk."""
    with file.open("w+b", buffering=0) as sparse:
        sparse.truncate(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        while sparse.read(4 << 20):
            pass


def measure(folder: Path, texts: list[str], gigabytes: float, arguments: argparse.Namespace) -> Iterator[Figure]:
    """Build one size; yield its time per million tokens, its rate, its steps, and its memory."""
    write_numbered_copies(folder / "corpus", texts, gigabytes * GB)
    spec = folder / "spec.yaml"
    definition = {
        "dataset": "scale",
        "store": f"{folder}/store",
        "sources": [{"kind": "parquet", "path": f"{folder}/corpus/*.parquet"}],
        "tokenizer": Vocabulary(arguments.tokenizer, "<|endoftext|>").definition(),
    }
    spec.write_text(json.dumps(definition))
    os.sync()  # the corpus is not written during the build
    if not arguments.keep_cache:
        fill_page_cache(folder.parent / "page-cache")
    command = [sys.executable, "-m", "tokenloom", "build", str(spec), "--direct", "--workers", str(arguments.workers)]
    wall, peak_mib = run_measured(command, dict(os.environ))
    (version,) = (folder / "store/scale/versions").iterdir()
    splits = json.loads((version / "manifest.json").read_text())["splits"].values()
    num_tokens = sum(split["tokens"] for split in splits)
    name = f"{gigabytes:g} GB"
    yield Figure(f"{name}: per million tokens", "ms", [wall / num_tokens * 1e9])
    yield Figure(f"{name}: rate", "MB/s", [gigabytes * GB / wall / 1e6])
    yield Figure(f"{name}: memory of the largest process", "MiB", [peak_mib])
    for step, seconds in json.loads((version / "build.json").read_text())["seconds"].items():
        yield Figure(f"{name}: step {step}", "s", [seconds])


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 10.0], help="sizes (default: 1 10)")
    parser.add_argument("--tokenizer", default="byte", help="byte, or a name of tiktoken (default: byte)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--keep-cache", action="store_true", help="leave the page cache as it is")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    sizes = sorted(arguments.gigabytes)
    texts = distinct_documents(min(sizes[0], 0.3) * GB)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="scale-", dir=arguments.folder) as root:
        for gigabytes in sizes:
            folder = Path(root, f"{gigabytes:g}")
            figures += measure(folder, texts, gigabytes, arguments)
            shutil.rmtree(folder)
    times, memory = ([each.values[0] for each in figures if name in each.name] for name in ("per million", "memory"))
    figures.append(Figure("time per token: largest / smallest", "", [times[-1] / times[0]], "<= 1.15"))
    figures.append(Figure("memory: largest / smallest", "", [memory[-1] / memory[0]]))
    print_table(figures)
    if arguments.json:
        conditions = {name: getattr(arguments, name) for name in ("tokenizer", "workers", "keep_cache")}
        write_json(arguments.json, figures, **conditions)


if __name__ == "__main__":
    main()
