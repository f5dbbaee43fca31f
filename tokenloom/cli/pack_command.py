"""`tokenloom pack`: count the samples of a version ahead of its readers, and show what each packing costs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tokenloom.cli.output import Json, print_line, print_table
from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.packing.packing import PACKINGS, PackingShares, check_packing, shares_of
from tokenloom.storage.packing.sample_counts import keep_counts, read_offsets
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.versions import parse_reference, resolve

_READERS = 8  # shards that are read at the same time


def pack(reference: str, seq_len: int, packing: list[str], split: list[str], quiet: bool) -> Json:
    """Count the samples of splits under packings, keep the counts for later readers, and show them with their shares.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        seq_len: T, in [1, 2**31).
        packing: some of PACKINGS; none for all.
        split: some of the version's; none for all.
        quiet: print nothing.

    Raises:
        SpecError: packing or seq_len out of range.
        StoreError: there is no such split, or a shard is missing.
        FormatError: a shard is damaged.
    """
    packings = list(dict.fromkeys(packing)) or list(PACKINGS)
    for name in packings:
        try:
            check_packing(name, seq_len)
        except ValueError as error:
            raise SpecError(str(error)) from error
    store, manifest = resolve(parse_reference(reference))
    splits = list(dict.fromkeys(split)) or list(manifest["splits"])
    if unknown := [name for name in splits if name not in manifest["splits"]]:
        raise StoreError(f"{reference}: no split {unknown[0]!r}; it has: {', '.join(manifest['splits'])}")
    folder = default_cache_folder()
    rows = [row for name in splits for row in _split_rows(store, manifest, name, packings, seq_len, folder)]
    print_table(quiet, ["split", "packing", "seq_len", "samples", "padding", "cut documents", "dropped"], _cells(rows))
    kept = all(row["kept"] for row in rows)
    print_line(
        quiet, f"counts for readers on this machine are in {folder / 'counts'}" if kept else "the counts aren't kept"
    )
    name = f"{store.root}@{manifest['version']}"
    return {"reference": name, "seq_len": seq_len, "packings": rows, "cache_folder": str(folder)}


def _split_rows(
    store: Store, manifest: dict[str, Any], split: str, packings: list[str], seq_len: int, folder: Path
) -> Iterator[Json]:
    """Yield a row for each packing of one split, its counts kept; every shard's offsets are read once."""

    def of_shard(shard: dict[str, Any]) -> list[PackingShares]:
        offsets = read_offsets(store, manifest, split, shard)
        return [shares_of(packing, seq_len, shard["tokens"], offsets) for packing in packings]

    with ThreadPoolExecutor(_READERS) as readers:
        found = list(readers.map(of_shard, manifest["splits"][split]["shards"]))
    for i, packing in enumerate(packings):
        counts = [shares[i].num_samples for shares in found]
        is_known = packing == "concat"  # readers count those by arithmetic
        kept = is_known or keep_counts(folder, manifest, split, packing, seq_len, counts) is not None
        total = sum((shares[i] for shares in found), PackingShares(0, 0, 0, 0, 0, 0))
        yield {
            "split": split,
            "packing": packing,
            "samples": total.num_samples,
            "seq_len": seq_len,
            "padding_share": total.padding_share,
            "cut_share": total.cut_share,
            "dropped_share": total.dropped_tokens / max(1, manifest["splits"][split]["tokens"]),
            "kept": kept,
        }


def _cells(rows: list[Json]) -> list[list[Any]]:
    shares = ("padding_share", "cut_share", "dropped_share")
    return [
        [row["split"], row["packing"], str(row["seq_len"]), row["samples"], *(f"{row[name]:.2%}" for name in shares)]
        for row in rows
    ]
