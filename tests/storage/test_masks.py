"""Masks: spills with classes and without become shards whose masks are those of a plain computation."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.datasets import open_documents
from tests.counts import count
from tests.storage.test_spill import NUM_SPLITS, make_documents
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.formats.shard import open_shard
from tokenloom.storage.formats.statistics import DocumentCounts
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.work.records import (
    Assignment,
    ShardRange,
    ShardRecord,
    SpillEntry,
    find_work_records,
    shard_record_path,
    write_assignment,
)
from tokenloom.storage.work.spill import SpillDocuments, write_spill
from tokenloom.tasks.building import merge
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.building.shuffle import shuffle_shard
from tokenloom.tasks.rules import RowRules

PROPERTY = settings(max_examples=count(40, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture])
VERSION = "0" * 16
EOT, MAX_DOCUMENTS = 0, 40


@pytest.fixture(autouse=True)
def _small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather documents in several reads and several writes."""
    monkeypatch.setattr(merge, "GAP_BYTES", 12)
    monkeypatch.setattr(merge, "WRITE_TOKENS", 20)


def documents_of(number: int, num_documents: int, has_classes: bool, copies: bool) -> SpillDocuments:
    """Return documents of one partition; `copies`: with the contents and keys that those of every partition have."""
    made = make_documents(MAX_DOCUMENTS, 63, 0 if copies else number + 1, np.uint16)
    first = {name: getattr(made, name)[:num_documents] for name in ("split", "key", "content", "row", "num_tokens")}
    first["num_tokens"] += np.uint32(1)  # every document has at least one token
    tokens = np.random.default_rng(number).integers(0, 500, int(first["num_tokens"].sum())).astype(np.uint16)
    made = SpillDocuments(
        **first, tokens=tokens, id_bytes=np.zeros(num_documents, np.uint32), ids=np.empty(0, np.uint8)
    )
    classes = np.random.default_rng(number).integers(0, 256, len(tokens)).astype(np.uint8)
    return replace(made, classes=classes) if has_classes else made


Documents = dict[tuple[int, int, int, int, int], tuple[list[int], list[int]]]  # by place in the order: ids, classes


def reference(partitions: list[SpillDocuments], split: int, deduplicate: bool) -> Documents:
    """Return the documents of a split by (key, content, partition, row): ids and classes, without any index."""
    found: Documents = {}
    for number, documents in enumerate(partitions):
        ends = np.cumsum(documents.num_tokens, dtype=np.int64).tolist()
        classes = documents.classes if documents.classes is not None else np.full(len(documents.tokens), TEXT_CLASS)
        for i, end in enumerate(ends):
            part = slice(end - int(documents.num_tokens[i]), end)
            high, low = documents.content[i].tolist()
            place = int(documents.key[i]), high, low, number, int(documents.row[i])
            if documents.split[i] == split:
                found[place] = documents.tokens[part].tolist(), classes[part].tolist()
    ordered = dict(sorted(found.items()))
    if not deduplicate:
        return ordered
    firsts: dict[tuple[int, ...], tuple[int, int, int, int, int]] = {}
    for place in ordered:
        firsts.setdefault(place[:3], place)
    return {place: ordered[place] for place in firsts.values()}


def shuffle(
    folder: Path, partitions: list[SpillDocuments], split: int, has_classes: bool, deduplicate: bool = True
) -> tuple[LocalStore, ShardRecord]:
    """Write the spills, and shuffle all documents of a split into one shard."""
    store = LocalStore(folder)
    entries = []
    for number, documents in enumerate(partitions):
        name = f"{number:016x}"
        counts = write_spill(store, name, 0, documents, NUM_SPLITS, {})
        entries.append(SpillEntry(name, 0, counts.bytes, counts.checksum, number, 0))
    shard = ShardRange("train", split, 0, 0, 2**64, 1000, 100)
    totals = {"train": DocumentCounts(1, 1)}
    assignment = Assignment(entries, [shard], totals, 0, 0, {}, ["books"], {})
    digest = write_assignment(store, VERSION, assignment).digest
    tokenizer = TokenizerEntry(kind="byte", name="bytes", fingerprint="0" * 64, vocab_size=500, eot_id=EOT)
    rules = RowRules(0, None, 2**20, "fail", None, deduplicate, 0, [("train", 1.0)])
    build = Build(store, "data", VERSION, tokenizer, {}, rules, has_classes=has_classes)
    shuffle_shard(build, digest, 0)
    (record,) = find_work_records(store, [shard_record_path(VERSION, shard.name)], ShardRecord).values()
    return store, record


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(0, MAX_DOCUMENTS), st.booleans(), st.booleans()), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, NUM_SPLITS - 1),
)
def test_masks_are_those_of_a_plain_computation(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, bool, bool]], deduplicate: bool, split: int
) -> None:
    partitions = [documents_of(number, *given) for number, given in enumerate(made)]
    right = reference(partitions, split, deduplicate)
    store, record = shuffle(tmp_path_factory.mktemp("masks"), partitions, split, True, deduplicate)
    shard = open_shard(store.local(f"versions/{VERSION}/train/000000.tok"), "full")
    mask = store.read(f"versions/{VERSION}/train/000000.mask")
    assert shard.tokens.tolist() == [token for ids, _ in right.values() for token in ids]
    assert list(mask) == [value for _, classes in right.values() for value in classes]
    assert record.statistics.classes == {str(value): mask.count(value) for value in sorted(set(mask))}
    entry = record.files[".mask"]
    assert entry == {"bytes": len(mask), "sha256": hashlib.sha256(mask).hexdigest()}
    table = open_documents(store.local(f"versions/{VERSION}/train/000000.docs"))
    assert table["classes"].to_pylist() == [xxhash.xxh3_64_intdigest(bytes(classes)) for _, classes in right.values()]


@pytest.mark.parametrize("damage", ["none", "cut", "flipped", "missing"])
def test_a_shard_is_written_again_if_its_mask_was_damaged_meanwhile(damage: str, tmp_path: Path) -> None:
    documents = documents_of(0, 30, has_classes=True, copies=False)
    split = int(documents.split[0])
    store, record = shuffle(tmp_path, [documents], split, has_classes=True)
    names = [f"versions/{VERSION}/{name}" for name in record.listed]
    before = {name: store.read(name) for name in names}
    (mask,) = (name for name in names if name.endswith(".mask"))
    data = before[mask]
    inode = store.local(mask).stat().st_ino
    if damage == "missing":
        store.remove(mask)
    elif damage != "none":
        store.local(mask).write_bytes(data[:-1] + bytes([data[-1] ^ 1]) * (damage == "flipped"))
    _, again = shuffle(tmp_path, [documents], split, has_classes=True)
    assert again == record
    assert {name: store.read(name) for name in names} == before
    assert (store.local(mask).stat().st_ino == inode) == (damage == "none")
