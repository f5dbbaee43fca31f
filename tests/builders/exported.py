"""Versions to export, and readers of exports, each written from the description of its format."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
import xxhash
from numpy.typing import NDArray

from tests.builders.synthetic_store import EOT, publish, random_classes, random_documents, write_files
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.tasks.exporting import streams
from tokenloom.tasks.exporting.export import FORMATS

Documents = list[list[int]]
Masks = list[list[bool]]
VERSION = "e0" * 8


class Exportable:
    """A version with splits of several shards, documents of 1 token, a long one, an empty shard and an empty split.

    Args:
        folder: for its store.
        vocab_size: decides the type of ids.
        with_masks: give every token a class.
        long_tokens: of the longest document.
    """

    def __init__(self, folder: Path, vocab_size: int, with_masks: bool = False, long_tokens: int = 3000) -> None:
        self.vocab_size = vocab_size
        self.documents: dict[str, Documents] = {}
        self.classes: dict[str, list[Any]] = {}
        self._folder = folder / "store"
        long = np.full(long_tokens, vocab_size - 1, token_dtype(vocab_size))
        long[-1] = EOT
        ones = np.zeros(3, long.dtype), np.ones(3, np.uint32)
        made = [random_documents(4000, 30, seed, vocab_size) for seed in range(4)]
        none = np.zeros(0, long.dtype), np.zeros(0, np.uint32)
        shards = {
            "train": [made[0], ones, none, (long, np.array([long_tokens], np.uint32)), made[1]],
            "validation": [made[2], made[3]],
            "empty": [none],
        }
        entries = {split: self._write(split, each, with_masks) for split, each in shards.items()}
        self.reference = publish(self._folder, VERSION, entries, vocab_size)

    def _write(self, split: str, shards: Sequence[tuple[Any, Any]], with_masks: bool) -> list[dict[str, Any]]:
        """Write the shards of a split; return what the manifest says of them."""
        self.documents[split], self.classes[split], entries = [], [], []
        for index, (tokens, lengths) in enumerate(shards):
            mask = None
            if with_masks:
                mask = random_classes(lengths, index) if len(lengths) else np.zeros(0, np.uint8)
            version = self._folder / "data" / "versions" / VERSION
            entries.append(write_files(version, split, index, self.vocab_size, (tokens, lengths), mask))
            if len(lengths):
                ends = np.cumsum(lengths)[:-1]
                self.documents[split] += [each.tolist() for each in np.split(tokens, ends)]
                self.classes[split] += [] if mask is None else np.split(mask, ends)
        return entries

    def shard(self, split: str, index: int, suffix: str = ".tok") -> Path:
        """Return the path of a file of a shard."""
        return self._folder / "data" / "versions" / VERSION / split / f"{index:06d}{suffix}"


def small_parts(patch: pytest.MonkeyPatch) -> None:
    """Let formats with numbered files make several of little data."""
    for each in FORMATS.values():
        if each.part_bytes:
            patch.setattr(type(each), "part_bytes", 4000)
    patch.setattr(streams, "_LLMC_PART_TOKENS", 2000)


def cut(items: NDArray[Any], ends: Sequence[int] | NDArray[Any]) -> list[list[Any]]:
    """Return the items before each end, and after the one before it."""
    assert int(ends[-1]) == len(items)
    return [part.tolist() for part in np.split(items, np.asarray(ends[:-1], np.int64))]


def read_megatron(folder: Path, split: str, _: int) -> tuple[Documents, None]:
    """Return the documents of SPLIT.bin and SPLIT.idx."""
    index = (folder / f"{split}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00" and int.from_bytes(index[9:17], "little") == 1
    dtype = {1: np.uint8, 4: np.int32, 8: np.uint16}[index[17]]
    count, of_documents = (int.from_bytes(index[at : at + 8], "little") for at in (18, 26))
    lengths = np.frombuffer(index, np.int32, count, 34)
    pointers = np.frombuffer(index, np.int64, count, 34 + 4 * count)
    first = np.frombuffer(index, np.int64, of_documents, 34 + 12 * count)
    assert len(index) == 34 + 12 * count + 8 * of_documents and first.tolist() == list(range(count + 1))
    data = (folder / f"{split}.bin").read_bytes()
    assert len(data) == lengths.sum() * np.dtype(dtype).itemsize
    pairs = zip(pointers.tolist(), lengths.tolist(), strict=True)
    return [np.frombuffer(data, dtype, length, at).tolist() for at, length in pairs], None


def read_olmo(folder: Path, split: str, vocab_size: int) -> tuple[Documents, Masks]:
    """Return the documents of the .npy files, by the lines beside them, and their masks."""
    found, masks = [], []
    for path in sorted((folder / split).glob("token_ids_part_*.npy")):
        ids = np.fromfile(path, token_dtype(vocab_size))
        lines = gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode().splitlines()
        bounds = [tuple(map(int, line.split(","))) for line in lines]
        assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
        found += cut(ids, [end for _, end in bounds])
        mask = path.with_name(path.name.replace("token_ids", "labels_mask"))
        if mask.exists():
            masks += cut(np.fromfile(mask, np.bool_), [end for _, end in bounds])
    return found, masks


def read_llmc(folder: Path, split: str, _: int) -> tuple[Documents, None]:
    """Return the documents of the .bin files, in which each begins with the end-of-text id, with it at their ends."""
    found = []
    for path in sorted(folder.glob(f"*_{'val' if split == 'validation' else split}_*.bin")):
        header = np.fromfile(path, np.int32, 256).tolist()
        widths = {(20240520, 1): 2, (20240801, 7): 4, (278895051, 1): header[3]}
        ids = np.fromfile(path, f"<u{widths[header[0], header[1]]}", offset=1024)
        assert len(ids) == header[2] and ids[0] == EOT
        found += [[*document[1:], EOT] for document in cut(ids, [*np.flatnonzero(ids == EOT)[1:], len(ids)])]
    return found, None


def read_nanogpt(folder: Path, split: str, vocab_size: int) -> tuple[Documents, None]:
    """Return the documents of train.bin or val.bin."""
    assert pickle.loads((folder / "meta.pkl").read_bytes()) == {"vocab_size": vocab_size}  # noqa: S301  (ours)
    ids = np.fromfile(folder / f"{'val' if split == 'validation' else split}.bin", np.uint16)
    return cut(ids, np.flatnonzero(ids == EOT) + 1), None


def read_datatrove(folder: Path, split: str, _: int) -> tuple[Documents, Masks]:
    """Return the documents of the .ds files, by the ends beside them, and their loss masks."""
    found, masks = [], []
    for path in sorted((folder / split).glob("*.ds")):
        name, count, _rest = Path(f"{path}.metadata").read_text().split("\n")
        ids = np.fromfile(path, f"<u{name.rpartition('|')[2]}")
        ends = np.fromfile(f"{path}.index", np.uint64)
        assert len(ids) == int(count)
        found += cut(ids, ends)
        if Path(f"{path}.loss").exists():
            masks += cut(np.fromfile(f"{path}.loss", np.bool_), ends)
    return found, masks


def _column(table: Any, name: str) -> list[Any]:
    return table[name].to_pylist() if name in table.column_names else []


def read_hugging_face(folder: Path, split: str, _: int) -> tuple[Documents, list[Any]]:
    """Return the rows of the Arrow streams that state.json names, and their labels."""
    assert split in json.loads((folder / "dataset_dict.json").read_text())["splits"]
    state = json.loads((folder / split / "state.json").read_text())
    names = [file["filename"] for file in state["_data_files"]]
    tables = [pa.ipc.open_stream((folder / split / name).read_bytes()).read_all() for name in names]
    assert sorted(names) == sorted(path.name for path in (folder / split).glob("*.arrow"))
    return _column(pa.concat_tables(tables), "input_ids"), _column(pa.concat_tables(tables), "labels")


def read_parquet(folder: Path, split: str, _: int) -> tuple[Documents, list[Any]]:
    """Return the rows of the parquet files, and their labels, read by polars."""
    found = polars.read_parquet(sorted((folder / split).glob("*.parquet")))
    return found["input_ids"].to_list(), found["labels"].to_list() if "labels" in found.columns else []


def _table(path: Path) -> tuple[bytes, list[int]]:
    """Return the bytes of a shard of MDS or a chunk of LitData, and where its rows begin and the last one ends."""
    data = path.read_bytes()
    count = int.from_bytes(data[:4], "little")
    places = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    assert places[-1] == len(data)
    return data, places


def _mds_value(data: bytes, encoding: str) -> list[int]:
    """Return the items of an array by its encoding, ndarray:TYPE or ndarray:TYPE:LENGTH."""
    _, dtype, *shape = encoding.split(":")
    if not shape:
        assert data[0] == 1 << 2 | 2  # one dimension, its length a u32
        shape, data = [str(int.from_bytes(data[1:5], "little"))], data[5:]
    items = np.frombuffer(data, dtype)
    assert shape == [str(len(items))]
    return list(items.tolist())


def read_mds(folder: Path, split: str, _: int) -> tuple[Documents, list[Any]]:
    """Return the samples of the shards in index.json, and their labels."""
    found: dict[str, list[Any]] = {"tokens": [], "labels": []}
    index = json.loads((folder / split / "index.json").read_text())
    assert index["version"] == 2
    for shard in index["shards"]:
        path = folder / split / shard["raw_data"]["basename"]
        data, places = _table(path)
        assert shard["raw_data"]["bytes"] == len(data) and shard["samples"] == len(places) - 1
        assert shard["raw_data"]["hashes"] == {"xxh3_128": xxhash.xxh3_128_hexdigest(data)}
        assert shard["column_names"] == sorted(shard["column_names"])
        columns = list(zip(*(shard[f"column_{each}"] for each in ("names", "encodings", "sizes")), strict=True))
        config = {key: shard[key] for key in shard if key not in ("raw_data", "samples", "zip_data")}
        assert json.loads(data[4 * (len(places) + 1) : places[0]]) == config
        for start, end in pairwise(places):
            at = start + 4 * sum(size is None for _, _, size in columns)
            heads = iter(np.frombuffer(data[start:at], "<u4").tolist())
            for name, encoding, size in columns:
                num_bytes = size or next(heads)
                found[name].append(_mds_value(data[at : at + num_bytes], encoding))
                at += num_bytes
            assert at == end
    return found["tokens"], found["labels"]


def read_litdata(folder: Path, split: str, _: int) -> tuple[Documents, list[Any]]:
    """Return the items of the chunks in index.json, and their labels: arrays, or dictionaries of two."""
    found: list[list[Any]] = [[], []]
    index = json.loads((folder / split / "index.json").read_text())
    types = [{"no_header_numpy:5": "<u2", "no_header_numpy:2": "<i4"}[each] for each in index["config"]["data_format"]]
    for chunk in index["chunks"]:
        data, places = _table(folder / split / chunk["filename"])
        assert (chunk["chunk_bytes"], chunk["chunk_size"]) == (len(data), len(places) - 1)
        for start, end in pairwise(places):
            sizes, at = [end - start], start
            if index["config"]["item_loader"] == "PyTreeLoader":
                at += 4 * len(types)
                sizes = np.frombuffer(data[start:at], "<u4").tolist()
            for items, dtype, size in zip(found, types, sizes, strict=False):
                items.append(np.frombuffer(data[at : at + size], dtype).tolist())
                at += size
            assert at == end
        dim = (len(data) - places[0]) // np.dtype(types[0]).itemsize
        assert chunk["dim"] == (None if len(types) > 1 else dim)
    return found[0], found[1]


#: By format: a reader of (folder, split, vocab_size) that returns documents, and masks or None.
READERS: Mapping[str, Callable[[Path, str, int], tuple[Documents, Masks | None]]] = {
    "megatron": read_megatron,
    "olmo": read_olmo,
    "llmc": read_llmc,
    "nanogpt": read_nanogpt,
    "datatrove": read_datatrove,
    "mds": read_mds,
    "litdata": read_litdata,
    "huggingface": read_hugging_face,
    "parquet": read_parquet,
}
