"""Plain helpers for tests: specs, small inputs, builds, and the contents of a version."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.flows.direct import build_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.manifest import BUILD
from tokenloom.storage.formats.shard import open_shard
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.build_record import BuildRecord, decode_build
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.storage.versions.references import dataset_store
from tokenloom.tasks.building.publish import BuildResult


def make_spec(store: Path | str, sources: Sequence[dict[str, Any]], **fields: Any) -> BuildSpec:
    """Return a spec of dataset `data` with the byte tokenizer and no report, unless `fields` say otherwise.

    A report takes longer than such a build, and has tests of its own.
    """
    required = {"dataset": "data", "store": str(store), "sources": list(sources), "tokenizer": {"kind": "byte"}}
    return BuildSpec.model_validate(required | {"report": False} | fields)


def source(path: Path, **options: Any) -> dict[str, Any]:
    """Return a source of the kind that the file's suffix names."""
    return {"kind": path.suffix[1:], "path": str(path), **options}


def build(spec: BuildSpec, num_workers: int = 0) -> BuildResult:
    """Build without Prefect, in this process unless `num_workers` says otherwise."""
    return build_directly(spec, num_workers)


def write_parquet(path: Path, texts: Sequence[str | None], *, group_rows: int = 1000) -> Path:
    """Write one text column, with a number column beside it."""
    table = pa.table({"text": pa.array(texts, pa.string()), "number": pa.array(range(len(texts)), pa.int64())})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group_rows)
    return path


def write_jsonl(path: Path, texts: Sequence[str], key: str = "text") -> Path:
    """Write JSON lines with one key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def small_spec(folder: Path, **fields: Any) -> BuildSpec:
    """Return a spec of a few documents of three kinds of sources, in three splits, whose files it writes."""
    texts = [f"document {i}, said {i % 7} times" * (1 + i % 5) for i in range(40)]
    write_parquet(folder / "a.parquet", [*texts[:20], "twice"], group_rows=8)
    write_jsonl(folder / "b.jsonl", texts[15:])
    (folder / "c.txt").write_text("one text file\n")
    sources = [
        {"kind": "parquet", "path": str(folder / "a.parquet")},
        {"kind": "jsonl", "path": str(folder / "b.jsonl")},
        {"kind": "text", "path": str(folder / "c.txt")},
    ]
    splits = {"train": 0.6, "validation": 0.2, "test": 0.2}
    return make_spec(folder / "store", sources, splits=splits, shard_tokens=800, **fields)


@cache
def small_hashes() -> dict[str, str]:
    """Return the listed files of the version of `small_spec`, as of a build that nothing disturbed."""
    with tempfile.TemporaryDirectory() as folder:
        spec = small_spec(Path(folder))
        return listed_files(spec, build(spec).version)


def lines_spec(folder: Path, texts: Sequence[str], **fields: Any) -> BuildSpec:
    """Return a spec of one file of JSON lines, `folder`/a.jsonl, which it writes, with the store beside it."""
    path = write_jsonl(folder / "a.jsonl", texts)
    return make_spec(folder / "store", [{"kind": "jsonl", "path": str(path)}], **fields)


def local_store(store: str, dataset: str) -> LocalStore:
    """Return the folder of a dataset in a local store."""
    found = dataset_store(store, dataset)
    assert isinstance(found, LocalStore)
    return found


def manifest_json(store: Store, version: str) -> dict[str, Any]:
    """Return the JSON of a version's manifest, checked."""
    return load_manifest(store, version).json()


def build_record(store: Store, version: str) -> BuildRecord:
    """Return the build.json of a version."""
    return decode_build(store.read(version_path(version, BUILD)), BUILD)


def listed_files(spec: BuildSpec, version: str, suffix: str = "") -> dict[str, str]:
    """Return {name: SHA-256} of every file that the version's manifest lists, and the manifest itself."""
    store = dataset_store(spec.store, spec.dataset)
    manifest = load_manifest(store, version)
    names = ["manifest.json", *manifest.files]
    for split in manifest.splits.values():
        for shard in split.shards:
            names += shard.listed
    hashes = {name: hashlib.sha256(store.read(version_path(version, name))).hexdigest() for name in names}
    return {name: value for name, value in hashes.items() if name.endswith(suffix)}


def open_documents(path: Path) -> pa.Table:
    """Return the document table at `path`, mapped."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def stored_documents(spec: BuildSpec, version: str) -> list[dict[str, Any]]:
    """Return every document of a version, read with the shards alone: {"split", "ids", "source", "path", "row"}.

    `ids` is an array without the end-of-text id at its end. With the `id` of its row if the version has ids.
    """
    store = local_store(spec.store, spec.dataset)
    manifest = load_manifest(store, version)
    inputs = json.loads(store.read(version_path(version, "inputs.json")))["inputs"]
    documents = []
    for split, entry in manifest.splits.items():
        for item in entry.shards:
            path = store.local(version_path(version, item.name))
            shard = open_shard(path, verify="full")
            offsets = shard.document_offsets.tolist()
            for i, row in enumerate(open_documents(path.with_suffix(".docs")).to_pylist()):
                ids = shard.tokens[offsets[i] : offsets[i + 1] - 1]
                source = inputs[row["input"]]
                place = {"source": source["source"], "path": source["path"], "row": row["row"]}
                documents.append({"split": split, "ids": ids, **place} | ({"id": row["id"]} if "id" in row else {}))
    return documents


def stored_texts(spec: BuildSpec, version: str) -> list[str]:
    """Return the texts of a version of the byte tokenizer, sorted."""
    return sorted(document["ids"].tobytes().decode() for document in stored_documents(spec, version))


def built_alone(spec: BuildSpec, folder: Path) -> dict[str, str]:
    """Build a spec into a new store in `folder`; return its listed files, as of a build that nothing disturbed."""
    alone = spec.model_copy(update={"store": str(folder / "alone")})
    return listed_files(alone, build(alone).version)
