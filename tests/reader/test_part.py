"""Parts of a split: by keys, disjoint and nested, in every packing; in states and in where."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import build, make_spec, write_parquet
from tests.counts import count
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.sightings import ShardTokens, find_sightings
from tokenloom.reader.streams.ranks import DataRank, Steps
from tokenloom.reader.streams.stream import Stream
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.packing.packings import PACKINGS
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard

#: the key, the content and the tokens of each document, by shard
Documents: TypeAlias = list[list[tuple[int, str, list[int]]]]

_RUN = settings(max_examples=count(20, 1000), deadline=None)
_T = 32
_BOUNDS = st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True).map(sorted)


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    texts = [f"{i}: " + "wörd " * (i * 7 % 13) for i in range(400)]
    write_parquet(folder / "parts.parquet", texts, group_rows=90)
    source = {"kind": "parquet", "path": str(folder / "parts.parquet")}
    spec = make_spec(folder / "parts", [source], splits={"train": 1.0}, shard_tokens=3000)
    return f"{spec.store}/data@{build(spec).version}"


@pytest.fixture(scope="module")
def documents(reference: str) -> Documents:
    tables = VersionTables(*resolve(parse_reference(reference)))
    found = []
    for entry in tables.manifest.splits["train"].shards:
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        tokens, offsets = shard.tokens(0, entry.tokens).tolist(), shard.offsets.tolist()
        for batch in tables.open(entry).batches():
            digits = [content_digits(content) for content in batch.content]
            texts = [tokens[start:end] for start, end in itertools.pairwise(offsets)]
            found.append(list(zip(batch.key.tolist(), digits, texts, strict=True)))
    return found


def inside(documents: Documents, part: Sequence[float]) -> Documents:
    low, high = (int(Fraction(repr(float(bound))) * 2**64) for bound in part)
    return [[document for document in shard if low <= document[0] < high] for shard in documents]


@_RUN
@given(_BOUNDS)
def test_a_part_has_the_documents_whose_keys_lie_in_it(
    reference: str, documents: Documents, bounds: list[float]
) -> None:
    expected = [document for shard in inside(documents, bounds) for document in shard]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part may be empty
        data = TokenDataset(reference, seq_len=_T, packing="document_padded", part=bounds)
    traced = [data.trace(i, 0)["samples"][0]["documents"] for i in range(len(data))]
    found = dict.fromkeys(document["content"] for sample in traced for document in sample)
    assert list(found) == [content for _, content, _ in expected]
    assert data.num_tokens == sum(len(tokens) for *_, tokens in expected)


@pytest.mark.parametrize("part", [(0, 1), (0.0, 0.37), (0.37, 0.8), (0.5, 0.501)])
def test_samples_of_concat_are_those_of_the_runs_of_tokens(
    reference: str, documents: Documents, part: tuple[float, float]
) -> None:
    data = TokenDataset(reference, seq_len=_T, part=part, mask_documents=True)
    expected = []
    for shard in inside(documents, part):
        tokens = [token for *_, text in shard for token in text]
        expected += [tokens[start : start + _T + 1] for start in range(0, len(tokens) - _T, _T)]
    assert len(data) == len(expected)
    for sample, row in zip(data[:], expected, strict=True):
        assert sample["input_ids"].tolist() == row[:-1]
        assert all(label in (-100, token) for label, token in zip(sample["labels"].tolist(), row[1:], strict=True))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_loader_reads_a_part_in_every_packing(reference: str, documents: Documents, packing: str) -> None:
    part = (0.2, 0.7)
    data = TokenDataset(reference, seq_len=_T, packing=packing, part=part)
    read = [batch["input_ids"][0].tolist() for batch in TokenLoader(data, 1, seed=3, num_epochs=1)]
    assert sorted(read) == sorted(sample["input_ids"].tolist() for sample in data[:])
    assert data.packing_shares().num_samples == len(data) == len(read)
    assert data.packing_shares().num_documents >= sum(map(len, inside(documents, part)))
    whole = TokenDataset(reference, seq_len=_T, packing=packing)
    everything = TokenDataset(reference, seq_len=_T, packing=packing, part=(0, 1))
    assert [sample["input_ids"].tolist() for sample in whole[:]] == [s["input_ids"].tolist() for s in everything[:]]


def test_a_state_has_the_part_and_reopens_it(reference: str) -> None:
    data = TokenDataset(reference, seq_len=_T, part=(0.2, 0.7))
    loader = TokenLoader(data, 2, seed=3)
    next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = TokenLoader.from_state(str(Path(reference).parent), state, 2)
    assert (next(resumed)["input_ids"] == next(loader)["input_ids"]).all()
    with pytest.raises(TokenloomError, match=r"part is \[0\.2, 0\.7\] in the state, None in the loader"):
        TokenLoader(TokenDataset(reference, seq_len=_T), 2, seed=3).load_state_dict(state)
    for one in (loader, resumed):
        one.close()


def test_where_finds_documents_of_the_part_alone(reference: str, documents: Documents) -> None:
    part = (0.2, 0.7)
    for packing in ("concat", "document_padded"):
        data = TokenDataset(reference, seq_len=_T, packing=packing, part=part)
        stream = Stream(data, "block", 0, None)
        steps = Steps(DataRank(0, 1, "test"), 1, None)
        for number, shard in enumerate(documents):
            ends = np.cumsum([len(tokens) for *_, tokens in shard]).tolist()
            for end, document in zip(ends, shard, strict=True):
                tokens = [ShardTokens(number, end - len(document[2]), end)]
                version = data.shards.manifest.version
                seen = find_sightings(stream, version, "train", tokens, steps, range(1))
                if packing == "document_padded":
                    assert bool(seen) == (document in inside([[document]], part)[0])
                for sighting in seen:
                    traced = data.trace(sighting["sample"], 0)["samples"][0]["documents"]
                    assert document[1] in [each["content"] for each in traced]


@pytest.mark.parametrize("part", [(0.5, 0.5), (0.7, 0.2), (-0.1, 1), (0, 1.5), (0, float("nan")), (0.5,)])
def test_parts_that_are_none_are_refused(reference: str, part: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="part must be \\(start, end\\) with 0 <= start < end <= 1"):
        TokenDataset(reference, seq_len=_T, part=part)


def test_an_empty_part_says_so(reference: str) -> None:
    with pytest.warns(UserWarning, match=r"part \(0\.5, 0\.50001\): no samples"):
        TokenDataset(reference, seq_len=_T, part=(0.5, 0.50001))
