"""`tokenloom pack`: count a version's samples before its readers do, and show the cost of each packing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.argument_types import add_reference, positive
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.packing.counting import CountsFile
from tokenloom.storage.packing.packings import PACKINGS, PackingShares, check_packing, packing_named, shares_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard

_NUM_READERS = 8  # shards read at the same time
_HEADER = ["split", "packing", "seq_len", "samples", "padding", "cut documents", "dropped"]


@dataclass(frozen=True)
class PackedSplit:
    """The samples of one split under one packing; `kept` says whether their counts were kept for later readers."""

    split: str
    packing: str
    samples: int
    seq_len: int
    padding_share: float
    cut_share: float
    dropped_share: float
    kept: bool


@dataclass(frozen=True)
class PackResult(Result):
    """The samples of a version under each packing."""

    reference: str
    seq_len: int
    packings: list[PackedSplit]
    cache_folder: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument("--seq-len", type=positive, required=True, metavar="T", help="tokens per sample")
    parser.add_argument(
        "--packing",
        action="append",
        default=[],
        metavar="NAME",
        help=f"the packing: {', '.join(PACKINGS)}; may be repeated (default: all)",
    )
    parser.add_argument(
        "--split", action="append", default=[], help="the split to count; may be repeated (default: all)"
    )


def run(reference: str, seq_len: int, packing: list[str], split: list[str], out: Output) -> PackResult:
    """Count the samples of splits under packings, keep the counts for later readers, and show the shares.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        seq_len: T, in [1, 2**31).
        packing: some of PACKINGS; none for all.
        split: some of the version's splits; none for all.
        out: prints the result.

    Raises:
        SpecError: packing or seq_len is out of range.
        StoreError: there is no such split, or a shard is missing.
        FormatError: a shard is damaged.
    """
    packings = _checked(packing, seq_len)
    store, manifest = resolve(parse_reference(reference))
    splits = list(dict.fromkeys(split)) or list(manifest.splits)
    for name in splits:
        check_split(reference, manifest, name)
    folder = default_cache_folder()
    packed = [each for name in splits for each in _pack_split(store, manifest, name, packings, seq_len, folder)]
    out.table(_HEADER, [_cells(each) for each in packed])
    if all(each.kept for each in packed):
        out.line(f"counts for readers on this machine are in {folder / 'counts'}")
    else:
        out.line("the counts were not kept")
    return PackResult(f"{store.root}@{manifest.version}", seq_len, packed, str(folder))


def _checked(packing: list[str], seq_len: int) -> list[str]:
    packings = list(dict.fromkeys(packing)) or list(PACKINGS)
    for name in packings:
        try:
            check_packing(name, seq_len)
        except ValueError as error:
            raise SpecError(str(error)) from error
    return packings


def _pack_split(
    store: Store, manifest: Manifest, split: str, packings: list[str], seq_len: int, folder: Path
) -> Iterator[PackedSplit]:
    """Yield each packing of one split, and keep its counts. The offsets of a shard are read once."""

    def of_shard(entry: ShardEntry) -> list[PackingShares]:
        offsets = StoredShard(store, manifest.version, entry).offsets
        return [shares_of(packing, seq_len, entry.tokens, offsets) for packing in packings]

    with ThreadPoolExecutor(_NUM_READERS) as readers:
        by_shard = list(readers.map(of_shard, manifest.splits[split].shards))
    for i, packing in enumerate(packings):
        shares = [of_packings[i] for of_packings in by_shard]
        counts = [each.num_samples for each in shares]
        is_computed = not packing_named(
            packing
        ).follows_documents  # readers compute these counts without reading offsets
        kept = is_computed or CountsFile(folder, manifest, split, packing, seq_len).write(counts)
        total = sum(shares, PackingShares(0, 0, 0, 0, 0, 0))
        yield PackedSplit(
            split=split,
            packing=packing,
            samples=total.num_samples,
            seq_len=seq_len,
            padding_share=total.padding_share,
            cut_share=total.cut_share,
            dropped_share=total.dropped_tokens / max(1, manifest.splits[split].tokens),
            kept=kept,
        )


def _cells(packed: PackedSplit) -> list[str | int]:
    shares = (packed.padding_share, packed.cut_share, packed.dropped_share)
    return [packed.split, packed.packing, str(packed.seq_len), packed.samples, *(f"{share:.2%}" for share in shares)]
