"""How fast TokenLoader makes batches, against the plainest loop over the same shards ("bare").

    python benchmarks/read.py [--rounds 7] [--folder DIR] [--full] [--tiny] [--drop-caches] [--output FILE.json]

A store of uint16 shards is made in a temporary folder (of --folder: the disk to measure cold reads on). Rates are
measured in turn with the bare loop (bare, ours, bare, ...), and each is divided by the mean of the two bare ones
beside it, so a machine whose speed drifts does not move the ratios. bare: rows of T + 1 stored tokens are copied from
warm maps into a new array of int64, batch by batch; labels are a view. Targets stand beside the figures; nothing fails.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.order import Order
from tokenloom.storage import shard as shard_format
from tokenloom.storage.canonical import sign
from tokenloom.storage.filesystem import Store
from tokenloom.storage.packing import num_samples, plan_shard, shares_of
from tokenloom.storage.shard import ShardHeader, ShardWriter
from tokenloom.storage.tags import move

SEQ_LEN, BATCH, VOCAB = 2048, 8, 50_257
VERSION = "5a" * 8


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    num_shards: int = 4
    shard_tokens: int = 33_000_000  # in all over 256 MB
    batches: int = 4096  # of one measurement of a rate
    cold_rows: int = 4096
    waits: int = 1000
    sparse_shards: int = 5_000
    sparse_tokens: int = 2 * 10**9  # of a sparse shard, 4 GB
    listed_shards: int = 100_000
    documents: int = 1_000_000
    resume_at: int = 10**9
    long_batches: int = 1_000_000


TINY = Sizes(3, 200_000, 16, 64, 30, 20, 2 * 10**7, 500, 5_000, 10**5, 3000)


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    name: str
    unit: str
    values: list[float]  # one a round
    target: str = ""

    def cells(self) -> list[str]:
        """Return name, median, range and target as text."""
        low, high = min(self.values), max(self.values)
        spread = f"{low:.4g} to {high:.4g}" if len(self.values) > 1 else ""
        return [self.name, f"{statistics.median(self.values):.4g} {self.unit}".rstrip(), spread, self.target]


# --- stores


def write_store(folder: Path, sizes: Sizes) -> str:
    """Write a version of shards with random documents; return its reference."""
    rng = np.random.default_rng(0)
    (folder / "data/versions" / VERSION / "train").mkdir(parents=True)
    entries = []
    for index in range(sizes.num_shards):
        offsets = random_offsets(rng, sizes.shard_tokens / 960)
        lengths = np.diff(offsets).astype(np.uint32)
        tokens = rng.integers(1, VOCAB, int(offsets[-1]), dtype=np.uint16)
        tokens[offsets[1:].astype(np.int64) - 1] = 0
        name = f"train/{index:06d}.tok"
        with (
            (folder / "data/versions" / VERSION / name).open("x+b") as file,
            ShardWriter(file, VOCAB, header_info(index)) as writer,
        ):
            writer.append(tokens, lengths)
        entries.append({"name": name, **writer.record, "samples": {}})
    return publish(folder, entries)


def random_offsets(rng: np.random.Generator, num_documents: float) -> NDArray[np.uint64]:
    """Return (num_documents + 1,) offsets of documents of 2 tokens and more, about 960 in the mean."""
    lengths = np.maximum(2, rng.lognormal(np.log(600), 1.0, max(1, int(num_documents))))
    return np.cumsum(np.concatenate([np.zeros(1), lengths.astype(np.int64)])).astype("<u8")


def header_info(index: int) -> dict[str, Any]:
    """Return the JSON block of a shard's header."""
    names: dict[str, Any] = {"dataset": "data", "split": "train", "tokenizer": "made", "fingerprint": "f" * 64}
    return names | {"shard_index": index, "seed": 0, "vocab_size": VOCAB, "eot_id": 0}


def write_sparse_store(folder: Path, num_shards: int, offsets: NDArray[np.uint64], files: bool = True) -> str:
    """Write a version of sparse shards of zeros, all with these documents; without `files` its manifest alone."""
    (folder / "data/versions" / VERSION / "train").mkdir(parents=True)
    num_tokens = int(offsets[-1])
    checksum = xxhash.xxh3_128_digest(offsets.tobytes())
    offsets_start = -(-(4096 + 2 * num_tokens) // 8) * 8
    file_bytes = offsets_start + offsets.nbytes
    samples = {f"best_fit/{SEQ_LEN}": num_samples("best_fit", SEQ_LEN, num_tokens, offsets)}
    entries = []
    for index in range(num_shards):
        info = header_info(index)
        header = ShardHeader(
            2, num_tokens, len(offsets) - 1, 4096, offsets_start, file_bytes, bytes(16), checksum, info
        )
        name = f"train/{index:06d}.tok"
        if files:
            with (folder / "data/versions" / VERSION / name).open("xb") as file:
                file.write(shard_format._pack_header(header))
                file.truncate(file_bytes)
                file.seek(offsets_start)
                file.write(offsets.tobytes())
        entry: dict[str, Any] = {"name": name, "sha256": f"{index:064x}", "docs_sha256": "0" * 64, "samples": samples}
        entry |= {"tokens": num_tokens, "documents": len(offsets) - 1, "bytes": file_bytes}
        entries.append(entry | {"first_key": "0" * 16, "last_key": "f" * 16})
    return publish(folder, entries)


def publish(folder: Path, entries: list[dict[str, Any]]) -> str:
    """Write the manifest of shards and the tag `latest`; return the reference of the dataset."""
    counts = {name: sum(entry[name] for entry in entries) for name in ("tokens", "documents")}
    tokenizer = {"kind": "made", "name": "made", "fingerprint": "f" * 64, "vocab_size": VOCAB, "eot_id": 0}
    manifest: dict[str, Any] = {"format_version": 1, "dataset": "data", "version": VERSION, "tokenizer": tokenizer}
    manifest |= {"spec": {"tokenizer": {"kind": "byte"}}, "rows": {}, "files": {}}
    manifest |= {"splits": {"train": counts | {"duplicates": 0, "shards": entries}}}
    (folder / "data/versions" / VERSION / "manifest.json").write_bytes(sign(manifest))
    move(Store(str((folder / "data").absolute())), "latest", VERSION, 0, "made")
    return f"{folder}/data"


# --- rates

Step = Callable[[], object]


class Maps(Dataset[Any]):
    """The shards as memory maps, and a sample of them the plain way."""

    def __init__(self, data: TokenDataset) -> None:
        self.tokens = [
            np.frombuffer(data.shards[i].bytes[0 : 2 * data.shards[i].header.num_tokens], np.uint16)
            for i in range(len(data.counts))
        ]
        self.places = [(i, int(k) * SEQ_LEN) for i, n in enumerate(data.counts) for k in range(n)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        shard, start = self.places[index]
        row = self.tokens[shard][start : start + SEQ_LEN + 1].astype(np.int64)
        return row[:-1], row[1:]


def bare_steps(maps: Maps) -> Step:
    """Return the bare loop: each call makes one batch of random samples."""
    order = np.random.default_rng(1).permutation(len(maps)).tolist()
    batches = cycle([[maps.places[i] for i in order[k : k + BATCH]] for k in range(0, len(order) - BATCH + 1, BATCH)])

    def step() -> object:
        rows = np.empty((BATCH, SEQ_LEN + 1), np.int64)
        for row, (shard, start) in zip(rows, next(batches), strict=True):
            row[:] = maps.tokens[shard][start : start + SEQ_LEN + 1]
        return rows[:, :-1], rows[:, 1:]

    return step


def limit_steps(maps: Maps) -> Step:
    """Return the limit of one core: a fancy index into a strided view of one map, and one cast."""
    tokens = maps.tokens[0]
    view = np.lib.stride_tricks.as_strided(tokens, ((len(tokens) - 1) // SEQ_LEN, SEQ_LEN + 1), (2 * SEQ_LEN, 2))
    order = np.random.default_rng(1).permutation(len(view))
    batches = cycle([order[k : k + BATCH] for k in range(0, len(order) - BATCH + 1, BATCH)])
    return lambda: view[next(batches)].astype(np.int64)


def cycle(items: list[Any]) -> Iterator[Any]:
    """Yield the items for ever."""
    while True:
        yield from items


def loader_steps(reference: str, prefetch: int | None, order: str = "block", **options: Any) -> Step:
    """Return a step of a TokenLoader."""
    data = TokenDataset(reference, seq_len=SEQ_LEN, **options)
    loader = TokenLoader(data, BATCH, rank=0, world_size=1, prefetch=prefetch, order=order)
    return lambda: next(loader)


def torch_steps(dataset: Any) -> Step:
    """Return a step of torch's DataLoader over a map-style dataset, in process, shuffled."""
    batches = iter_for_ever(lambda: iter(DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)))
    return lambda: next(batches)


def iter_for_ever(make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield from new iterators for ever."""
    while True:
        yield from make()


def rate(step: Step, num_batches: int) -> float:
    """Return tokens per second; what a thread has made ahead does not count."""
    for _ in range(min(num_batches, 64)):
        step()
    begin = time.perf_counter()
    for _ in range(num_batches):
        step()
    return num_batches * BATCH * SEQ_LEN / (time.perf_counter() - begin)


def measure_rates(reference: str, sizes: Sizes, rounds: int) -> list[Figure]:
    """Measure all ways warm, in turn with the bare loop."""
    data = TokenDataset(reference, seq_len=SEQ_LEN)
    maps = Maps(data)
    fields = ("document_ids", "position_ids")
    ways: list[tuple[str, str, Step]] = [
        ("limit: one gather, one cast", "", limit_steps(maps)),
        ("TokenLoader, prefetch=0", ">= 0.8", loader_steps(reference, 0)),
        ("TokenLoader, thread", ">= 1.0", loader_steps(reference, None)),
        ("prefetch=0, document and position ids", "", loader_steps(reference, 0, fields=fields)),
        ("thread, document and position ids", ">= 0.5", loader_steps(reference, None, fields=fields)),
        ("thread, best_fit", "", loader_steps(reference, None, packing="best_fit")),
        ("thread, order full", "", loader_steps(reference, None, order="full")),
        ("DataLoader of TokenDataset, in process", "", torch_steps(data)),
        ("DataLoader of plain maps, in process", "", torch_steps(maps)),
    ]
    bare = bare_steps(maps)
    for tokens in maps.tokens:
        tokens.max()  # all of it is in memory now
    found: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    bares = [rate(bare, sizes.batches)]
    for _ in range(rounds):
        for name, _, step in ways:
            ours = rate(step, sizes.batches)
            bares.append(rate(bare, sizes.batches))
            found[name].append(2 * ours / (bares[-2] + bares[-1]))
    figures = [Figure("bare", "M tokens/s", [value / 1e6 for value in bares])]
    return figures + [Figure(name, "of bare", found[name], target) for name, target, _ in ways]


# --- cold files


def measure_cold(reference: str, sizes: Sizes, rounds: int, drop_caches: bool) -> list[Figure]:
    """Compare random rows of cold files with four threads that only read them."""
    ratios, rates, cached = [], [], []
    for seed in range(rounds):
        files, rows = rows_of(reference, sizes, seed)
        cached.append(make_cold(reference, drop_caches))
        bare = seconds_of_reads(files, rows)
        cached.append(make_cold(reference, drop_caches))
        data = TokenDataset(reference, seq_len=SEQ_LEN)
        loader = TokenLoader(data, BATCH, seed=seed, order="full", rank=0, world_size=1)
        begin = time.perf_counter()
        for _ in range(sizes.cold_rows // BATCH):
            next(loader)
        ratios.append(bare / (time.perf_counter() - begin))
        rates.append(sizes.cold_rows * SEQ_LEN / bare / 1e6)
        loader.close()
        del loader, data
    how = "drop_caches" if drop_caches else "posix_fadvise"
    return [
        Figure(f"cold ({how}): four threads of bare pread", "M tokens/s", rates),
        Figure("cold: share of rows in memory all the same", "", cached, "0"),
        Figure("cold: thread, order full", "of bare pread", ratios, ">= 0.5"),
    ]


def seconds_of_reads(files: list[int], rows: NDArray[np.int64]) -> float:
    """Read rows on four threads, close the files, return the seconds."""
    with ThreadPoolExecutor(4) as pool:
        begin = time.perf_counter()
        list(pool.map(functools.partial(read_rows, files), np.array_split(rows, 64)))
        seconds = time.perf_counter() - begin
    for file in files:
        os.close(file)
    return seconds


def rows_of(reference: str, sizes: Sizes, seed: int) -> tuple[list[int], NDArray[np.int64]]:
    """Return open files, and (n, 2) file and first byte of the rows that a loader of this seed reads."""
    data = TokenDataset(reference, seq_len=SEQ_LEN)
    samples = Order("full", data.counts, seed).samples(np.arange(sizes.cold_rows))
    shards = data.shards_of(samples)
    local = samples - (np.cumsum(data.counts) - data.counts)[shards]
    files = [os.open(data.files.path(i), os.O_RDONLY) for i in range(len(data.counts))]
    return files, np.stack([shards, data.shards[0].header.tokens_start + 2 * SEQ_LEN * local], axis=1)


def read_rows(files: list[int], rows: NDArray[np.int64]) -> None:
    """Read rows, (n, 2) file and first byte, one by one."""
    for file, start in rows.tolist():
        os.pread(files[file], 2 * (SEQ_LEN + 1), start)


def make_cold(reference: str, drop_caches: bool) -> float:
    """Let the system forget the shards; return the share of some rows that are in memory all the same."""
    gc.collect()  # a page that is mapped stays
    if drop_caches:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    kept = []
    for path in sorted(Path(reference).rglob("*.tok")):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        places = np.linspace(0, os.fstat(file).st_size - 4096, 100).astype(np.int64).tolist()
        kept += [is_cached(file, place) for place in places]
        os.close(file)
    return statistics.mean(kept)


def is_cached(file: int, place: int) -> bool:
    """Return whether a byte of a file is in memory; False where the system can't say."""
    try:
        return os.preadv(file, [bytearray(1)], place, os.RWF_NOWAIT) > 0
    except OSError:
        return False


# --- waiting


def measure_waits(reference: str, sizes: Sizes) -> list[Figure]:
    """Measure how long `next` takes under a consumer that takes 5 ms a step: asleep, or busy in Python."""
    figures = []
    for name, compute in (("sleeps", sleep_5_ms), ("spins in Python", spin_5_ms)):
        step = loader_steps(reference, None)
        waits, walls = [], []
        for _ in range(sizes.waits + 50):
            begin = time.perf_counter()
            step()
            waits.append(time.perf_counter() - begin)
            compute()
            walls.append(time.perf_counter() - begin)
        kept = np.array(waits[50:])
        for share, target in ((0.5, ""), (0.99, "<= 1"), (1.0, "")):
            quantile = float(np.quantile(kept, share) * 1e3)
            figures.append(Figure(f"consumer {name} 5 ms: next, quantile {share:g}", "ms", [quantile], target))
        figures.append(Figure(f"consumer {name} 5 ms: waits", "%", [100 * kept.sum() / sum(walls[50:])], "<= 1"))
    return figures


def sleep_5_ms() -> None:
    """Compute as a GPU does: this process does nothing."""
    time.sleep(0.005)


def spin_5_ms() -> None:
    """Compute in Python, which holds its lock."""
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end:
        pass


def measure_long_run(reference: str, sizes: Sizes) -> list[Figure]:
    """Compare the rate of the last tenth of many small batches with that of the first."""
    figures = []
    for name, prefetch in (("prefetch=0", 0), ("thread", None)):
        loader = TokenLoader(TokenDataset(reference, seq_len=16), BATCH, rank=0, world_size=1, prefetch=prefetch)
        for _ in range(200):
            next(loader)
        ends = [time.perf_counter()]
        for _ in range(10):
            for _ in range(sizes.long_batches // 10):
                next(loader)
            ends.append(time.perf_counter())
        seconds = np.diff(ends)
        loader.close()
        what = f"{name}: rate of the last tenth of {sizes.long_batches:,} batches"
        figures.append(Figure(what, "of the first's", [float(seconds[0] / seconds[-1])], ">= 1"))
    return figures


# --- packing


def measure_packing(sizes: Sizes, rounds: int) -> list[Figure]:
    """Time the plan of best_fit, and compare its slots with those of a plain best-fit-decreasing."""
    offsets = random_offsets(np.random.default_rng(2), sizes.documents)
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        plan = plan_shard("best_fit", SEQ_LEN, int(offsets[-1]), offsets)
        seconds.append(time.perf_counter() - begin)
    shares = shares_of("best_fit", SEQ_LEN, int(offsets[-1]), offsets)
    slots = best_fit_decreasing(np.diff(offsets).astype(np.int64))
    return [
        Figure(f"best_fit: plan of {sizes.documents:,} documents", "s", seconds, "<= 2"),
        Figure("best_fit: padding", "% of slots", [100 * shares.padding_share]),
        Figure("best_fit: samples", "of best-fit-decreasing", [len(plan) / slots], "<= 1.02"),
    ]


def best_fit_decreasing(lengths: NDArray[np.int64]) -> int:
    """Return the samples of a plain best-fit-decreasing, item by item; see storage/packing.py for what an item is."""
    full = (lengths - 1) // SEQ_LEN
    rests = lengths - full * SEQ_LEN
    items = np.sort(rests[(rests > 1) | (full == 0)])[::-1].tolist()
    bins, rooms, present = 0, [0] * (SEQ_LEN + 2), 0  # bins of each room, and a bit for each room that has some
    for item in items:
        fitting = present >> item
        if fitting:
            room = item + (fitting & -fitting).bit_length() - 1
            rooms[room] -= 1
            if not rooms[room]:
                present ^= 1 << room
        else:
            room, bins = SEQ_LEN + 1, bins + 1
        if room > item:
            rooms[room - item] += 1
            present |= 1 << (room - item)
    return bins + int(full.sum())


# --- scale

_CHILD = """
import json, os, sys, time
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

def held():
    lines = open("/proc/self/status").read().splitlines()
    sizes = (line.replace(":", "").split() for line in lines if line.startswith(("RssAnon", "RssFile")))
    return {name: int(size) * 1024 for name, size, _ in sizes}

reference, resume_at, batches, options = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
before, begin = held(), time.perf_counter()
data = TokenDataset(reference, seq_len=2048, **options)
loader = TokenLoader(data, 8, rank=0, world_size=1)
told = {"open": time.perf_counter() - begin}
if batches:
    next(loader)
    told["first"] = time.perf_counter() - begin - told["open"]
    state = loader.state_dict()
    loader.close()
    begin = time.perf_counter()
    resumed = TokenLoader(data, 8, rank=0, world_size=1)
    resumed.load_state_dict(state | {"samples": resume_at})
    next(resumed)
    told["resume"] = time.perf_counter() - begin
    for _ in range(batches):
        next(resumed)
    after = held()
    told |= {name: after[name] - before[name] for name in before}
    told["maps"] = sum(".tok" in line for line in open("/proc/self/maps"))
    resumed.close()
print(json.dumps(told))
"""


def child(reference: str, sizes: Sizes, batches: int, **options: Any) -> dict[str, float]:
    """Open a version in a new process; return what it told."""
    arguments = [reference, str(sizes.resume_at), str(batches), json.dumps(options)]
    done = subprocess.run([sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the process that opens {reference} failed:\n{done.stderr}")
    told: dict[str, float] = json.loads(done.stdout)
    return told


def measure_scale(folder: Path, sizes: Sizes, rounds: int) -> list[Figure]:
    """Open versions of many large shards, sparse ones, each round in new processes."""
    even = np.linspace(0, sizes.sparse_tokens, 1001).astype("<u8")
    big = write_sparse_store(folder / "big", sizes.sparse_shards, even)
    packed = random_offsets(np.random.default_rng(3), sizes.documents)
    full = write_sparse_store(folder / "packed", 16, packed)
    many = write_sparse_store(folder / "many", sizes.listed_shards, even, files=False)
    told = [child(big, sizes, sizes.waits) for _ in range(rounds)]
    best_fit = [child(full, sizes, 1, packing="best_fit")["first"] for _ in range(rounds)]
    listed = [child(many, sizes, 0)["open"] for _ in range(rounds)]
    tokens = sizes.sparse_shards * sizes.sparse_tokens
    what = f"{sizes.sparse_shards:,} shards, {tokens / 1e12:.3g} T tokens"
    scaled = [
        ("open", "open", "ms", 1e3, "<= 50"),
        ("first", "first batch", "ms", 1e3, "<= 50"),
        ("resume", f"resume at sample {sizes.resume_at:,}", "ms", 1e3, "<= 50"),
        ("RssAnon", f"resident growth after {sizes.waits:,} batches", "MB", 1e-6, "<= 100"),
        ("RssFile", "mapped pages resident", "MB", 1e-6, ""),
        ("maps", "maps open", "", 1.0, "<= 512"),
    ]
    figures = [
        Figure(f"{what}: {name}", unit, [scale * round_told[key] for round_told in told], target)
        for key, name, unit, scale, target in scaled
    ]
    what = f"16 shards of {sizes.documents:,} documents, best_fit: first batch"
    figures.append(Figure(what, "ms", [1e3 * value for value in best_fit]))
    return [*figures, Figure(f"{sizes.listed_shards:,} shards: open", "s", listed, "<= 0.6")]


def measure(arguments: argparse.Namespace, folder: Path) -> list[Figure]:
    """Measure everything the command line asks for."""
    sizes, rounds = (TINY if arguments.tiny else Sizes()), arguments.rounds
    os.environ["TOKENLOOM_CACHE"] = str(folder / "cache")
    reference = write_store(folder / "store", sizes)
    figures = measure_rates(reference, sizes, rounds)
    figures += measure_cold(reference, sizes, rounds, arguments.drop_caches)
    figures += measure_waits(reference, sizes)
    figures += measure_packing(sizes, rounds)
    figures += measure_scale(folder, sizes, min(3, rounds))
    return figures + (measure_long_run(reference, sizes) if arguments.full else [])


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description="How fast TokenLoader makes batches.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to make the stores (default: the system's temporary folder)")
    parser.add_argument("--full", action="store_true", help="a million batches in a row, too")
    parser.add_argument("--tiny", action="store_true", help="sizes that tell nothing, to try the program")
    parser.add_argument("--drop-caches", action="store_true", help="cold: empty the caches of the whole machine (root)")
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        figures = measure(arguments, Path(name))
    rows = [["", "median", "range", "target"], *(figure.cells() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if arguments.output:
        machine = {"platform": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
        machine |= {"numpy": np.__version__, "torch": torch.__version__, "tiny": arguments.tiny}
        told = machine | {"date": time.strftime("%Y-%m-%d"), "figures": [asdict(figure) for figure in figures]}
        Path(arguments.output).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
