"""Measure whether the time per token, the memory and the descriptors of a build grow with its input.

    python benchmarks/build_scale.py [--tokens 1e8 1e9 1e10] [--shares 2] [--tokenizer gpt2] [--workers 2]
        [--folder FOLDER] [--json FILE] [--keep-cache]

Each size is built by `tokenloom build --direct`, into a new store. The largest is then built again by `--share I/N` in
turn until nothing is left, and published by a plain build; the first share is killed (SIGKILL) when half of its
partitions are encoded, and runs again. Its bytes must be those of the plain build. On this version and the second
largest, commands and a reader are timed. The bounds below were stated before they were measured.

The text is that of made_text.py, which takes no space. The folder needs 4.2 bytes for each token of the largest size.
Times are those of the disk as much as of the processor.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import made_text
from build_tools import Vocabulary
from figures import Figure, print_table, write_json
from watched import Used, run_used

MAX_GROWTH = 1.15  # time a token of the largest size, to that of any other
MAX_MB = {"largest process": 2_000, "flow process": 300}  # a worker holds documents of runner.memory, 2 GB
MAX_DESCRIPTORS = 1_024
MARIN = 0.77  # million tokens a second of processor time, marin-community/marin#7888
MAX_SECONDS = {"plan": 20, "verify": 60, "trace": 5, "where by content": 5, "where by row": 5, "diff": 30, "gc": 5}
MAX_FIRST_BATCH, MIN_RATE = 1.0, 20.0  # seconds; million tokens a second
BYTES_A_TOKEN = 4.2  # of a store: spills and shards have 2 each, and some for each document


def shown(num_tokens: float) -> str:
    """Return a number of tokens as it is named: "0.1 B"."""
    return f"{num_tokens / 1e9:.3g} B"


def fill_page_cache(file: Path) -> None:
    """Fill the page cache: read a sparse file as large as the machine's memory, which takes no space on the disk."""
    with file.open("w+b", buffering=0) as sparse:
        sparse.truncate(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        while sparse.read(4 << 20):
            pass


@dataclass
class Scale:
    """The commands of one size, in a store of its own.

    Attributes:
        uses: each build command with what it used, in order; the last publishes the version.
    """

    name: str
    folder: Path
    num_files: int
    arguments: argparse.Namespace
    uses: list[tuple[str, Used]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the spec."""
        self.text = self.folder.parent / "text"
        self.dataset = self.folder / "store/scale"
        self.folder.mkdir()
        definition = {
            "dataset": "scale",
            "store": f"{self.folder}/store",
            "sources": [made_text.source(self.text, self.num_files)],
            "tokenizer": Vocabulary(self.arguments.tokenizer, "<|endoftext|>").definition(),
        }
        (self.folder / "spec.yaml").write_text(json.dumps(definition))

    def run(self, *arguments: str, kill: Callable[[], bool] = lambda: False) -> Used:
        """Run a command of tokenloom."""
        command = [sys.executable, "-m", "tokenloom", *arguments, "--json"]
        used = run_used(command, made_text.environment(self.text), kill)
        print(f"{self.name}: {' '.join(arguments)}: {used.wall:.1f} s, exit code {used.exit_code}", file=sys.stderr)
        return used

    def build(self, *arguments: str, kill: Callable[[], bool] = lambda: False) -> Any:
        """Run a build command, and keep what it used; return its result, None if it was killed."""
        given = "--direct", "--workers", str(self.arguments.workers), *arguments
        used = self.run("build", f"{self.folder}/spec.yaml", *given, kill=kill)
        self.uses.append((" ".join(("build SPEC", *given)), used))
        return None if used.exit_code else json.loads(used.output)

    def prepare(self) -> None:
        """Make the page cache what it is on a machine that has run for a while."""
        os.sync()
        if not self.arguments.keep_cache:
            fill_page_cache(self.folder.parent / "page-cache")

    def encoded(self) -> dict[str, int]:
        """Return when each partition that is encoded was, by the name of its record."""
        return {path.name: path.stat().st_mtime_ns for path in self.dataset.glob("work/spills/*.json")}

    def build_in_shares(self) -> Iterator[Figure]:
        """Build in shares, of which the first is killed when half of its partitions are encoded."""
        count = self.arguments.shares
        half = self.num_files / count / 2
        self.build("--share", f"0/{count}", kill=lambda: len(self.encoded()) >= half)
        before = self.encoded()
        for index in cycle(range(count)):
            result = self.build("--share", f"{index}/{count}")
            if len(self.uses) == 2:
                again = sum(before[name] != changed for name, changed in self.encoded().items() if name in before)
                yield Figure(f"{self.name}: partitions encoded before the kill", "", [len(before)])
                yield Figure(f"{self.name}: of these, encoded again", "", [again], "0")
            if not result["left"]:
                break
        self.build()

    def total(self) -> Used:
        """Return what all build commands used together, and the most that one process of them held."""
        total = Used()
        for _, used in self.uses:
            total.wall, total.cpu = total.wall + used.wall, total.cpu + used.cpu
            total.moved = {name: total.moved.get(name, 0) + count for name, count in used.moved.items()}
            total.descriptors = max(total.descriptors, used.descriptors)
        return total

    def figures(self) -> Iterator[Figure]:
        """Yield what the build took."""
        result, total = json.loads(self.uses[-1][1].output), self.total()
        yield from (Figure(f"{self.name}: {name}", "", [result[name]]) for name in ("tokens", "documents", "shards"))
        yield Figure(f"{self.name}: partitions", "", [result["partitions"]])
        yield Figure(f"{self.name}: wall", "s", [total.wall])
        yield Figure(f"{self.name}: processor", "s", [total.cpu])
        if len(self.uses) == 1:  # the last of several has only its own
            (record,) = self.dataset.glob("versions/*/build.json")
            for step, seconds in json.loads(record.read_text())["seconds"].items():
                yield Figure(f"{self.name}: step {step}", "s", [seconds])
        for what, seconds in (("wall", total.wall), ("processor", total.cpu)):
            yield Figure(f"{self.name}: {what}, a token", "ns", [seconds / result["tokens"] * 1e9])
        rate = result["tokens"] / total.cpu / 1e6
        yield Figure(f"{self.name}: million tokens a second of processor time", "", [rate], f">= {MARIN}")
        largest = max(max(used.peaks.values()) for _, used in self.uses)
        flow = max(next(iter(used.peaks.values())) for _, used in self.uses)
        for what, num_bytes in (("largest process", largest), ("flow process", flow)):
            yield Figure(f"{self.name}: memory, {what}", "MB", [num_bytes / 1e6], f"<= {MAX_MB[what]:,}")
        yield Figure(f"{self.name}: descriptors of a process", "", [total.descriptors], f"<= {MAX_DESCRIPTORS:,}")
        names = {"rchar": "read", "wchar": "written", "read_bytes": "read, disk", "write_bytes": "written, disk"}
        yield from (Figure(f"{self.name}: {what}", "GB", [total.moved[name] / 1e9]) for name, what in names.items())

    def commands(self) -> Iterator[Figure]:
        """Yield the seconds of each command on the version, and what a reader sees."""
        yield self._timed("verify", "verify", str(self.dataset))
        traced = self.run("trace", str(self.dataset), "--step", "1000", "--seq-len", "2048", "--batch-size", "8")
        yield self._figure("trace", traced.wall)
        document = json.loads(traced.output)["samples"][0]["documents"][0]
        yield self._timed("where by content", "where", str(self.dataset), "--content", document["content"])
        row = "--path", document["path"], "--row", str(document["row"])
        yield self._timed("where by row", "where", str(self.dataset), *row)
        yield self._timed("gc", "gc", str(self.dataset))
        program = str(Path(__file__).with_name("first_batch.py"))
        seen = json.loads(run_used([sys.executable, program, str(self.dataset)], os.environ).output)
        yield Figure(f"{self.name}: reader, first batch", "s", [seen["first batch"]], f"<= {MAX_FIRST_BATCH:g}")
        rate = seen["million tokens a second"]
        yield Figure(f"{self.name}: reader, million tokens a second", "", [rate], f">= {MIN_RATE:g}")

    def _timed(self, name: str, *arguments: str) -> Figure:
        return self._figure(name, self.run(*arguments).wall)

    def _figure(self, name: str, seconds: float) -> Figure:
        return Figure(f"{self.name}: {name}", "s", [seconds], f"<= {MAX_SECONDS[name]}")

    def plan(self) -> Iterator[Figure]:
        """Yield how long `plan` takes, and the requests that it says."""
        used = self.run("plan", f"{self.folder}/spec.yaml")
        yield self._figure("plan", used.wall)
        if (requests := json.loads(used.output).get("requests")) is not None:
            yield Figure(f"{self.name}: requests by plan", "", [requests])

    def diff(self, other: Scale) -> Figure:
        """Return how long it takes to compare the version with one that has a part of its documents."""
        return self._timed("diff", "diff", str(other.dataset), str(self.dataset))

    def files(self) -> list[dict[str, Any]]:
        """Return what the manifest says of each shard, with the hashes of its files."""
        (manifest,) = self.dataset.glob("versions/*/manifest.json")
        splits = json.loads(manifest.read_text())["splits"]
        return [shard for name in sorted(splits) for shard in splits[name]["shards"]]

    def keep_tables(self) -> None:
        """Delete the work files and the tokens: `diff` needs neither."""
        shutil.rmtree(self.dataset / "work")
        for path in self.dataset.glob("versions/*/*/*.tok"):
            path.unlink()


def measure(root: Path, arguments: argparse.Namespace, figures: list[Figure]) -> Iterator[list[dict[str, Any]]]:
    """Build all sizes; add the figures to a list, and yield the commands of the largest size when they have changed."""
    *smaller, largest = sorted(arguments.tokens)
    free = shutil.disk_usage(root).free
    if free < largest * BYTES_A_TOKEN:
        raise SystemExit(f"{root}: {free / 1e9:.1f} GB are free, not {largest * BYTES_A_TOKEN / 1e9:.1f} GB")
    (root / "text").mkdir()
    made_text.write_text(root / "text")
    first = Scale("one file", root / "one", 1, arguments)  # it also proves the encoder, if nothing has
    file_tokens = first.build()["tokens"]
    shutil.rmtree(first.folder)

    def make(name: str, num_tokens: float) -> Scale:
        scale = Scale(name, root / name.replace(" ", "-"), -(-int(num_tokens) // file_tokens), arguments)
        scale.prepare()
        return scale

    scales = []
    for num_tokens in (*smaller, largest):
        scales.append(scale := make(shown(num_tokens), num_tokens))
        scale.build()
        figures += scale.figures()
        yield []
        if num_tokens == smaller[-1]:
            figures += [*scale.plan(), *scale.commands()]
            yield []
        scale.keep_tables()
    figures += growth([each.name for each in scales], figures)
    *_, before, plain = scales
    expected = plain.files()
    shutil.rmtree(plain.folder)
    scale = make(f"{plain.name} in shares", largest)
    figures += scale.plan()
    for figure in scale.build_in_shares():
        figures.append(figure)
        yield described(scale)
    figures += scale.figures()
    figures.append(Figure(f"{scale.name}: bytes of the plain build", "", [float(scale.files() == expected)], "1"))
    yield described(scale)
    for figure in scale.commands():
        figures.append(figure)
        yield described(scale)
    figures.append(scale.diff(before))
    yield described(scale)


def described(scale: Scale) -> list[dict[str, Any]]:
    """Return the build commands of a size as JSON."""
    return [
        {
            "command": command,
            "exit_code": used.exit_code,
            "wall": used.wall,
            "processor": used.cpu,
            "megabytes": max(used.peaks.values()) / 1e6,
            "left": None if used.exit_code else json.loads(used.output).get("left"),
        }
        for command, used in scale.uses
    ]


def growth(names: Sequence[str], figures: list[Figure]) -> Iterator[Figure]:
    """Yield how much more each token takes in the largest of some sizes than in the others."""
    values = {figure.name: figure.values[0] for figure in figures}
    for what in ("wall", "processor"):
        for name in names[:-1]:
            ratio = values[f"{names[-1]}: {what}, a token"] / values[f"{name}: {what}, a token"]
            yield Figure(f"{what}, a token: {names[-1]} / {name}", "", [ratio], f"<= {MAX_GROWTH}")


def main() -> None:
    """Parse the arguments, measure and print; what is measured is kept if a later command fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tokens", type=float, nargs="+", default=[1e8, 1e9, 1e10], help="sizes (default: 1e8 1e9 1e10)"
    )
    parser.add_argument("--shares", type=int, default=2, help="of the largest size (default: 2)")
    parser.add_argument("--tokenizer", default="gpt2", help="byte, or a name of tiktoken (default: gpt2)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--keep-cache", action="store_true", help="leave the page cache as it is")
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    if len(arguments.tokens) < 2:
        parser.error("--tokens: give at least two sizes")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="scale-", dir=arguments.folder) as root:
        for commands in measure(Path(root), arguments, figures):
            if arguments.json:
                conditions = {
                    name: getattr(arguments, name) for name in ("tokenizer", "shares", "workers", "keep_cache")
                }
                write_json(arguments.json, figures, commands=commands, **conditions)
    print_table(figures)


if __name__ == "__main__":
    main()
