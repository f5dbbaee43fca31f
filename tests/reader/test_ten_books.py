"""Ten books in few shards: the samples of a batch come from many places."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.builders.datasets import build, make_spec
from tokenloom import TokenDataset, TokenLoader


def test_samples_of_a_batch_come_from_many_places_of_many_books(tmp_path: Path, data_dir: Path) -> None:
    source = {"kind": "parquet", "path": f"{data_dir}/longdocs/gutenberg.parquet", "text": "text"}
    spec = make_spec(tmp_path, [source], shard_tokens=2_000_000, splits={"train": 1.0})
    reference = f"{tmp_path}/data@{build(spec).version}"
    data = TokenDataset(reference, seq_len=512, fields=["document_ids"])
    documents = np.concatenate([data.shards[i].document_offsets[:-1] for i in range(len(data.counts))])
    assert len(documents) == 10
    for order in ("block", "full"):
        stream = TokenLoader(data, 16, order=order, seed=1).stream
        books, neighbours = [], 0
        for batch in range(50):
            indices = stream.window(np.arange(16 * batch, 16 * batch + 16), 16).parts[0].rows
            places = list(zip(indices.shards.tolist(), indices.starts.tolist(), strict=True))
            found = {(s, int(np.searchsorted(data.shards[s].document_offsets, at, side="right"))) for s, at in places}
            books.append(len(found))
            neighbours += sum((s, at + 512) in places for s, at in places)
        assert np.mean(books) >= 5  # of at most 10; in natural order it is 1.0
        assert neighbours <= 5  # of 800 samples; in natural order 750
