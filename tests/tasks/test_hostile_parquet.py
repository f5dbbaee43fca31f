"""Damaged and hostile parquet files: an error names the file and row group, and no version becomes visible."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from tests.builders.datasets import build, make_spec, stored_documents, write_parquet
from tests.builders.refusals import TEXTS, assert_builds, assert_nothing_visible, assert_refused, spec_of
from tests.counts import count
from tokenloom.errors import InputError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.running.workers import WorkerPool

WHOLE_FILE_CUTS = [1, 4, 11, 100, 0.5, -500, -9, -8, -4, -1]


@pytest.mark.parametrize("cut", WHOLE_FILE_CUTS)
def test_truncated_parquet_is_refused_and_builds_when_whole_again(cut: float, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS, group_rows=20)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut) if cut == 0.5 else int(cut)])
    assert_refused(spec_of(path), str(path), "not a readable parquet file")
    path.write_bytes(whole)
    assert_builds(spec_of(path), TEXTS)


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


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ({"text": [1, 2, 3]}, ["column 'text' is int64", "strings, or lists of strings"]),
        ({"text": [[1], [2]]}, ["column 'text' is list"]),
        ({"text": [{"a": "b"}]}, ["column 'text' is struct"]),
        ({"body": ["a"], "number": [1]}, ["no column 'text'", "body, number"]),
    ],
)
def test_a_column_without_text_is_refused(table: dict[str, Any], parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(table), path)
    assert_refused(spec_of(path), str(path), *parts)
    write_parquet(path, TEXTS)
    assert_builds(spec_of(path), TEXTS)


def test_invalid_utf8_in_parquet_names_file_and_row(tmp_path: Path) -> None:
    values = [b"good"] * 20 + [b"good", b"bad \xff\xfe bytes", b"\xed\xa0\x80"]
    binary = pa.array(values, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(values), binary.buffers())
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": text}), path, row_group_size=20)
    assert_refused(spec_of(path), str(path), "row 21: invalid UTF-8 at byte 4; ", "encoding_errors: replace")
    write_parquet(path, TEXTS)
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


def _build_texts(spec: BuildSpec) -> list[str]:
    result = build(spec)
    return [document["ids"].tobytes().decode() for document in stored_documents(spec, result.version)]


MUTANT_FILES: list[dict[str, Any]] = [
    {"compression": "none", "use_dictionary": False},
    {"compression": "snappy"},
    {"compression": "zstd", "write_page_checksum": True},
    {"compression": "gzip", "data_page_version": "2.0"},
]


@pytest.mark.slow
def test_random_damage_to_parquet_gives_rows_or_a_named_error(tmp_path: Path) -> None:
    """Runs in a child process, since the library may crash its process."""
    files = []
    for i, options in enumerate(MUTANT_FILES):
        path = tmp_path / f"{i}.parquet"
        table = pa.table({"text": TEXTS, "number": range(60)})
        pq.write_table(table, path, row_group_size=20, write_statistics=False, **options)
        files.append(path.read_bytes())
    rng = random.Random(2024)
    outcomes = {"right": 0, "changed": 0, "refused": 0}
    with WorkerPool(1) as pool:
        for i in range(count(200, 2000)):
            data = bytearray(rng.choice(files))
            for _ in range(rng.choice([1, 1, 2, 5])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path = tmp_path / f"mutant{i}" / "a.parquet"
            path.parent.mkdir()
            path.write_bytes(data)
            spec = spec_of(path)
            try:
                texts = pool.call(_build_texts, spec)
            except InputError as error:
                assert str(path) in str(error)
                assert_nothing_visible(spec)
                outcomes["refused"] += 1
            else:
                outcomes["right" if sorted(texts) == sorted(TEXTS) else "changed"] += 1
                assert 0 < len(texts) <= len(TEXTS)
    assert min(outcomes["right"], outcomes["refused"]) > 20, outcomes


def test_a_flipped_byte_in_a_page_with_a_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"text": TEXTS}), path, **options)
    whole = path.read_bytes()
    place = whole.index(b"text 30 ")
    path.write_bytes(whole[:place] + b"T" + whole[place + 1 :])
    assert_refused(spec_of(path), str(path), "row group 0")
