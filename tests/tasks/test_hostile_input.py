"""Damaged and hostile input: an error gives the place and the next step, and no version becomes visible."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from tests.builders.datasets import build, make_spec, write_jsonl, write_parquet
from tests.builders.refusals import TEXTS, assert_builds, assert_nothing_visible, assert_refused, spec_of
from tokenloom.errors import CheckError, InputError, TokenloomError
from tokenloom.tasks.encoding import tokenization
from tokenloom.tasks.sources import FileRange, make_reader
from tokenloom.tasks.sources.datasets_package import translate_package_errors


def test_an_input_without_rows_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [])
    assert_refused(spec_of(path), str(path), "no document", "0 rows read")
    write_parquet(path, TEXTS)
    assert_builds(spec_of(path), TEXTS)


def test_an_input_of_only_empty_texts_is_refused_with_its_counts(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["", None, ""])
    assert_refused(spec_of(path), str(path), "3 rows read, 3 of them left out")


def test_a_file_without_rows_is_read_if_others_have_some(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [])
    write_parquet(tmp_path / "b.parquet", TEXTS)
    assert_builds(spec_of(tmp_path / "*.parquet"), TEXTS)


def test_a_window_of_zstd_that_is_too_large_for_the_package_datasets_is_named() -> None:
    with pytest.raises(InputError, match="--long=27"), translate_package_errors("a.jsonl.zst"):
        raise RuntimeError("Frame requires too much memory for decoding")


# Damage


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.json", "a.txt"])
def test_a_damaged_file_is_refused_and_builds_when_repaired(name: str, tmp_path: Path) -> None:
    path, texts = tmp_path / name, TEXTS
    if name == "a.parquet":
        whole = write_parquet(path, TEXTS, group_rows=20).read_bytes()
    elif name == "a.txt":
        whole, texts = b"text", ["text"]
    else:
        lines = [json.dumps({"text": text}) for text in TEXTS]
        whole = f"[{','.join(lines)}]".encode() if name == "a.json" else gzip.compress("\n".join(lines).encode())
    damaged = whole + b"\xff" if name == "a.txt" else whole[:-3]
    path.write_bytes(damaged)
    kind = {"a.parquet": "parquet", "a.txt": "text"}.get(name, "jsonl")
    assert_refused(spec_of(path, kind), str(path))
    path.write_bytes(whole)
    assert_builds(spec_of(path, kind), texts)


def test_a_bad_row_is_answered_with_the_way_to_leave_it_out(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["first"])
    path.write_bytes(path.read_bytes() + b'{"text": 12}\n')
    assert_refused(spec_of(path, "jsonl"), "repair the row, or leave out bad rows (documents.on_error: skip)")


def test_damage_inside_a_row_group_names_the_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=20, compression="zstd")
    whole = path.read_bytes()
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    damaged = bytearray(whole)
    damaged[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(damaged)
    assert_refused(spec_of(path), str(path), "row group 1", "can't be decoded")
    path.write_bytes(whole)
    assert_builds(spec_of(path), TEXTS)


class _Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """Wraps keys in nothing."""

    def wrap_key(self, key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("is_plain", [True, False])
def test_an_encrypted_column_is_named_before_it_is_read(is_plain: bool, tmp_path: Path) -> None:
    """Under a plain footer, pyarrow ends the process that asks for what the footer says about the column."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": TEXTS, "other": TEXTS})
    options = encryption.EncryptionConfiguration("a", column_keys={"b": ["text"]}, plaintext_footer=is_plain)
    factory = encryption.CryptoFactory(lambda _: _Keys())
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), options)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    for documents in ({}, {"on_error": "skip"}):
        what = "column 'text' is encrypted" if is_plain else "It is encrypted"
        assert_refused(spec_of(path, documents=documents), str(path), what, "write it again" if not is_plain else "")
    if is_plain:
        spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": str(path), "text": "other"}])
        assert_builds(spec, TEXTS)


def test_one_bad_file_among_good_ones_is_the_one_named(tmp_path: Path) -> None:
    for i in range(4):
        write_parquet(tmp_path / "data" / f"{i}.parquet", TEXTS[i * 15 : i * 15 + 15])
    bad = tmp_path / "data" / "2.parquet"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-20])
    spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": str(tmp_path / "data" / "*.parquet")}])
    assert_refused(spec, str(bad))
    bad.write_bytes(whole)
    assert_builds(spec, TEXTS)


_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2183982\n"
_JSONL = {"kind": "jsonl", "path": "good.jsonl"}
_CHAT = {"sources": [{**_JSONL, "messages": "text", "layout": "messages"}]}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("a.txt", {"sources": [{"kind": "text", "path": "a.txt"}]}),
        ("a.txt.gz", {"sources": [{"kind": "text", "path": "a.txt.gz"}]}),
        ("a.csv", {"sources": [{"kind": "csv", "path": "a.csv", "header": False, "text": 0}]}),
        ("a.jsonl", {"sources": [{"kind": "jsonl", "path": "a.jsonl"}]}),
        ("a.parquet", {"sources": [{"kind": "parquet", "path": "a.parquet"}]}),
        ("a.arrow", {"sources": [{"kind": "arrow", "path": "a.arrow"}]}),
        ("data/train.txt", {"sources": [{"kind": "huggingface", "name": "./data"}]}),
        ("data/train.parquet", {"sources": [{"kind": "huggingface", "name": "./data"}]}),
        ("a.bin", {"sources": [{"kind": "tokens", "format": "nanogpt", "path": "a.bin"}]}),
        ("exclude.txt", {"documents": {"exclude": "exclude.txt"}}),
        ("a.jinja", {"chat": {"template": "a.jinja"}, **_CHAT}),
        ("tokenizer.json", {"tokenizer": {"kind": "huggingface", "path": "tokenizer.json", "eot": "<|endoftext|>"}}),
        ("spm.model", {"tokenizer": {"kind": "sentencepiece", "path": "spm.model"}}),
        ("a.tiktoken", {"tokenizer": {"kind": "tiktoken", "name": "llama3", "ranks": "a.tiktoken"}}),
    ],
)
def test_a_pointer_of_git_lfs_is_refused_by_name(
    name: str, fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "good.jsonl", TEXTS)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(_POINTER)
    fields = json.loads(json.dumps(fields).replace("./data", str(tmp_path / "data")))
    if name == "a.bin":
        fields = {**fields, "tokenizer": {"kind": "ids", "vocab_size": 50_000, "eot_id": 0}}
    spec = make_spec("store", **{"sources": [_JSONL], **fields})
    with pytest.raises(TokenloomError, match=r"a pointer of Git LFS, .*`git lfs pull`") as caught:
        build(spec)
    assert name in str(caught.value)


def test_a_pointer_of_git_lfs_in_a_store_is_refused_by_name() -> None:
    fsspec.filesystem("memory").pipe("/pointers/a.txt", _POINTER)
    with pytest.raises(InputError, match=r"memory://pointers/a.txt: a pointer of Git LFS"):
        list(make_reader({"kind": "text", "max_bytes": 2**20}).read("memory://pointers/a.txt", FileRange(0, 1)))


# Paths


@pytest.mark.parametrize("pattern", ["*.parquet", "x.parquet"])
def test_a_folder_where_a_file_should_be_is_refused(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").mkdir()
    write_parquet(tmp_path / "y.parquet", TEXTS)
    assert_refused(spec_of(tmp_path / pattern), str(tmp_path / "x.parquet"), "a folder")
    (tmp_path / "x.parquet").rmdir()
    assert_builds(spec_of(tmp_path / "*.parquet"), TEXTS)


def test_a_glob_without_a_match_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    assert_refused(spec_of(tmp_path / "*.parquet"), str(tmp_path / "*.parquet"), "no file matches")
    assert_refused(spec_of(tmp_path / "a.parquet"), str(tmp_path / "a.parquet"), "no such file")
    assert_refused(spec_of(tmp_path / "none" / "*" / "a.parquet"), "no file matches")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "text"])
def test_a_document_above_the_limit_is_refused_by_size(kind: str, tmp_path: Path) -> None:
    texts = [*TEXTS, "é" * 300]
    path = tmp_path / "a"
    if kind == "parquet":
        write_parquet(path, texts)
    elif kind == "jsonl":
        write_jsonl(path, texts)
    else:
        path.write_text(texts[-1])
    limited = spec_of(path, kind, documents={"max_bytes": 599})
    size = "more than 599 bytes" if kind == "text" else "600 bytes"
    assert_refused(limited, str(path), size, "599", "documents.max_bytes")
    assert_builds(spec_of(path, kind, documents={"max_bytes": 600}), texts[-1:] if kind == "text" else texts)


def test_a_step_that_encodes_wrongly_is_found_before_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    encode = tokenization._encode

    def wrong(*arguments: Any) -> Any:
        documents, *counts = encode(*arguments)
        documents.tokens[3] += 1
        return documents, *counts

    with monkeypatch.context() as patch:
        patch.setattr(tokenization, "_encode", wrong)
        with pytest.raises(CheckError, match=r"a\.parquet, row 0: encoded again, its ids differ"):
            build(spec_of(path))
    assert_nothing_visible(spec_of(path))
