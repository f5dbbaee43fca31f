"""Measure how fast a build is, against processes that only read and encode, and against other tools.

    python benchmarks/build.py [--rounds 5] [--megabytes 320] [--text-bytes 200] [--tokenizer gpt2] [--json FILE]
        [--first] [--peer bare-gigatoken=PYTHON] [--peer megatron-fast=PYTHON] [--peer hf=PYTHON]
        [--peer hf-tiktoken=PYTHON] [--peer litdata=PYTHON] [--peer datatrove=PYTHON]

The text exists on every machine: the .py files of the interpreter's packages and standard library, 100 MB or more,
written to parquet. `bare` are processes that read the same parquet and encode it document by document, and do nothing
else (peers/bare_build.py). A peer is run by the interpreter of an environment in which it is installed; peers/ contains
what it runs: the work of Megatron's preprocess_data_fast.py (megatron-fast), `datasets` (hf), LitData and datatrove,
each as its documentation recommends, with as many processes, or threads. `bare-gigatoken` is `bare` with gigatoken, and
the table says how many times as long a build takes.

Rounds are interleaved (bare, build, build with the reference library, peers, bare, ...), each with fresh processes and
a fresh store. Times include the start of the processes. Ratios are taken within a round, so they do not change when
the speed of the machine drifts. All tools must write the same number of tokens. Before the first round the fast encoder
is proven, if it was not on this machine, and each tool runs once on a small corpus. `--first` adds to each round a
build in an empty home, with an empty TOKENLOOM_CACHE. Below the table stands what encoded each build.

`--tokenizer` is a name of tiktoken, `byte`, or the path of a tokenizer.json; the default is gpt2 if its vocabulary is
available (TIKTOKEN_CACHE_DIR), otherwise byte. `--tokenizer-json` names a file of the same vocabulary, for peers that
can't encode with tiktoken: datatrove, and `hf`, which encodes with tokenizers as `hf-tiktoken` does with tiktoken.
`--full` adds a build through Prefect, and one with documents of 32 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

from build_tools import BARE, BARE_GIGATOKEN, FIRST, OURS, PEERS, REFERENCE, Bench, Run, Tools, Vocabulary, chosen_tools
from corpus import distinct_documents
from figures import Figure, print_table, write_json

MB = 1e6
SMALL_BYTES = 1_000_000
LARGE_DOCUMENT_BYTES = 32_000_000
OUR_PACKAGES = ("tokenloom", "gigatoken", "tiktoken", "tokenizers")

Round = dict[str, Run]


def run_rounds(bench: Bench, tools: Tools, rounds: int) -> list[Round]:
    """Run every tool once a round; raises SystemExit if they do not write the same number of tokens."""
    done = []
    for _ in range(rounds):
        one: Round = {}
        for name, run in tools.items():
            one[name] = run(bench)
            if one[name].tokens != one[BARE].tokens:
                counts = f"{name} made {one[name].tokens:,} tokens, {BARE} {one[BARE].tokens:,}"
                raise SystemExit(f"{counts}: their times can't be compared; check that the vocabularies are the same")
        done.append(one)
        print(", ".join(f"{name} {run.wall:.1f} s" for name, run in one.items()), file=sys.stderr)
    return done


def figures_of(rounds: list[Round], text_bytes: int) -> Iterator[Figure]:
    """Yield the rate of each tool, the ratios to it within a round, its memory, and the steps of the build."""
    names = list(rounds[0])
    for name in names:
        yield Figure(name, "MB/s", [text_bytes / MB / one[name].wall for one in rounds])
    pairs = [(OURS, name) for name in names if name not in (OURS, BARE_GIGATOKEN)]
    for ours, other in [*pairs, *[(REFERENCE, BARE)] * (REFERENCE in names)]:
        yield Figure(f"{ours} / {other}", "", [one[other].wall / one[ours].wall for one in rounds])
    if BARE_GIGATOKEN in names:
        times = [one[OURS].wall / one[BARE_GIGATOKEN].wall for one in rounds]
        yield Figure(f"{OURS} takes so many times as long as {BARE_GIGATOKEN}", "", times, "<= 2.0")
    for name in names:
        yield Figure(f"memory of a process: {name}", "MiB", [one[name].peak_mib for one in rounds])
    for step in rounds[0][OURS].steps:
        yield Figure(f"step: {step}", "s", [one[OURS].steps[step] for one in rounds])


def encoders_of(rounds: list[Round]) -> dict[str, list[str]]:
    """Return what encoded each of our builds in each round: "gigatoken 0.10.0 in 8 partitions", or "the reference"."""
    return {
        name: [
            ", ".join(f"{encoder} in {n} partitions" for encoder, n in one[name].fast_partitions.items())
            or "the reference"
            for one in rounds
        ]
        for name in (OURS, FIRST)
        if name in rounds[0]
    }


def further_figures(bench: Bench, texts: list[str], rounds: list[Round]) -> Iterator[Figure]:
    """Yield the figures of --full, of one run each."""
    ours = statistics.median(one[OURS].wall for one in rounds)
    yield Figure("Prefect adds, with the start of its temporary server", "s", [bench.build("--prefect").wall - ours])
    joined = "\n".join(texts)
    documents = [joined[i : i + LARGE_DOCUMENT_BYTES] for i in range(0, len(joined), LARGE_DOCUMENT_BYTES)]
    large = Bench(bench.folder / "large", documents, bench.vocabulary, bench.num_workers).build("--direct")
    yield Figure("memory of a process with documents of 32 MB", "MiB", [large.peak_mib])


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Run the rounds in a folder, print the figures, and write them if that is asked for."""
    vocabulary = Vocabulary(arguments.tokenizer, arguments.eot, arguments.tokenizer_json)
    tools = chosen_tools(vocabulary, dict(arguments.peer), first=arguments.first)
    texts = distinct_documents(arguments.megabytes and arguments.megabytes * MB, arguments.text_bytes)
    small = Bench(folder / "small", first_texts(texts), vocabulary, arguments.workers)
    small.prove_encoder()
    run_rounds(small, tools, 1)  # warms the caches of files and imports, and finds what can't work before it takes long
    bench = Bench(folder / "bench", texts, vocabulary, arguments.workers)
    rounds = run_rounds(bench, tools, arguments.rounds)
    figures = list(figures_of(rounds, bench.text_bytes))
    if arguments.full:
        figures += further_figures(bench, texts, rounds)
    print(
        f"{bench.text_bytes / MB:.0f} MB in {len(texts):,} documents, {vocabulary.label}, {bench.num_workers} workers"
    )
    print_table(figures)
    for name, encoders in encoders_of(rounds).items():
        print(f"{name}: encoded by {'; '.join(dict.fromkeys(encoders))}")
    if arguments.json:
        details = details_of(bench, rounds)
        write_json(arguments.json, figures, **details, text_bytes=arguments.text_bytes, rounds=arguments.rounds)


def details_of(bench: Bench, rounds: list[Round]) -> dict[str, Any]:
    """Return what was measured, and the versions of the packages that took part."""
    versions = {name: run.versions for name, run in rounds[0].items() if run.versions}
    return {
        "benchmark": "build",
        "tokenizer": bench.vocabulary.label,
        "text_mb": bench.text_bytes / MB,
        "documents": bench.num_documents,
        "tokens": rounds[0][BARE].tokens,
        "workers": bench.num_workers,
        "encoders": encoders_of(rounds),
        "versions": versions | {OURS: {package: version(package) for package in OUR_PACKAGES}},
    }


def first_texts(texts: list[str]) -> list[str]:
    """Return the first texts with about SMALL_BYTES in all."""
    ends = accumulate(len(text) for text in texts)
    return [text for text, end in zip(texts, ends, strict=True) if end <= SMALL_BYTES] or texts[:1]


def peer_and_python(text: str) -> tuple[str, str]:
    """Parse NAME=PYTHON; raises ArgumentTypeError if the name is not a peer's or the file does not exist."""
    name, _, python = text.partition("=")
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PEERS)}")
    if not Path(python).is_file():
        raise argparse.ArgumentTypeError(f"{python!r} does not exist; give {name}=PYTHON, the interpreter's path")
    return name, python


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure how fast a build is.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=float, help="of text (default: all there is)")
    parser.add_argument("--text-bytes", type=int, help="the most bytes of a document (default: whole files)")
    default = "gpt2" if os.environ.get("TIKTOKEN_CACHE_DIR") else "byte"
    parser.add_argument("--tokenizer", default=default, help="a name of tiktoken, byte, or a tokenizer.json")
    parser.add_argument("--tokenizer-json", metavar="FILE", help="the same vocabulary, for peers without tiktoken")
    parser.add_argument("--eot", default="<|endoftext|>", help="the end-of-text token of a tokenizer.json")
    parser.add_argument("--peer", type=peer_and_python, action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--first", action="store_true", help="also a build in an empty home, in each round")
    parser.add_argument("--full", action="store_true", help="also Prefect, and large documents")
    parser.add_argument("--json", metavar="FILE", help="a file to write")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TOKENLOOM_BENCH_DIR")) as name:
        measure(parser.parse_args(), Path(name))


if __name__ == "__main__":
    main()
