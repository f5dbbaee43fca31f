"""The pages on the files of a store are correct: their code reads a build, and their tables describe its fields."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from tests.builders.chats import with_chats
from tests.builders.datasets import build, local_store, make_spec, manifest_json, open_documents, write_jsonl
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage import open_shard
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.blocks import BLOCK_BYTES
from tokenloom.storage.formats.classes import (
    BEGINS,
    ENDS_TURN,
    LAST_TURN,
    MAY_LEARN,
    PLAIN_TEXT,
    ROLE_BITS,
    ROLES,
    TOOL_OUTPUT,
    learned_classes,
)
from tokenloom.storage.formats.records import sign
from tokenloom.storage.formats.shard_writer import ShardWriter
from tokenloom.storage.versions.published import version_path

_REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES = "\n".join((_REFERENCE / name).read_text(encoding="utf-8") for name in ("format.md", "format-json.md"))


@dataclass(frozen=True)
class Built:
    """A small version: its folder, its manifest as bytes and parsed, and its store's folder."""

    folder: Path
    root: Path
    manifest: dict[str, Any]

    @property
    def shards(self) -> list[dict[str, Any]]:
        return [shard for split in self.manifest["splits"].values() for shard in split["shards"]]


def _built(spec: BuildSpec) -> Built:
    version, store = build(spec).version, local_store(spec.store, spec.dataset)
    return Built(store.local(version_path(version)), store.root, manifest_json(store, version))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("format")
    source = write_jsonl(folder / "in" / "a.jsonl", [f"text {i % 900}: " + "ż" * (i % 50) for i in range(1000)])
    with source.open("a") as file:
        file.write("no JSON\n")
    sources = [{"kind": "jsonl", "path": str(source), "id": "text"}]
    spec = make_spec(folder / "store", sources, shard_tokens=20_000, documents={"on_error": "skip"})
    built = _built(spec)
    assert len(built.shards) > 3
    return built


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A smaller version, of 30 texts and 20 conversations in two splits."""
    folder = tmp_path_factory.mktemp("masked")
    source = write_jsonl(folder / "a.jsonl", [f"text {i}" for i in range(30)])
    splits = {"train": 0.7, "test": 0.3}
    spec = with_chats(make_spec(folder / "store", [{"kind": "jsonl", "path": str(source)}], splits=splits), folder, 20)
    return _built(spec)


def code(name: str) -> Any:
    """Return the function `name` of the page's code blocks, run unchanged."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES, re.DOTALL | re.MULTILINE)
    block = next(block for block in blocks if f"def {name}(" in block)
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/reference", "exec"), namespace)
    return namespace[name]


def tables(heading: str) -> list[list[list[str]]]:
    """Return the tables under a heading: rows of cells, without the header and its separator."""
    section = re.split(r"^## ", PAGES.split(f"\n## {heading}", 1)[1], flags=re.MULTILINE)[0]
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        found.append(rows[2:])
    return found


def fields_of(table: list[list[str]], data: bytes) -> tuple[dict[str, Any], int]:
    """Return the fields at the start of a file that a table describes without a gap, and where they end."""
    kinds = {"u32": "<I", "u64": "<Q"}
    fields, position = {}, 0
    for offset, num_bytes, kind, name, _ in table:
        if offset.isdigit() and num_bytes.isdigit():
            assert int(offset) == position
            raw = data[position : position + int(num_bytes)]
            fields[name.strip("`")] = struct.unpack(kinds[kind], raw)[0] if kind in kinds else raw
            position += int(num_bytes)
    return fields, position


def first_names(table: list[list[str]]) -> list[str]:
    return [row[0].strip("`") for row in table]


def test_the_readers_code_on_the_page_reads_every_shard_of_a_build(built: Built) -> None:
    read_shard = code("read_shard")
    num_tokens = 0
    for entry in built.shards:
        path = built.folder / entry["name"]
        info, tokens, offsets = read_shard(path)
        shard = open_shard(path, verify="full")
        assert info == shard.header.info
        assert tokens.dtype == shard.tokens.dtype
        assert np.array_equal(tokens, shard.tokens)
        assert np.array_equal(offsets, shard.document_offsets)
        num_tokens += len(tokens)
    assert num_tokens == sum(split["tokens"] for split in built.manifest["splits"].values()) > 20_000


@pytest.mark.parametrize("vocab_size", [256, 50257, 200_019])
@pytest.mark.parametrize("num_documents", [0, 1, 3])
def test_the_readers_code_on_the_page_reads_every_width_and_an_empty_shard(
    tmp_path: Path, vocab_size: int, num_documents: int
) -> None:
    path = tmp_path / "shard.tok"
    tokens = np.arange(7 * num_documents).astype(token_dtype(vocab_size))
    with path.open("w+b") as file:
        writer = ShardWriter(file, vocab_size, {"split": "train"})
        writer.append(tokens, np.full(num_documents, 7, np.uint32))
        writer.finish()
    info, read, offsets = code("read_shard")(path)
    assert info == {"split": "train"}
    assert read.tolist() == tokens.tolist()
    assert offsets.tolist() == [7 * i for i in range(num_documents + 1)]


def test_the_readers_code_on_the_page_refuses_another_format(built: Built, tmp_path: Path) -> None:
    data = bytearray((built.folder / built.shards[0]["name"]).read_bytes())
    data[8] = 2
    (tmp_path / "a.tok").write_bytes(data)
    with pytest.raises(ValueError, match="not a shard of format 1"):
        code("read_shard")(tmp_path / "a.tok")


def test_the_shard_table_accounts_for_every_byte_of_the_header(built: Built) -> None:
    path = built.folder / built.shards[0]["name"]
    data, header = path.read_bytes(), open_shard(path).header
    fields, position = fields_of(tables("The shard")[0], data)
    assert position == 96
    start, offsets_start, end = fields["tokens_start"], fields["offsets_start"], fields["file_bytes"]
    assert fields == {
        "magic": b"TOKLOOM\0",
        "format_version": 1,
        "header_bytes": header.tokens_start,
        "token_bytes": header.token_bytes,
        "json_bytes": len(json.dumps(header.info, separators=(",", ":"))),
        "num_tokens": header.num_tokens,
        "num_documents": header.num_documents,
        "tokens_start": header.tokens_start,
        "offsets_start": header.offsets_start,
        "file_bytes": len(data),
        "tokens_checksum": xxhash.xxh3_128_digest(data[start:offsets_start]),
        "offsets_checksum": xxhash.xxh3_128_digest(data[offsets_start:end]),
    }
    info_end = 96 + fields["json_bytes"]
    assert json.loads(data[96:info_end]) == header.info
    assert not any(data[info_end : start - 16])
    assert data[start - 16 : start] == xxhash.xxh3_128_digest(data[: start - 16])
    assert offsets_start == -(-(start + header.num_tokens * header.token_bytes) // 8) * 8
    assert not any(data[start + header.num_tokens * header.token_bytes : offsets_start])


def test_the_json_block_has_the_keys_on_the_page(built: Built) -> None:
    for entry in built.shards:
        info = open_shard(built.folder / entry["name"]).header.info
        assert sorted(info) == first_names(tables("The shard")[1])


def test_the_table_of_block_checksums_accounts_for_every_byte(built: Built) -> None:
    (table,) = tables("The block checksums")
    for entry in built.shards:
        shard = (built.folder / entry["name"]).read_bytes()
        data = (built.folder / entry["name"]).with_suffix(".blocks").read_bytes()
        fields, position = fields_of(table[:7], data)
        header_bytes, block_bytes = fields["header_bytes"], fields["block_bytes"]
        assert fields == {
            "magic": b"TOKBLKS\0",
            "blocks_format": 1,
            "header_bytes": open_shard(built.folder / entry["name"]).header.tokens_start,
            "file_bytes": len(shard),
            "block_bytes": BLOCK_BYTES,
            "": 0,
            "sha256": bytes.fromhex(entry["sha256"]),
        }
        blocks = [shard[i : i + block_bytes] for i in range(0, len(shard), block_bytes)]
        checksums = b"".join(xxhash.xxh3_128_digest(block) for block in blocks)
        assert data[position:-16] == shard[:header_bytes] + checksums
        assert data[-16:] == xxhash.xxh3_128_digest(data[:-16])
    assert f"{BLOCK_BYTES:,}" in PAGES


def test_the_section_of_a_mask_follows_the_checksums_of_its_shard(masked: Built) -> None:
    for entry in masked.shards:
        path = masked.folder / entry["name"]
        mask, data = path.with_suffix(".mask").read_bytes(), path.with_suffix(".blocks").read_bytes()
        num_blocks = -(-len(path.read_bytes()) // BLOCK_BYTES)
        section = data[64 + open_shard(path).header.tokens_start + 16 * num_blocks : -16]
        fields = struct.unpack_from("<8sIIQII32s", section)
        sha256 = bytes.fromhex(entry["files"][".mask"]["sha256"])
        assert fields == (b"TOKBLKS\0", 1, 0, len(mask), BLOCK_BYTES, 0, sha256)
        assert section[64:] == (xxhash.xxh3_128_digest(mask) if mask else b"")


def test_the_code_on_the_page_reads_a_mask_and_applies_a_policy(masked: Built, tmp_path: Path) -> None:
    block = next(block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if "read_mask" in block)
    assert len(block.splitlines()) <= 20
    assert re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE) == ["numpy"]
    read_mask = code("read_mask")
    read_shard, texts = code("read_shard"), []
    for entry in masked.shards:
        _, tokens, offsets = read_shard(masked.folder / entry["name"])
        classes, learned = read_mask((masked.folder / entry["name"]).with_suffix(".mask"))
        assert len(classes) == len(learned) == entry["tokens"]
        for part in map(slice, offsets[:-1], offsets[1:]):
            texts.append(tokens[part][learned[part]].astype(np.uint8).tobytes().decode("latin-1"))
    said = [text for text in texts if text.startswith("answered")]
    assert sorted(set(texts) - set(said)) == sorted(f"text {i}\xff" for i in range(30))  # with end of text
    turns = (
        f"answered {i} " * (1 + i % 9) + "<|im_end|>" for i in range(20)
    )  # the end is ordinary text of its tokenizer
    assert sorted(said) == sorted(turns)
    (tmp_path / "a.mask").write_bytes(bytes(range(256)) * 2)
    for roles in (None, ["user"], ["text", "tool_output"], list(ROLES)):
        classes, learned = read_mask(tmp_path / "a.mask", *([] if roles is None else [roles]))
        assert classes.tolist() == [*range(256)] * 2
        assert np.array_equal(learned, learned_classes(roles or "assistant")[classes])


def test_the_classes_on_the_page_are_those_of_the_code() -> None:
    rows = [(int(value), name.strip("`")) for _, value, name, _ in tables("The mask")[0]]
    assert [name for _, name in rows[:9]] == list(ROLES)
    assert [value for value, _ in rows[:9]] == [*range(9)]
    flags = {"ends_turn": ENDS_TURN, "last_turn": LAST_TURN, "begins": BEGINS, "may_learn": MAY_LEARN}
    assert {name: value for value, name in rows[9:]} == flags
    assert ROLE_BITS == 15 and ROLES[PLAIN_TEXT] == "text" and ROLES[TOOL_OUTPUT] == "tool_output"


def test_the_document_table_has_the_columns_on_the_page(built: Built, masked: Built) -> None:
    (table,) = tables("The document table")
    columns = [(row[0].strip("`"), row[1]) for row in table]
    found = open_documents((masked.folder / masked.shards[0]["name"]).with_suffix(".docs")).schema
    assert [(field.name, str(field.type)) for field in found] == columns[:-1]  # without ids
    table = [row for row in table if row[0] != "`classes`"]
    for entry in built.shards:
        path = (built.folder / entry["name"]).with_suffix(".docs")
        documents = open_documents(path)
        described = [(row[0].strip("`"), row[1]) for row in table]
        assert [(field.name, str(field.type)) for field in documents.schema] == described
        shard = open_shard(path.with_suffix(".tok"))
        assert documents["start"].to_pylist() == shard.document_offsets[:-1].tolist()
        keys = documents["key"].to_pylist()
        assert keys == sorted(keys)


def test_the_code_on_the_page_reads_signed_files(built: Built) -> None:
    read_signed = code("read_signed")
    data = (built.folder / "manifest.json").read_bytes()
    assert read_signed(data) == built.manifest
    entry = read_signed((built.root / "tags" / "latest" / "00000001.json").read_bytes())
    assert entry["version"] == built.manifest["version"]
    assert sorted(entry) == sorted(first_names(tables("A tag entry")[0]))
    with pytest.raises(ValueError, match="damaged"):
        read_signed(data.replace(b'"rows"', b'"rowz"'))


def test_the_signed_example_on_the_page_equals_what_the_writer_writes() -> None:
    lines = re.findall(r'^    (\{"a":1,"checksum".*)$', PAGES, re.MULTILINE)
    assert lines == [sign({"a": 1}).decode()]


def test_the_manifest_has_the_fields_on_the_page(built: Built) -> None:
    top, shard = tables("The manifest")
    assert sorted(built.manifest) == sorted(first_names(top))
    for entry in built.shards:
        assert sorted(entry) == sorted(first_names(shard))
    for name in ("tokenizer", "rows"):
        cell = next(row[1] for row in top if row[0] == f"`{name}`")
        assert sorted(built.manifest[name]) == sorted(re.findall(r"`(\w+)`", cell))
    cell = next(row[1] for row in top if row[0] == "`splits`")
    for split in built.manifest["splits"].values():
        assert sorted(split) == sorted(re.findall(r"`(\w+)`", cell))
    rows = built.manifest["rows"]
    assert rows["read"] == sum(rows.values()) - rows["read"] == 1001


def test_all_files_of_a_version_but_three_kinds_are_listed(built: Built) -> None:
    listed = dict(built.manifest["files"])
    for entry in built.shards:
        listed[entry["name"]] = entry["sha256"]
        for suffix, file in entry["files"].items():
            listed[str(Path(entry["name"]).with_suffix(suffix))] = file["sha256"]
    found = {path.relative_to(built.folder).as_posix() for path in built.folder.rglob("*") if path.is_file()}
    blocks = {str(Path(entry["name"]).with_suffix(".blocks")) for entry in built.shards}
    assert found == {*listed, "manifest.json", "build.json", *blocks}
    for name, expected in listed.items():
        assert hashlib.sha256((built.folder / name).read_bytes()).hexdigest() == expected


def test_the_inputs_have_the_fields_on_the_page(built: Built) -> None:
    value = json.loads((built.folder / "inputs.json").read_bytes())
    assert list(value) == ["inputs"]
    assert [sorted(item) for item in value["inputs"]] == [sorted(first_names(tables("The inputs")[0]))]
    assert value["inputs"][0]["path"] == "a.jsonl"


def test_the_quarantine_has_the_fields_on_the_page(built: Built) -> None:
    (line,) = (built.folder / "quarantine.jsonl").read_bytes().splitlines()
    assert sorted(json.loads(line)) == sorted(first_names(tables("The quarantine")[0]))
    assert built.manifest["rows"]["quarantined"] == 1
