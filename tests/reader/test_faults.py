"""Damaged shards of a local store raise an error that names the file, never give a wrong token, and can be restored."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.builders.synthetic_store import EOT, write_store
from tests.counts import count
from tests.reader.oracle import FIELDS, PACKINGS, Oracle, as_lists, shard_paths
from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.formats.shard import ShardHeader, open_shard

_T = 16
_BATCH = 4
_NUM_SHARDS = 4
_BAD = 1  # the shard that is damaged
_TOKEN_BYTES, _JSON, _NUM_TOKENS, _TOKENS_START, _CHECKSUMS = 16, 20, 24, 40, 64

Damage = Callable[[bytes], bytes | None]  # from the bytes of a file to those that replace them; None deletes the file


@dataclass(frozen=True)
class Damaged:
    """A store with one shard to damage. Files are replaced, not changed, so maps of the old ones stay as they were."""

    reference: str
    path: Path
    good: bytes

    def put(self, data: bytes | None) -> None:
        """Replace the file by these bytes; None deletes it."""
        if data is None:
            self.path.unlink()
            return
        temporary = self.path.with_suffix(".new")
        temporary.write_bytes(data)
        temporary.replace(self.path)

    @property
    def match(self) -> str:
        """A pattern that every message must match."""
        return re.escape(f"{self.path}: ")


def made_store(folder: Path) -> Damaged:
    """Write a store of shards with equal documents and different tokens."""
    lengths = np.random.default_rng(1).integers(2, 40, 20).astype(np.uint32)
    shards = []
    for index in range(_NUM_SHARDS):
        tokens = np.random.default_rng(10 + index).integers(1, 5000, int(lengths.sum()), dtype=np.uint16)
        tokens[np.cumsum(lengths) - 1] = EOT
        shards.append((tokens, lengths))
    reference = write_store(folder, shards, vocab_size=5000)
    path = shard_paths(reference)[_BAD]
    return Damaged(reference, path, path.read_bytes())


@pytest.fixture
def store(tmp_path: Path) -> Damaged:
    """A store whose shard the test may damage."""
    return made_store(tmp_path / "store")


# ---- kinds of damage


def signed(data: bytes, start: int, new: bytes) -> bytes:
    """Return a shard with other bytes in its header, and the checksum to match."""
    changed = bytearray(data)
    changed[start : start + len(new)] = new
    (end,) = struct.unpack_from("<I", data, 12)
    changed[end - 16 : end] = xxhash.xxh3_128_digest(bytes(changed[: end - 16]))
    return bytes(changed)


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    """Return the bytes with one bit changed."""
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def header_of(data: bytes) -> ShardHeader:
    """Return the header of a shard."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return open_shard(file.name).header


def with_offsets(data: bytes, change: Callable[[NDArray[np.uint64]], None]) -> bytes:
    """Return a shard with the document offsets of a faulty writer, and the checksums to match."""
    header = header_of(data)
    offsets = np.frombuffer(data[header.offsets_start :], "<u8").copy()
    change(offsets)
    changed = data[: header.offsets_start] + offsets.tobytes()
    return signed(changed, _CHECKSUMS + 16, xxhash.xxh3_128_digest(offsets.tobytes()))


def with_info(data: bytes, info: bytes) -> bytes:
    """Return a shard with another JSON block."""
    data = signed(data, _JSON, struct.pack("<I", len(info)))
    return signed(data, _CHECKSUMS + 32, info)


def narrower(data: bytes) -> bytes:
    """Return a shard that claims one byte per token, with all other fields changed so that its length still fits."""
    header = header_of(data)
    assert header.num_tokens % 4096 == 0
    data = signed(data, _TOKEN_BYTES, struct.pack("<I", 1))
    return signed(data, _TOKENS_START, struct.pack("<Q", header.tokens_start + header.num_tokens))


def set_offset(place: int, value: int) -> Callable[[NDArray[np.uint64]], None]:
    """Return a change of one document offset."""

    def change(offsets: NDArray[np.uint64]) -> None:
        offsets[place] = value

    return change


DAMAGES: dict[str, Damage] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "half": lambda data: data[: 4096 + (len(data) - 4096) // 2],
    "without the last byte": lambda data: data[:-1],
    "a bit of the header": lambda data: flipped(data, _NUM_TOKENS),
    "another shard": lambda data: with_info(data, json.dumps(header_of(data).info | {"shard_index": 2}).encode()),
    "another split": lambda data: with_info(data, json.dumps(header_of(data).info | {"split": "test"}).encode()),
}


# ---- checks


def damaged_data(store: Damaged, **options: Any) -> tuple[TokenDataset, Oracle]:
    """Open the dataset while it is intact, which counts its samples; return it with what it must return."""
    names = {name: value for name, value in options.items() if name in ("packing", "fields")}
    return TokenDataset(store.reference, seq_len=_T, **options), Oracle(store.reference, _T, **names)


def damaged_samples(oracle: Oracle) -> tuple[int, int]:
    """Return the samples [first, end) of the damaged shard."""
    first = sum(oracle.counts[:_BAD])
    return first, first + oracle.counts[_BAD]


def assert_is_named_by_samples(data: TokenDataset, oracle: Oracle, match: str, error: Any) -> None:
    """Check that samples of the damaged shard raise errors, and that all others are right."""
    first, end = damaged_samples(oracle)
    for index in (first, end - 1, first):
        with pytest.raises(error, match=match):
            data[index]
    for index in (0, first - 1, end, len(oracle) - 1):
        sample = {name: values.tolist() for name, values in data[index].items()}
        assert sample == {name: oracle.sample(index)[name] for name in sample}


def assert_is_named(store: Damaged, damage: Damage, error: Any = FormatError, **options: Any) -> None:
    """Check that samples and loaders name a shard damaged after opening, and continue once it is restored."""
    data, oracle = damaged_data(store, **options)
    store.put(damage(store.good))
    assert_is_named_by_samples(data, oracle, store.match, error)
    store.put(store.good)
    for prefetch in (0, 5):
        data, _ = damaged_data(store, **options)
        store.put(damage(store.good))
        assert_continues(store, data, oracle, prefetch, error)


def read_up_to_error(loader: TokenLoader, match: str, error: Any) -> list[dict[str, Any]]:
    """Return the batches before the one that can't be made; some of them come after the error, on the next call."""
    found, failures = [], 0
    while failures < 2:
        try:
            found.append(as_lists(next(loader)))
            failures = 0
        except error as caught:
            assert re.search(match, str(caught))
            failures += 1
    return found


def assert_continues(store: Damaged, data: TokenDataset, oracle: Oracle, prefetch: int, error: Any) -> None:
    """Check that a loader returns right batches, names the file on each call, and continues once it is restored."""
    steps = -(-len(oracle) // _BATCH)
    samples = [i if i < len(oracle) else None for i in range(steps * _BATCH)]
    expected = [oracle.batch(samples[i : i + _BATCH]) for i in range(0, len(samples), _BATCH)]
    loader = TokenLoader(data, _BATCH, order="sequential", num_epochs=1, drop_last=False, prefetch=prefetch)
    found = read_up_to_error(loader, store.match, error)
    assert found == expected[: damaged_samples(oracle)[0] // _BATCH]
    store.put(store.good)
    found += [as_lists(batch) for batch in loader]
    assert found == expected


@pytest.mark.parametrize(("packing", "access"), [("concat", "mmap"), ("best_fit", "pread")])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_shard_is_named_and_reading_continues_once_it_is_restored(
    name: str, packing: str, access: str, store: Damaged
) -> None:
    error = StoreError if name == "missing" else FormatError
    assert_is_named(store, DAMAGES[name], error, packing=packing, access=access)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_shard_cut_to_any_length_is_named(packing: str, store: Damaged) -> None:
    data, oracle = damaged_data(store, packing=packing)
    first, _ = damaged_samples(oracle)
    lengths = {0, 1, 7, 8, 95, 96, 111, 112, 4095, 4096, 4097, len(store.good) - 1}
    lengths |= set(random.Random(1).choices(range(len(store.good)), k=count(60, 5000)))
    for num_bytes in sorted(lengths):
        store.put(store.good[:num_bytes])
        with pytest.raises(FormatError, match=store.match):
            data[first]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("fields", [(), *((name,) for name in FIELDS)])
def test_damaged_document_offsets_are_named_wherever_they_are_used(
    fields: Sequence[str], packing: str, store: Damaged
) -> None:
    offsets = [name for name in fields if name != "cu_seqlens"]
    start = header_of(store.good).offsets_start
    for place in (start, start + 8, len(store.good) - 8, len(store.good) - 1):
        bad = flipped(store.good, place)
        data, oracle = damaged_data(store, packing=packing, fields=fields)
        store.put(bad)
        if packing == "concat" and not fields:
            assert [data[i]["input_ids"].tolist() for i in range(len(data))] == [
                oracle.sample(i)["input_ids"] for i in range(len(oracle))
            ]
        else:
            assert_is_named_by_samples(data, oracle, store.match, FormatError)
        store.put(store.good)
    if packing != "concat" or fields:
        assert_is_named(store, lambda data: flipped(data, start + 9), packing=packing, fields=offsets or fields)


@pytest.mark.parametrize("packing", ["document", "best_fit"])
def test_damaged_document_offsets_are_named_when_samples_are_counted(
    packing: str, store: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "no_counts"))
    start = header_of(store.good).offsets_start
    for bad in (flipped(store.good, start), flipped(store.good, 30), store.good[:-1], None):
        store.put(bad)
        with pytest.raises((FormatError, StoreError), match=store.match):
            TokenDataset(store.reference, seq_len=_T, packing=packing)
        store.put(store.good)
    assert len(TokenDataset(store.reference, seq_len=_T, packing=packing)) > 0


@pytest.mark.parametrize(
    "change", [set_offset(0, 1), set_offset(-1, 1), set_offset(2, 0), set_offset(3, 2**63), set_offset(0, 2**64 - 1)]
)
@pytest.mark.parametrize("packing", ["document_padded", "best_fit"])
def test_offsets_of_a_faulty_writer_are_named(
    packing: str, change: Callable[[NDArray[np.uint64]], None], store: Damaged
) -> None:
    assert_is_named(store, lambda data: with_offsets(data, change), packing=packing)


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_full_verification_names_a_damaged_token(access: str, store: Damaged) -> None:
    header = header_of(store.good)
    for place in (header.tokens_start, header.offsets_start - 1):
        assert_is_named(store, lambda data, at=place: flipped(data, at), verify="full", access=access)  # type: ignore[misc]
    assert_is_named(store, lambda data: flipped(data, header.offsets_start), verify="full", access=access)


@pytest.mark.parametrize("verify", ["open", "full"])
def test_without_maps_of_memory_the_error_names_pread_which_reads_the_same(
    verify: Literal["open", "full"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    path = write_jsonl(tmp_path / "a.jsonl", [f"document {i} " * 20 for i in range(100)])
    monkeypatch.setattr("mmap.mmap", refuse)
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(path)}])
    reference = f"{spec.store}/data@{build(spec).version}"  # a build needs no map
    with pytest.raises(StoreError, match=r'can\'t map files into memory; .*access="pread"'):
        TokenDataset(reference, seq_len=_T)[0]
    unmapped = TokenDataset(reference, seq_len=_T, access="pread", verify=verify)
    rows = [unmapped[i]["input_ids"].tolist() for i in range(len(unmapped))]
    monkeypatch.undo()
    mapped = TokenDataset(reference, seq_len=_T)
    assert rows == [mapped[i]["input_ids"].tolist() for i in range(len(mapped))]


def test_a_damaged_token_is_not_found_without_full_verification(store: Damaged) -> None:
    data, oracle = damaged_data(store)
    first, _ = damaged_samples(oracle)
    store.put(flipped(store.good, header_of(store.good).tokens_start))
    right = oracle.sample(first)["input_ids"]
    assert data[first]["input_ids"].tolist() == [right[0] ^ 1, *right[1:]]
    with pytest.raises(FormatError, match=f"{store.match}.*checksum of its tokens"):
        TokenDataset(store.reference, seq_len=_T, verify="full")[first]


def test_a_token_width_that_contradicts_the_vocabulary_is_named_even_if_all_lengths_fit(tmp_path: Path) -> None:
    lengths = np.full(8, 512, dtype=np.uint32)
    shards = [(np.arange(4096, dtype=np.uint16), lengths)] * _NUM_SHARDS
    reference = write_store(tmp_path, shards, vocab_size=5000)
    path = shard_paths(reference)[_BAD]
    store = Damaged(reference, path, path.read_bytes())
    assert_is_named(store, narrower)


def test_cached_sample_counts_that_contradict_a_shard_are_named(store: Damaged) -> None:
    """A shard is replaced by one with the same numbers of tokens and documents, but other boundaries."""
    assert_is_named(store, lambda data: with_offsets(data, merge_documents), packing="document")


def merge_documents(offsets: NDArray[np.uint64]) -> None:
    """Give all tokens to the last document."""
    offsets[1:-1] = 0


@pytest.mark.parametrize("prefetch", [0, 5])
@pytest.mark.parametrize("num_bytes", [0, 4500])
@pytest.mark.parametrize(("packing", "fields"), [("concat", ()), ("concat", ("document_ids",)), ("document", ())])
def test_pread_names_a_file_that_is_truncated_while_it_is_read(
    packing: str, fields: Sequence[str], num_bytes: int, prefetch: int, store: Damaged
) -> None:
    """The file is truncated in place, and so is a map of it, which must not be read any more."""
    data, oracle = damaged_data(store, packing=packing, fields=fields, access="pread")
    first, end = damaged_samples(oracle)
    for index in range(first, end):
        assert data[index]["input_ids"].tolist() == oracle.sample(index)["input_ids"]
    os.truncate(store.path, num_bytes)
    with pytest.raises(FormatError, match=f"{store.match}.*cut short"):
        data[end - 1]
    with pytest.raises(FormatError, match=store.match):
        list(TokenLoader(data, _BATCH, order="sequential", num_epochs=1, prefetch=prefetch))
    with store.path.open("r+b") as file:
        file.write(store.good)
    assert [data[i]["labels"].tolist() for i in range(len(data))] == [
        oracle.sample(i)["labels"] for i in range(len(oracle))
    ]


def read_with_workers(folder: str) -> None:
    """Check the errors of workers of torch's DataLoader; test_resume.py calls this in a new process."""
    store = made_store(Path(folder))
    data, oracle = damaged_data(store)
    kept = len(oracle) // _BATCH * _BATCH
    expected = [oracle.batch(range(i, i + _BATCH)) for i in range(0, kept, _BATCH)]
    stream = data.iterable(batch_size=_BATCH, order="sequential", num_epochs=1)
    loaders: list[DataLoader[Any]] = [
        DataLoader(data, batch_size=_BATCH, num_workers=2, drop_last=True),  # type: ignore[arg-type]
        DataLoader(stream, batch_size=None, num_workers=2),
    ]
    for loader in loaders:
        store.put(DAMAGES["half"](store.good))
        with pytest.raises(FormatError, match=store.match):
            list(loader)
        store.put(store.good)
        found = [as_lists(batch) for batch in loader]
        assert [{**of_oracle, **batch} for of_oracle, batch in zip(expected, found, strict=True)] == expected
