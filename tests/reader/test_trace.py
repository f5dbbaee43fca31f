"""Traces: the documents of batches, and the batches of documents, against source texts, loaders and brute force."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import build, make_spec, open_documents, write_jsonl, write_parquet
from tests.counts import count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.sightings import ShardTokens, find_sightings
from tokenloom.reader.streams.order import ORDERS, Order
from tokenloom.reader.streams.ranks import DataRank, Steps
from tokenloom.reader.streams.stream import Stream
from tokenloom.reader.trace import (
    Trace,
    TracedSample,
    step_position,
    trace_samples,
    trace_step,
)
from tokenloom.storage.packing.packings import PACKINGS

_RUN = settings(max_examples=count(60, 1000), deadline=None)
_T = 32
_EOT = 255  # of the byte tokenizer


@dataclass(frozen=True)
class Built:
    """A version, and the text of each source row: {(source, path, row): text}."""

    reference: str
    texts: dict[tuple[str, str, int], str]

    def dataset(self, packing: str = "concat", **options: Any) -> TokenDataset:
        return TokenDataset(self.reference, seq_len=_T, packing=packing, **options)


def _build(folder: Path, seed: int) -> Built:
    rng = random.Random(seed)
    texts = [f"{seed} {i}: " + "wörd " * rng.choice([0, 1, 2, 5, 9, 30]) for i in range(260)]
    write_parquet(folder / "a.parquet", texts[:180], group_rows=50)
    write_jsonl(folder / "b.jsonl", texts[180:])
    sources = [
        {"kind": "parquet", "path": str(folder / "a.parquet"), "name": "a"},
        {"kind": "jsonl", "path": str(folder / "b.jsonl"), "name": "b", "id": "text"},
    ]
    spec = make_spec(folder / "store", sources, splits={"train": 1.0}, shard_tokens=3000, seed=seed)
    lines = (folder / "b.jsonl").read_bytes().splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)]).tolist()
    rows = {("a", "a.parquet", i): text for i, text in enumerate(texts[:180])}
    rows |= {("b", "b.jsonl", start): text for start, text in zip(starts, texts[180:], strict=False)}
    return Built(f"{spec.store}/data@{build(spec).version}", rows)


@pytest.fixture(scope="module")
def built(folder: Path) -> Built:
    return _build(folder / "trace_a", 1)


@pytest.fixture(scope="module")
def other(folder: Path) -> Built:
    return _build(folder / "trace_b", 2)


@_RUN
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any),
    st.sampled_from(ORDERS),
    st.integers(0, 99),
    st.none() | st.integers(1, 70),
    st.integers(0, 2**20),
)
def test_positions_are_the_inverse_of_samples_in_each_order(
    counts: list[int], name: str, seed: int, lanes: int | None, epoch: int
) -> None:
    order = Order(name, np.array(counts), seed, lanes)
    positions = np.arange(epoch * order.num_samples, (epoch + 1) * order.num_samples)
    assert (order.positions(order.samples(positions), epoch) == positions).all()


# ---- samples to documents


def _source(packing: str, built: Built, other: Built) -> TokenDataset | Mixture:
    """Return the dataset of a packing, or a mixture of two."""
    if packing != "mixture":
        return built.dataset(packing)
    members = {"a": (built.dataset("best_fit"), 2), "b": (other.dataset("best_fit"), 1)}
    return Mixture(members, [(500, {"a": 1, "b": 3})])


def _assert_is_row(
    sample: TracedSample, row: Sequence[int], texts: Mapping[tuple[str, str, int], str], multiple: int
) -> None:
    """Assert that the documents of a sample, cut as it says, are the tokens of a row without its padding.

    Each begins at a multiple of `multiple`, behind the padding of the one before.
    """
    end = 0
    for document in sample["documents"]:
        text = texts[document["source"], document["path"], document["row"]]
        ids = [*text.encode(), _EOT]
        start, begin = document["start"], document["document_start"]
        assert (start, document["num_tokens"]) == (-(-end // multiple) * multiple, len(ids))
        end = document["end"]
        assert row[start:end] == ids[begin : begin + end - start]
        shown = bytes(ids[begin : begin + end - start]).removesuffix(bytes([_EOT])).decode(errors="replace")
        assert document["text"] == shown[:300]
        assert document.get("id") == (text if document["source"] == "b" else None)
    assert end == len(row)


def _rows(batch: Mapping[str, Any]) -> list[list[int]]:
    """Return the rows of a batch, T + 1 tokens each, without padding: labels there are -100."""
    rows = []
    for inputs, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        num_labels = max((i + 1 for i, label in enumerate(labels) if label != -100), default=0)
        rows.append([*inputs[:num_labels], labels[num_labels - 1]])
    return rows


@pytest.mark.parametrize(
    ("packing", "order"), [*zip([*PACKINGS, "mixture", "best_fit_pad8"], itertools.cycle(ORDERS), strict=False)]
)
def test_a_trace_agrees_with_the_batches_and_leads_back_to_them(
    built: Built, other: Built, packing: str, order: str
) -> None:
    source = _source(packing, built, other)
    texts = built.texts | other.texts if packing == "mixture" else built.texts
    texts_of = {"a": built.texts, "b": other.texts}
    rng = random.Random(f"{packing} {order}")
    for _ in range(3):
        world_size, batch_size, seed = rng.randint(1, 5), rng.randint(1, 6), rng.randint(0, 9)
        rank = rng.randrange(world_size)
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "seed": seed, "order": order}
        loader = TokenLoader(source, batch_size, prefetch=0, **options)
        for _ in range(count(5, 334)):
            step = rng.randrange(9000 // (batch_size * world_size))
            loader.load_state_dict({**loader.state_dict(), "samples": step * batch_size * world_size})
            samples = json.loads(json.dumps(loader.trace(step)))["samples"]
            for index, (sample, row) in enumerate(zip(samples, _rows(next(loader)), strict=True)):
                own = texts_of[sample["member"]] if "member" in sample else texts
                _assert_is_row(sample, row, own, loader.stream.format.pad_documents)
                assert sample["rank"] == rank
                _assert_leads_back(loader, source, sample, step, index)


def _assert_leads_back(
    loader: TokenLoader, source: TokenDataset | Mixture, sample: TracedSample, step: int, index: int
) -> None:
    """Assert that each document of a traced sample is seen in that row of that step's batch."""
    data = source.datasets[sample["member"]] if isinstance(source, Mixture) else source
    documents = _documents_of(data.reference)
    position = loader.steps.positions(step * loader.steps.samples, 1)[index]
    for document in sample["documents"]:
        tokens = [documents[document["content"]]]
        _, own = loader.stream.turns(np.array([position]))
        epoch = int(own[0]) // len(data)
        version = data.shards.manifest.version
        seen = find_sightings(loader.stream, version, "train", tokens, loader.steps, range(epoch, epoch + 1))
        place = {"epoch": epoch, "step": step, "rank": loader.ranks.rank, "index": index, "position": position}
        here = [each for each in seen if each["position"] == position]
        assert here == [
            {**place, "sample": sample["sample"]} | ({"member": sample["member"]} if "member" in sample else {})
        ]


@cache
def _documents_of(reference: str) -> dict[str, ShardTokens]:
    """Return the tokens of each content of a version in its shard, from the document tables."""
    store, _, version = reference.partition("@")
    found: dict[str, ShardTokens] = {}
    for shard, path in enumerate(sorted(Path(store, "versions", version, "train").glob("*.docs"))):
        for row in open_documents(path).to_pylist():
            found[row["content"].hex()] = ShardTokens(shard, row["start"], row["start"] + row["num_tokens"])
    return found


@pytest.mark.parametrize("packing", PACKINGS)
def test_sightings_of_a_document_are_all_samples_that_have_it(built: Built, packing: str) -> None:
    data = built.dataset(packing)
    samples_of: dict[str, list[int]] = {}
    for index, sample in enumerate(trace_samples(data, np.arange(len(data)), chars=0)):
        assert sample["sample"] == index
        for document in sample["documents"]:
            assert document["text"] is None
            samples_of.setdefault(document["content"], []).append(index)
    stream, steps = Stream(data, "full", 3, None), Steps(DataRank(0, 3, "test"), 2, None)
    version = data.shards.manifest.version
    for content, tokens in _documents_of(data.reference).items():
        seen = find_sightings(stream, version, "train", [tokens], steps, range(2, 4))
        expected = sorted(set(samples_of.get(content, [])))
        for epoch in (2, 3):
            assert sorted(each["sample"] for each in seen if each["epoch"] == epoch) == expected
        assert seen == sorted(seen, key=lambda each: each["position"])
        assert find_sightings(stream, version, "test", [tokens], steps, range(1)) == []


# ---- arguments out of range, damage, and remote stores


def test_steps_and_samples_out_of_range_are_refused(built: Built) -> None:
    data = built.dataset()
    assert data.trace(-1) == data.trace(len(data) - 1)
    with pytest.raises(IndexError, match=f"sample {len(data)} is outside of a dataset"):
        data.trace(len(data))
    assert len(data) % 4
    loader = TokenLoader(data, 4, num_epochs=1, drop_last=False)
    assert len(loader.trace(len(loader) - 1)["samples"]) == len(data) % 4  # without padding
    with pytest.raises(IndexError, match="past the last epoch, which ends after"):
        loader.trace(len(loader))
    with pytest.raises(ValueError, match="step must be at least 0"):
        loader.trace(-1)
    with pytest.raises(IndexError, match=r"past the last position of a stream, 2\*\*62"):
        TokenLoader(data, 4).trace(2**61)


def test_all_ranks_together_are_one_range_of_the_stream(built: Built) -> None:
    stream = Stream(built.dataset(), "block", 5, None)
    steps = Steps(DataRank(0, 3, "test"), 2, None)
    found = trace_step(stream, steps, step_position(steps, 4, start=7), range(3), 0)
    assert [sample["rank"] for sample in found] == [0, 0, 1, 1, 2, 2]
    assert {sample["sample"] for sample in found} == set(stream.members[None].order.samples(np.arange(31, 37)).tolist())


def _copied(built: Built, folder: Path) -> tuple[TokenDataset, Path]:
    """Return a dataset over a copy of a store, and the folder of its shards."""
    store, _, version = built.reference.partition("@")
    shutil.copytree(store, folder / "data")
    return TokenDataset(f"{folder}/data@{version}", seq_len=_T), folder / "data" / "versions" / version / "train"


def test_a_damaged_document_table_is_named(built: Built, tmp_path: Path) -> None:
    data, shards = _copied(built, tmp_path)
    tables = sorted(shards.glob("*.docs"))
    good = tables[0].read_bytes()
    tables[0].write_bytes(good[: len(good) // 2])
    with pytest.raises(FormatError, match=r"000000\.docs: not a readable document table"):
        data.trace(0)
    tables[0].write_bytes(tables[1].read_bytes())
    with pytest.raises(FormatError, match=r"000000\.docs: .*number of rows; restore it"):
        data.trace(0)
    tables[0].unlink()
    with pytest.raises(StoreError, match=r"000000\.docs: missing from a published version; `tokenloom verify "):
        data.trace(0)
    assert data.trace(len(data) - 1) == built.dataset().trace(len(data) - 1)  # other shards are not read


def test_a_trace_of_a_remote_store_reads_ranges_and_downloads_no_shard(
    built: Built, s3_url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, _, version = built.reference.partition("@")
    upload(s3_url, Path(store), "traced/data")
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    data = TokenDataset(f"s3://{BUCKET}/traced/data@{version}", seq_len=_T)
    expected: Trace = TokenLoader(built.dataset(), 4, world_size=2, rank=1).trace(3)
    assert TokenLoader(data, 4, world_size=2, rank=1).trace(3) == expected
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 3000]
