"""Deep verification reports different ids as damage, and a source that changed or moved or is missing as a warning."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.builders.damaging import Made, make_version
from tests.builders.datasets import build, lines_spec, make_spec, write_jsonl
from tests.storage.test_blocks import blocks_of
from tests.storage.test_version_checks import first_shard, publish_beside, sign_again, version_file
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.storage.formats import shard as shard_module
from tokenloom.storage.formats.blocks import BLOCK_BYTES, encode_blocks
from tokenloom.storage.formats.shard import open_shard
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.building import check as sample
from tokenloom.tasks.building.check import NUM_SAMPLED, read_rows
from tokenloom.tasks.building.inputs import InputFile


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A version with every kind of file in it, whose sources are in the folder `in`."""
    return make_version(tmp_path)


def _deep(made: Made, workers: int = 0) -> dict[str, Any]:
    return verify_directly(made.reference, True, None, workers)


def _change_first_token(made: Made) -> None:
    """Change the first token of the first shard; update its checksums and the manifest."""
    path = version_file(made, "train/000000.tok")
    shard = open_shard(path)
    tokens, offsets = shard.tokens.copy(), shard.document_offsets.tobytes()
    tokens[0] = (int(tokens[0]) + 1) % 200
    section = tokens.tobytes() + bytes(-tokens.nbytes % 8)
    checksums = [xxhash.xxh3_128_digest(part) for part in (section, offsets)]
    header = replace(shard.header, tokens_checksum=checksums[0], offsets_checksum=checksums[1])
    data = shard_module.pack_header(header) + section + offsets
    path.write_bytes(data)
    new = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    sign_again(made, lambda manifest: first_shard(manifest).update(new))
    publish_beside(made, ".blocks", encode_blocks(blocks_of(data, BLOCK_BYTES, header.tokens_start)))


def test_different_ids_under_valid_checksums_are_reported(made: Made) -> None:
    _change_first_token(made)
    assert verify_directly(made.reference, False, None, 0)["damages"] == []
    result = _deep(made)
    (damage,) = result["damages"]
    assert damage["file"] == f"versions/{made.version}/train/000000.tok"
    assert "token 0: encoded again, its ids differ" in damage["what"]
    assert any(name in damage["what"] for name in ("a.jsonl", "b.jsonl", "c.parquet"))
    assert result["documents_encoded_again"] == made.manifest["rows"]["kept"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_changed_or_missing_source_is_a_warning(made: Made, tmp_path: Path, workers: int) -> None:
    with (tmp_path / "in" / "a.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    (tmp_path / "in" / "c.parquet").unlink()
    result = _deep(made, workers)
    assert result["damages"] == []
    assert result["documents_encoded_again"] == 149  # those of the source `named`
    warnings = "\n".join(result["warnings"])
    assert "source changed: lines: a.jsonl; 90 of its documents are not compared" in warnings
    assert "source gone: table: c.parquet; 1 of its documents are not compared" in warnings
    assert "source table: " in warnings


def test_a_source_that_moved_is_found_by_the_spec(made: Made, tmp_path: Path) -> None:
    shutil.move(tmp_path / "in", tmp_path / "moved")
    assert _deep(made)["documents_encoded_again"] == 0
    value = json.loads(made.spec.model_dump_json().replace(f"{tmp_path}/in/", f"{tmp_path}/moved/"))
    moved = type(made.spec).model_validate(value)
    result = verify_directly(made.reference, True, moved, 0)
    assert (result["damages"], result["warnings"]) == ([], [])
    assert result["documents_encoded_again"] == made.manifest["rows"]["kept"]


@pytest.mark.parametrize("data", [None, b"{", b"{}", b'{"spec": {"dataset": "data"}}'])
def test_without_a_useful_build_json_the_rest_is_verified(made: Made, data: bytes | None) -> None:
    path = made.store.local(version_path(made.version, "build.json"))
    path.unlink() if data is None else path.write_bytes(data)
    result = _deep(made)
    assert (result["damages"], result["documents_encoded_again"]) == ([], 0)
    *notes, warning = result["warnings"]
    assert ["build.json" in note for note in notes] == [True] * (data is not None)  # it is damaged, or only missing
    assert "build.json does not say how" in warning
    assert "give --spec" in warning


def test_documents_of_a_damaged_shard_are_not_compared(made: Made) -> None:
    path = made.store.local(version_path(made.version, "train/000000.tok"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    result = _deep(made)
    assert [row["file"] for row in result["damages"]] == [version_path(made.version, "train/000000.tok")]
    num_documents = made.manifest["splits"]["train"]["shards"][0]["documents"]
    assert result["documents_encoded_again"] == made.manifest["rows"]["kept"] - num_documents


def test_a_damaged_tokenizer_file_is_named_and_nothing_is_encoded(made: Made) -> None:
    (name,) = (name for name in made.files if "/tokenizer/" in name)
    made.store.local(name).write_bytes(b"{}")
    result = _deep(made)
    assert [row["file"] for row in result["damages"]] == [name]
    assert result["documents_encoded_again"] == 0
    assert any("no document was encoded again" in warning for warning in result["warnings"])


def test_1000_documents_are_chosen_and_always_the_same(tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, [f"text {i}" for i in range(3 * NUM_SAMPLED)], shard_tokens=20_000)
    made = Made(spec, build(spec).version)
    result = _deep(made)
    assert result["damages"] == []
    assert result["documents_encoded_again"] == NUM_SAMPLED
    assert _deep(made, workers=2) == result


def test_a_transform_is_applied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenloom_test_rule.py").write_text("def change(text):\n    return text.upper()\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(20)])
    documents = {"transform": {"function": "tokenloom_test_rule:change", "version": "1"}}
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(path)}], documents=documents)
    made = Made(spec, build(spec).version)
    assert verify_directly(made.reference, True, spec, 0)["documents_encoded_again"] == 20
    (tmp_path / "tokenloom_test_rule.py").write_text("def change(text):\n    return text.lower() + '!'\n")
    result = verify_directly(made.reference, True, spec, 1)  # a fresh process
    assert result["damages"] == []
    assert result["documents_encoded_again"] == 0
    assert result["warnings"] == [
        "documents.transform tokenloom_test_rule:change gives different texts: 20 not compared"
    ]
    (warning,) = _deep(made)["warnings"]
    assert "documents.transform is code, which runs only if --spec names it" in warning


def test_build_json_cannot_name_code_to_run(made: Made) -> None:
    path = made.store.local(version_path(made.version, "build.json"))
    value = json.loads(path.read_bytes())
    value["spec"]["documents"]["transform"] = {"function": "os:system", "version": "1"}
    path.write_text(json.dumps(value))
    result = _deep(made)
    assert (result["damages"], result["documents_encoded_again"]) == ([], 0)
    (warning,) = result["warnings"]
    assert "the version was built from another spec, which differs in documents" in warning


def test_a_source_that_changes_during_the_comparison_is_not_damage(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_and_read(file: InputFile, *args: Any) -> Any:
        path = Path(file.url)
        path.write_bytes(path.read_bytes().replace(b"a", b"b"))
        return read_rows(file, *args)

    monkeypatch.setattr(sample, "read_rows", change_and_read)
    result = _deep(made)
    assert result["damages"] == []
    assert any("a.jsonl: it changed while it was read" in warning for warning in result["warnings"])
