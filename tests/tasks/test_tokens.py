"""Sources of tokens: documents that another trainer's tools made become a version with the same ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.datasets import build, make_spec
from tests.builders.exported import Documents, Exportable
from tests.builders.synthetic_store import EOT
from tokenloom import TokenDataset
from tokenloom.flows.direct import export_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.exporting.formats.base import ExportOptions

_VOCABULARIES = {"uint8": 256, "uint16": 50_000, "uint32": 150_000}


def tokens_spec(folder: Path, pattern: str, vocab_size: int, eot_id: int = EOT, **fields: Any) -> BuildSpec:
    """Return the spec of a build of files of Megatron; one split, so that documents are easy to compare."""
    source = {"kind": "tokens", "format": "megatron", "path": pattern} | fields.pop("source", {})
    tokenizer = {"kind": "ids", "vocab_size": vocab_size, "eot_id": eot_id} | fields.pop("tokenizer", {})
    return make_spec(folder / "store", [source], tokenizer=tokenizer, **{"splits": {"train": 1.0}} | fields)


def documents_of(spec: BuildSpec) -> Documents:
    """Return the ids of every document that a build of a spec has, in the order of the version."""
    tables = VersionTables(*resolve(parse_reference(f"{spec.store}/{spec.dataset}")))
    found: Documents = []
    for entry in tables.manifest.shards:
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        ids = shard.tokens(0, entry.tokens)
        found += [part.tolist() for part in np.split(ids, shard.offsets[1:-1])] if entry.documents else []
    return found


@pytest.mark.parametrize("width", _VOCABULARIES)
def test_an_exported_version_is_imported_with_the_same_documents(width: str, tmp_path: Path) -> None:
    version = Exportable(tmp_path / "version", _VOCABULARIES[width])
    export_directly(version.reference, "megatron", str(tmp_path / "out"), ExportOptions([]), 0)
    spec = tokens_spec(tmp_path, str(tmp_path / "out" / "*.bin"), version.vocab_size)
    result = build(spec)
    written = {tuple(each) for split in version.documents.values() for each in split}
    imported = [tuple(each) for each in documents_of(spec)]
    assert set(imported) == {each for each in written if each != (EOT,)}
    assert len(imported) == len(set(imported))
    assert result.facts.manifest.rows.filtered == sum(
        each == [EOT] for split in version.documents.values() for each in split
    )
    assert TokenDataset(f"{spec.store}/{spec.dataset}", seq_len=16).decode(np.array([5, 6, EOT])) == "5 6 <|endoftext|>"
