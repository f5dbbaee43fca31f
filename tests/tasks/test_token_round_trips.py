"""Exports of each format that are imported again: the same documents, with the masks that the format has."""

from __future__ import annotations

import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.datasets import build
from tests.builders.exported import Exportable, small_parts
from tests.builders.synthetic_store import EOT
from tests.builders.token_files import ids_in
from tests.servers.s3_server import BUCKET, upload
from tests.tasks.test_tokens import tokens_spec
from tokenloom.flows.export_steps import export_directly
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.exporting.base import ExportOptions
from tokenloom.tasks.sources import make_reader

#: By format of export: the format of its import, and the files with its ids.
_IMPORTS = {
    "megatron": ("megatron", "*.bin"),
    "olmo": ("olmo", "*/*.npy"),
    "llmc": ("llmc", "*.bin"),
    "nanogpt": ("nanogpt", "*.bin"),
    "datatrove": ("datatrove", "*/*.ds"),
    "huggingface": ("huggingface", "*/*.arrow"),
    "parquet": ("huggingface", "*/*.parquet"),
}
_WITH_MASKS = ("olmo", "datatrove", "huggingface", "parquet")
Found = dict[tuple[int, ...], set[tuple[bool, ...]]]  # the masks that documents of some ids have


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Exportable:
    """A version with masks; one of its documents has 3 MB."""
    return Exportable(tmp_path_factory.mktemp("masked"), 50_000, with_masks=True, long_tokens=1_500_000)


def _written(version: Exportable) -> Found:
    """Return the documents of a version that are more than an end-of-text id, and their masks."""
    found: Found = defaultdict(set)
    learned = learned_classes("assistant")
    for split, documents in version.documents.items():
        classes = version.classes[split] or [np.zeros(0, np.uint8)] * len(documents)
        for ids, each in zip(documents, classes, strict=True):
            if ids != [EOT]:
                found[tuple(ids)].add(tuple(learned[each].tolist()))
    return found


def _built(spec: Any) -> Found:
    """Return the documents of the version that a spec builds, and their masks."""
    build(spec)
    tables, found = VersionTables(*resolve(parse_reference(f"{spec.store}/{spec.dataset}"))), Found()
    learned = learned_classes("assistant")
    for entry in tables.manifest.shards:
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        ids, classes = shard.tokens(0, entry.tokens), learned[shard.classes(0, entry.tokens)]
        for start, end in zip(shard.offsets[:-1].tolist(), shard.offsets[1:].tolist(), strict=True):
            assert tuple(ids[start:end].tolist()) not in found
            found[tuple(ids[start:end].tolist())] = {tuple(classes[start:end].tolist())} if entry.has_mask else set()
    return found


def _read(name: str, pattern: str, vocab_size: int) -> dict[str, list[list[int]]]:
    """Return what the files with ids of an export hold, by split."""
    options = {"kind": "tokens", "format": _IMPORTS[name][0], "max_bytes": 2**28}
    options |= {"vocab_size": vocab_size, "eot_id": EOT, "bos_id": None}
    found: dict[str, list[list[int]]] = defaultdict(list)
    for file in make_reader(options).files(pattern):
        reader = make_reader(options | file.options)
        batches = [rows for part in reader.partitions(file.url) for rows in reader.read(file.url, part)]
        split = "train" if "train" in file.url.removeprefix(pattern.partition("*")[0]) else "validation"
        found[split] += ids_in(batches)
    return found


@pytest.mark.usefixtures("s3_proxy")
def test_exports_in_a_store_are_read_as_those_in_a_folder(masked: Exportable, s3_url: str, tmp_path: Path) -> None:
    for name in ("olmo", "llmc", "huggingface", "datatrove"):
        key, glob = f"imports/{name}-{uuid.uuid4().hex}", _IMPORTS[name][1]
        export_directly(masked.reference, name, str(tmp_path / name), ExportOptions(["train"]), 0)
        if name == "datatrove":  # what may be missing is
            for path in (tmp_path / name / "train").glob("*.ds.*"):
                path.unlink()
        upload(s3_url, tmp_path / name, key)
        found = _read(name, f"s3://{BUCKET}/{key}/{glob}", masked.vocab_size)
        assert found == _read(name, str(tmp_path / name / glob), masked.vocab_size) != {}


@pytest.mark.parametrize("name", _IMPORTS)
def test_an_export_that_is_imported_and_built_has_the_same_documents_and_masks(
    name: str, masked: Exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    export_directly(masked.reference, name, str(tmp_path / "out"), ExportOptions([]), 0)
    pattern = str(tmp_path / "out" / _IMPORTS[name][1])
    spec = tokens_spec(tmp_path, pattern, masked.vocab_size, source={"format": _IMPORTS[name][0]})
    found, written = _built(spec), _written(masked)
    assert found.keys() == written.keys()
    assert all(masks <= written[ids] for ids, masks in found.items())
    assert all(found.values()) is (name in _WITH_MASKS)
