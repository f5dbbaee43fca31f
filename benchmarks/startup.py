"""Measure how long the smallest commands and imports take, each as a whole process.

    python benchmarks/startup.py [--rounds 25] [--tokenizer byte] [--python INTERPRETER] [--json FILE]

The input is one parquet file of a few KB, so that nothing but starting, planning and ending takes time. Rounds are
interleaved. The ratio is taken within a round, so it does not change when the speed of the machine drifts. An editable
install is slower to import than a plain one: name the interpreter of a plain one with `--python`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from figures import Figure, print_table, write_json

HELP, BUILD, AGAIN, NUMPY, READER = "help", "build", "again", "numpy", "reader"


def write_spec(folder: Path, tokenizer: str) -> tuple[Path, Path]:
    """Write an input file and a spec; return the spec and the folder of the store, which does not exist yet."""
    spec, store = folder / "spec.yaml", folder / "store"
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(100)]}), folder / "texts.parquet")
    spec.write_text(
        f"dataset: bench\nstore: {store}\nsources: [{{kind: parquet, path: {folder}/texts.parquet}}]\n"
        f"tokenizer: {tokenizer}\n"
    )
    return spec, store


def seconds_of(command: Sequence[str], folder: Path) -> float:
    """Return the wall seconds of a command; modules are compiled to bytecode, as in an installation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    # In a folder without modules: `python -c` imports those of the current one first.
    done = subprocess.run(command, capture_output=True, env=environment, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: failed: {done.stderr.decode()}")
    return time.perf_counter() - begin


def measure(python: str, folder: Path, rounds: int, tokenizer: str) -> list[Figure]:
    """Run all commands in turn, after a round that warms the caches of files and imports; return the figures."""
    spec, store = write_spec(folder, tokenizer)
    build = [python, "-m", "tokenloom", "build", str(spec), "--direct"]
    commands = {
        HELP: [python, "-m", "tokenloom", "--help"],
        BUILD: build,
        AGAIN: build,
        NUMPY: [python, "-c", "import numpy"],
        READER: [python, "-c", "from tokenloom import TokenDataset"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        shutil.rmtree(store, ignore_errors=True)
        for name, command in commands.items():
            taken[name].append(seconds_of(command, folder))
    return figures_of({name: seconds[1:] for name, seconds in taken.items()})


def figures_of(taken: Mapping[str, list[float]]) -> list[Figure]:
    """Return the figures of the seconds in each round, by command."""
    ratios = [reader / numpy for reader, numpy in zip(taken[READER], taken[NUMPY], strict=True)]
    return [
        Figure("tokenloom --help", "s", taken[HELP]),
        Figure("tokenloom build --direct of one file", "s", taken[BUILD]),
        Figure("the same again, up to date", "s", taken[AGAIN], "<= 0.5"),
        Figure("import numpy", "s", taken[NUMPY]),
        Figure("from tokenloom import TokenDataset", "s", taken[READER]),
        Figure("ratio of the last two", "", ratios, "<= 1.3"),
    ]


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure how long the smallest commands and imports take.")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tokenizer", default="byte", help="byte, or a name of tiktoken (default: byte)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of an installation with [build]")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TOKENLOOM_BENCH_DIR")) as name:
        figures = measure(arguments.python, Path(name), arguments.rounds, arguments.tokenizer)
    print_table(figures, digits=3)
    if arguments.json:
        write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
