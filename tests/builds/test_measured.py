"""What build.json says of a version's documents is what its document tables and its input say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.ipc as ipc
import pytest

from tests.builders.datasets import build, build_record, local_store, make_spec, small_spec, write_jsonl, write_parquet
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.statistics import (
    DocumentCounts,
    DocumentStatistics,
    EncodedCounts,
    added,
    count_lengths,
)
from tokenloom.storage.versions.published import load_manifest, read_inputs, version_path


def statistics_of_tables(spec: BuildSpec, version: str) -> dict[str, DocumentStatistics]:
    """Return the statistics of each split, from the document tables."""
    store = local_store(spec.store, spec.dataset)
    manifest = load_manifest(store, version)
    inputs = read_inputs(store, manifest)
    found = {}
    for name, split in manifest.splits.items():
        paths = [store.place(version_path(version, shard.docs_name)) for shard in split.shards]
        rows = [row for path in paths for row in ipc.open_file(path).read_all().to_pylist()]
        counts = [{inputs[row["input"]].source: DocumentCounts(1, row["num_tokens"])} for row in rows]
        lengths = count_lengths(np.array([row["num_tokens"] for row in rows], np.uint32))
        found[name] = DocumentStatistics(lengths, added(counts, {}))
    return found


@pytest.mark.parametrize("deduplicate", [True, False])
def test_the_statistics_of_a_build_are_those_of_its_document_tables(deduplicate: bool, tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    spec = spec.model_copy(update={"documents": spec.documents.model_copy(update={"deduplicate": deduplicate})})
    version = build(spec).version
    assert build_record(local_store(spec.store, "data"), version).statistics == statistics_of_tables(spec, version)


def test_what_was_encoded_counts_the_text_of_all_documents(tmp_path: Path) -> None:
    texts = ["über", "twice", "twice"]
    write_parquet(tmp_path / "a.parquet", texts)
    write_jsonl(tmp_path / "b.jsonl", ["twice", "", "0123"])  # the empty one is filtered
    sources = [
        {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "name": "z"},
        {"kind": "jsonl", "path": str(tmp_path / "b.jsonl"), "name": "a"},
    ]
    spec = make_spec(tmp_path / "store", sources)
    assert build_record(local_store(spec.store, "data"), build(spec).version).encoded == {
        "z": EncodedCounts(documents=3, tokens=18, bytes=15, rows=3),
        "a": EncodedCounts(documents=2, tokens=11, bytes=9, rows=3, filtered=1),
    }
