"""Measure how fast a build is, against processes that only read the same parquet and encode it.

    python benchmarks/build.py [--rounds 5] [--workers 2] [--json]

The text exists on every machine: the .py files of the interpreter's packages and standard library, 100 MB or more,
written to parquet. Rounds are interleaved (bare, build, build with the reference library, bare, ...), each with a fresh
process and a fresh store. Ratios are taken within a round, so they do not change when the speed of the machine drifts.
The tokenizer is gpt2 if its vocabulary is available (TIKTOKEN_CACHE_DIR), otherwise byte. Its fast encoder is proven
before the first round, if it was not on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from watched import run_watched

MB = 1e6
NUM_FILES = 8
LARGE_DOCUMENT_BYTES = 32_000_000

_BARE = """
import multiprocessing, sys
import numpy, pyarrow.parquet

def encode(files, kind):
    if kind == "tiktoken":
        import tiktoken
        encoding = tiktoken.get_encoding("gpt2")
    tokens = 0
    for path in files:
        file = pyarrow.parquet.ParquetFile(path)
        for group in range(file.metadata.num_row_groups):
            texts = file.read_row_group(group, columns=["text"], use_threads=False).column(0).to_pylist()
            chunk, size = [], 0
            for text in [*texts, None]:
                if text is not None:
                    chunk.append(text)
                    size += len(text)
                if chunk and (text is None or size >= 250_000):
                    joined = "<|endoftext|>".join(chunk) + "<|endoftext|>"
                    if kind == "tiktoken":
                        allowed = {"<|endoftext|>"}
                        ids = encoding.encode_to_numpy(joined, allowed_special=allowed, disallowed_special=())
                        ids = ids.astype(numpy.uint16)
                    else:
                        ids = numpy.frombuffer(joined.encode(), numpy.uint8)
                    tokens += len(ids)
                    chunk, size = [], 0
    return tokens

if __name__ == "__main__":
    kind, workers, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        print(sum(pool.starmap(encode, [([path], kind) for path in files], chunksize=1)))
"""


def python_sources() -> list[str]:
    """Return the text of every .py file of the installed packages and the standard library, sorted by path."""
    roots = [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))]
    paths = {path for root in roots for path in root.rglob("*.py") if path.is_file()}
    if roots[1] not in roots[0].parents:  # in a virtual environment: leave out the packages outside it
        paths = {path for path in paths if roots[0] in path.parents or "site-packages" not in path.parts}
    texts = []
    for path in sorted(paths):
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
    return [text for text in texts if text]


def write_corpus(folder: Path, texts: list[str]) -> list[Path]:
    """Write the texts as NUM_FILES parquet files with row groups of a few MB."""
    folder.mkdir()
    size = -(-len(texts) // NUM_FILES)
    paths = []
    for i in range(NUM_FILES):
        table = pa.table({"text": pa.array(texts[i * size : (i + 1) * size], pa.large_string())})
        paths.append(folder / f"part-{i}.parquet")
        pq.write_table(table, paths[-1], row_group_size=500, compression="zstd")
    return paths


def measured(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a command; return wall and CPU seconds, and the largest resident memory of one of its processes in MB."""
    peaks: dict[int, int] = {}
    wall, cpu = run_watched(command, environment, lambda process: peaks.update(peak_kb_of_tree(process)), 0.02)
    return {"wall": wall, "cpu": cpu, "peak_mb": max(peaks.values(), default=0) / 1024}


def peak_kb_of_tree(root: int) -> dict[int, int]:
    """Return {process id: largest resident memory so far in KiB} of a process and its children (Linux).

    rusage is no alternative: a command inherits its maximum from the process that starts it.
    """
    peaks: dict[int, int] = {}
    try:
        processes = [root]
        for path in Path(f"/proc/{root}/task").glob("*/children"):  # each thread has its own
            processes += map(int, path.read_text().split())
        for process in processes:
            status = Path(f"/proc/{process}/status").read_text()
            peaks.update((process, int(line.split()[1])) for line in status.splitlines() if line.startswith("VmHWM"))
    except OSError:  # a process or thread has just ended
        pass
    return peaks


class Bench:
    """A corpus on disk and the commands that are timed on it."""

    def __init__(self, folder: Path, texts: list[str], tokenizer: str, num_workers: int) -> None:
        self.folder = folder
        self.num_workers = num_workers
        self.tokenizer = tokenizer
        self.paths = write_corpus(folder / "corpus", texts)
        self.text_bytes = sum(len(text.encode()) for text in texts)
        self.environment = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "DO_NOT_TRACK": "1"}
        self.bare_script = folder / "bare.py"
        self.bare_script.write_text(_BARE)
        self.spec = folder / "spec.yaml"
        name = "{kind: tiktoken, name: gpt2, backend: auto}" if tokenizer == "gpt2" else "{kind: byte}"
        self.spec.write_text(
            f"dataset: bench\nstore: {folder}/store\nsources: [{{kind: parquet, path: {folder}/corpus/*.parquet}}]\n"
            f"tokenizer: {name}\nshard_tokens: 20000000\n"
        )

    def bare(self) -> dict[str, float]:
        """Read and encode only, in as many spawned processes as the build has workers."""
        kind = "tiktoken" if self.tokenizer == "gpt2" else "byte"
        arguments = [kind, str(self.num_workers), *map(str, self.paths)]
        return measured([sys.executable, str(self.bare_script), *arguments], self.environment)

    def prove_encoder(self) -> None:
        """Compare the fast encoder with the reference library, unless that was done on this machine."""
        measured([sys.executable, "-m", "tokenloom", "tokenizer", str(self.spec), "--json"], self.environment)

    def build(self, *options: str) -> dict[str, Any]:
        """Run a whole build into a new store; also return the seconds of each step and the tokens written."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        command = [sys.executable, "-m", "tokenloom", "build", str(self.spec), "--workers", str(self.num_workers)]
        result: dict[str, Any] = measured([*command, *options], self.environment)
        (version,) = (self.folder / "store/bench/versions").iterdir()
        result["steps"] = json.loads((version / "build.json").read_text())["seconds"]
        splits = json.loads((version / "manifest.json").read_text())["splits"].values()
        result["tokens"] = sum(split["tokens"] for split in splits)
        return result


def run_rounds(bench: Bench, rounds: int) -> dict[str, Any]:
    """Time bare and build alternately, then one build through Prefect; return the figures to print."""
    bench.prove_encoder()
    bench.bare()
    bench.build("--direct")  # one run of each warms the caches of files and imports
    reference = ["--set", "tokenizer.backend=reference"] if bench.tokenizer != "byte" else []
    runs = [(bench.bare(), bench.build("--direct"), bench.build("--direct", *reference)) for _ in range(rounds)]
    walls = [build["wall"] for _, build, _ in runs]
    median = runs[walls.index(statistics.median_high(walls))][1]
    with_prefect = bench.build()
    return {
        "tokenizer": bench.tokenizer,
        "text_mb": bench.text_bytes / MB,
        "workers": bench.num_workers,
        "mb_per_second": bench.text_bytes / MB / median["wall"],
        "mtokens_per_second": median["tokens"] / 1e6 / median["wall"],
        "bare_mb_per_second": bench.text_bytes / MB / statistics.median(bare["wall"] for bare, _, _ in runs),
        "ratio_to_bare": _spread([bare["wall"] / build["wall"] for bare, build, _ in runs]),
        "reference_ratio_to_bare": _spread([bare["wall"] / build["wall"] for bare, _, build in runs]),
        "peak_mb_of_a_process": max(build["peak_mb"] for _, build, _ in runs),
        "steps": {step: seconds / median["wall"] for step, seconds in median["steps"].items()},
        "prefect_adds_seconds": with_prefect["wall"] - median["wall"],
    }


def _spread(ratios: list[float]) -> dict[str, float]:
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def large_documents(folder: Path, texts: list[str], tokenizer: str) -> float:
    """Return the peak memory in MB of one process of a build with documents of 32 MB."""
    joined = "\n".join(texts)
    documents = [joined[i : i + LARGE_DOCUMENT_BYTES] for i in range(0, len(joined), LARGE_DOCUMENT_BYTES)]
    folder.mkdir()
    return float(Bench(folder, documents, tokenizer, 2).build("--direct")["peak_mb"])


def show(figures: dict[str, Any]) -> None:
    """Print the figures as text."""
    print(f"{figures['text_mb']:.0f} MB of Python sources, {figures['tokenizer']}, {figures['workers']} workers")
    print(f"build          {figures['mb_per_second']:.1f} MB/s   {figures['mtokens_per_second']:.2f} M tokens/s")
    print(f"read + encode  {figures['bare_mb_per_second']:.1f} MB/s")
    for name, key in (("ratio", "ratio_to_bare"), ("  reference", "reference_ratio_to_bare")):
        ratio = figures[key]
        print(f"{name:14} {ratio['median']:.3f}   ({ratio['least']:.3f} to {ratio['most']:.3f})")
    print(f"peak memory    {figures['peak_mb_of_a_process']:.0f} MB per process")
    print(f"               {figures['peak_mb_large_documents']:.0f} MB with documents of 32 MB")
    print("steps          " + ", ".join(f"{step} {share:.1%}" for step, share in figures["steps"].items()))
    print(f"Prefect adds   {figures['prefect_adds_seconds']:.1f} s, including the start of a temporary server")


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure how fast a build is.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    texts = python_sources()
    tokenizer = "gpt2" if os.environ.get("TIKTOKEN_CACHE_DIR") else "byte"
    with tempfile.TemporaryDirectory() as name:
        figures = run_rounds(Bench(Path(name), texts, tokenizer, arguments.workers), arguments.rounds)
        figures["peak_mb_large_documents"] = large_documents(Path(name) / "large", texts, tokenizer)
    print(json.dumps(figures)) if arguments.json else show(figures)


if __name__ == "__main__":
    main()
