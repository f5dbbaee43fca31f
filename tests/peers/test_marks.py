"""Marks of other tools: what they leave out by their own files, a build leaves out by the same files."""

from __future__ import annotations

import gzip
import json
import random
import string
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, make_spec, stored_documents
from tests.peers.environments import run_in


def _held(folder: Path, source: dict[str, Any], marks: list[dict[str, Any]], keep: str | None = None) -> Counter[str]:
    """Build; return the texts of the version."""
    rules = {"marks": marks, "keep": keep, "deduplicate": False}
    spec = make_spec(folder / "store", [{"id": "id", **source}], documents=rules)
    version = build(spec).version
    return Counter(document["ids"].tobytes().decode() for document in stored_documents(spec, version))


def _texts(rng: random.Random, count: int) -> list[str]:
    """Return texts of 60 words, of which some are the same as another, or nearly so."""
    words = ["".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(500)]
    texts = [rng.choices(words, k=60) for _ in range(max(2, count // 2))]
    found = [list(rng.choice(texts)) for _ in range(count)]
    for text in found[::3]:
        text[30] = "other"
    return [" ".join(text) for text in found]


def _write_lines(path: Path, texts: list[str], **fields: str) -> Path:
    """Write rows with ids, compressed where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"{path.stem}-{i}", "text": text, **fields} for i, text in enumerate(texts)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _lines(paths: Any) -> Counter[str]:
    """Return the texts of files of JSON lines."""
    lines = (line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines())
    return Counter(json.loads(line)["text"] for line in lines)


#: The four steps of MinHash, with a task for each input file.
_DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
folder, tasks, config = sys.argv[1], int(sys.argv[2]), MinhashConfig(num_buckets=4, hashes_per_bucket=8)
def run(tasks, *steps):
    LocalPipelineExecutor(list(steps), tasks, skip_completed=False, logging_dir=folder + "/logs").run()
run(tasks, JsonlReader(folder + "/in"), MinhashDedupSignature(folder + "/signatures", config))
run(4, MinhashDedupBuckets(folder + "/signatures", folder + "/buckets", config=config))
run(1, MinhashDedupCluster(folder + "/buckets", folder + "/remove", config))
excluded = JsonlWriter(folder + "/removed")
run(tasks, JsonlReader(folder + "/in"), MinhashDedupFilter(folder + "/remove", excluded), JsonlWriter(folder + "/kept"))
"""


def test_positions_and_excluded_documents_of_datatrove_leave_out_what_its_filter_leaves_out(tmp_path: Path) -> None:
    rng, names = random.Random(1), ["a.jsonl", "b.jsonl", "c/c.jsonl", "d.jsonl"]
    shared = _texts(rng, 40)
    for name in names:
        _write_lines(tmp_path / "in" / name, _texts(rng, 1) if name == "b.jsonl" else rng.choices(shared, k=20))
    run_in("datatrove-dedup", _DATATROVE, tmp_path, len(names))
    kept = _lines((tmp_path / "kept").glob("*.gz"))
    positions = sorted(path.name for path in (tmp_path / "remove").glob("*.remove"))
    assert positions == ["000000.remove", "000002.remove", "000003.remove"]
    source = {"kind": "jsonl", "path": str(tmp_path / "in/**/*.jsonl")}
    for path, key in (("remove/*.remove", "row"), ("removed/*.jsonl.gz", "id")):
        assert _held(tmp_path, source, [{"path": str(tmp_path / path), "key": key, "as": "remove"}]) == kept
    assert 10 < kept.total() < 61


#: Taggers, of which one says nothing about some documents; a search for copies; and a mixer that filters by both.
_DOLMA = """
import json, sys
from pathlib import Path
from dolma.cli.__main__ import main
folder = Path(sys.argv[1])
documents = [f"{folder}/documents/*.jsonl.gz"]
def run(command, options):
    (folder / "config.json").write_text(json.dumps(options | {"processes": 1}))
    main(["-c", str(folder / "config.json"), command])
run("tag", {"documents": documents, "taggers": ["char_length_v1", "gopher_v1"], "experiment": "exp"})
run("dedupe", {"documents": documents, "dedupe": {"name": "copies", "documents": {
        "key": "$.text", "attribute_name": "seen"}},
    "bloom_filter": {"file": f"{folder}/bloom", "size_in_bytes": 10**5, "read_only": False,
        "estimated_doc_count": 1000, "desired_false_positive_rate": 1e-6}})
def pattern(name, rule):
    return f"$.attributes[?(@.{name} && @.{name}[0] && @.{name}[0][2] {rule})]"
run("mix", {"streams": [{"name": "kept", "documents": documents, "attributes": ["exp", "copies"],
    "output": {"path": f"{folder}/kept", "max_size_in_bytes": 10**6},
    "filter": {"include": [pattern("exp__char_length_v1__length", ">= 8")], "exclude": [pattern("seen", ">= 1"),
        pattern("exp__gopher_v1__fraction_of_characters_in_most_common_2grams", ">= 0.9")]}}]})
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="dolma 1.2.1 has no wheel for Python 3.13")
def test_attributes_of_dolma_keep_what_its_mixer_keeps(tmp_path: Path) -> None:
    rng = random.Random(2)
    times = {"added": "2026-01-01T00:00:00.000Z", "created": "2026-01-01T00:00:00.000Z", "source": "web"}
    # the first file, and the first lines of the others, have no copies and few words
    files = {
        "a": ["one", "two words", "same same same same"],
        "b": ["alone", *rng.choices(["x y", "more words here", "same same same same"], k=20), "single-word"],
        "c": [" ".join(rng.choices("ab", k=rng.randrange(1, 9))) for _ in range(40)],
    }
    for name, texts in files.items():
        _write_lines(tmp_path / f"documents/{name}.jsonl.gz", texts, **times)
    run_in("dolma", _DOLMA, tmp_path)
    kept = _lines((tmp_path / "kept").glob("*.gz"))
    source = {"kind": "jsonl", "path": str(tmp_path / "documents/*.jsonl.gz")}
    marks = [{"path": str(tmp_path / f"attributes/{name}/*.jsonl.gz"), "key": "id"} for name in ("exp", "copies")]
    grams = "exp__gopher_v1__fraction_of_characters_in_most_common_2grams"
    keep = f"exp__char_length_v1__length >= 8 and not (seen >= 1 or {grams} >= 0.9)"
    assert _held(tmp_path, source, marks, keep) == kept
    assert 5 < kept.total() < 40


#: Finds duplicates by similarities, in a stage that is loaded alone as its package needs a GPU; removes by two lists.
_CURATOR = """
import importlib.util, json, sys
from pathlib import Path
import pandas
from nemo_curator.backends.ray_data import RayDataExecutor
from nemo_curator.stages.text.deduplication import TextDuplicatesRemovalWorkflow
from nemo_curator.stages.text.deduplication.removal import TextDuplicatesRemovalStage
from nemo_curator.tasks import DocumentBatch, FileGroupTask
folder = Path(sys.argv[1])
(file,) = Path(sys.prefix).glob("lib/*/site-packages/nemo_curator/stages/deduplication/semantic/identify_duplicates.py")
spec = importlib.util.spec_from_file_location("identify_duplicates", file)
module = sys.modules["identify_duplicates"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
(folder / "duplicates").mkdir()
tasks = [FileGroupTask("web", data=[str(path)]) for path in sorted((folder / "pairwise").iterdir())]
module.IdentifyDuplicatesStage(str(folder / "duplicates"), eps=0.1).process_batch(tasks)
TextDuplicatesRemovalWorkflow(str(folder / "in"), str(folder / "duplicates"), str(folder / "kept"), id_field="id",
    input_files_per_partition=1, output_filetype="jsonl").run(RayDataExecutor())
found = {"semantic": [json.loads(line)["text"] for path in (folder / "kept").iterdir() for line in path.open()]}
stage = TextDuplicatesRemovalStage(str(folder / "ExactDuplicateIds"), duplicate_id_field="_curator_dedup_id")
batches = [DocumentBatch("web", data=pandas.read_parquet(path)) for path in (folder / "in").iterdir()]
found["exact"] = [text for batch in batches for text in stage.process(batch).to_pandas()["text"]]
(folder / "found.json").write_text(json.dumps(found))
"""


def test_id_lists_of_curator_leave_out_what_its_removal_leaves_out(tmp_path: Path) -> None:
    rng = random.Random(3)
    for name in ("in", "pairwise", "ExactDuplicateIds"):
        (tmp_path / name).mkdir()
    for part, name in enumerate(("a", "b")):
        ids = [f"{name}{i}" for i in range(30)]
        numbers = range(part * 30, part * 30 + 30)
        texts = {"text": [f"text {i}" for i in ids], "id": ids, "_curator_dedup_id": numbers}
        pq.write_table(pa.table(texts), tmp_path / f"in/{name}.parquet")
        scores = pa.array([rng.random() * 0.3 + 0.7 for _ in ids], pa.float32())
        pairs = {"id": ids, "max_id": rng.sample(ids, 30), "cosine_sim_score": scores}
        pq.write_table(pa.table(pairs), tmp_path / f"pairwise/cluster_{part}.parquet")
        # the stage that writes this needs a GPU: one column, numbers that Curator gave, sorted
        found = pa.table({"_curator_dedup_id": sorted(rng.sample(numbers, 8))})
        pq.write_table(found, tmp_path / f"ExactDuplicateIds/part.{part}.parquet")
    run_in("curator", _CURATOR, tmp_path)
    kept = json.loads((tmp_path / "found.json").read_text())
    path = str(tmp_path / "in/*.parquet")
    for name, id_, folder in (
        ("semantic", "id", "duplicates"),
        ("exact", "_curator_dedup_id", "ExactDuplicateIds"),
    ):
        marks = {"path": str(tmp_path / f"{folder}/*.parquet"), "key": "id", "as": "remove"}
        assert _held(tmp_path, {"kind": "parquet", "path": path, "id": id_}, [marks]) == Counter(kept[name])
        assert 30 < len(kept[name]) < 60
