"""Text files that are not in UTF-8: bad rows that do not stop the others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec, stored_texts
from tests.builders.refusals import assert_refused
from tests.builds.test_skips import listed_rows
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.sources import make_reader

TEXTS = ["plain", "été – „zwölf“", "last"]


def encoded(kind: str, texts: list[str], encoding: str) -> bytes:
    """Return texts as a file of a kind."""
    if kind == "text":
        return "<|next|>\n".join(texts).encode(encoding)
    if kind == "csv":
        return "".join(["text,n\n", *(f'"{text}",1\n' for text in texts)]).encode(encoding)
    rows = [{"text": text} for text in texts]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def folder_spec(folder: Path, **fields: Any) -> BuildSpec:
    """Return a spec of the text files of a folder."""
    sources = [{"kind": "text", "path": str(folder / "*.txt"), "name": "rows"}]
    return make_spec(folder / "store", sources, **fields)


def mixed_files(folder: Path) -> list[str]:
    """Write UTF-8 files with two of other encodings among them; return the texts of the former."""
    texts = [f"document {i}: été" for i in range(12)]
    for i, text in enumerate(texts):
        (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
    (folder / "004b.txt").write_bytes("sixteen – ü".encode("utf-16"))
    (folder / "005b.txt").write_bytes("caf\xe9".encode("latin-1"))
    return texts


# One file among many


def test_a_utf16_file_among_many_is_quarantined_with_on_error_skip(tmp_path: Path) -> None:
    texts = mixed_files(tmp_path)
    spec = folder_spec(tmp_path, documents={"on_error": "skip"})
    result = build(spec)
    assert stored_texts(spec, result.version) == sorted(texts)
    lines = listed_rows(spec, result.version)
    assert [(line["path"], line["row"], line["num_rows"], line["reason"]) for line in lines] == [
        ("004b.txt", 0, 1, "invalid_utf8"),
        ("005b.txt", 0, 1, "invalid_utf8"),
    ]
    assert result.rows["read"] == len(texts) + 2


def test_a_utf16_file_among_many_is_read_with_encoding_errors_replace(tmp_path: Path) -> None:
    texts = mixed_files(tmp_path)
    spec = folder_spec(tmp_path, documents={"encoding_errors": "replace"})
    data = [(tmp_path / name).read_bytes() for name in ("004b.txt", "005b.txt")]
    wanted = [*texts, *(one.decode("utf-8", "replace") for one in data)]
    assert stored_texts(spec, build(spec).version) == sorted(wanted)
    assert "caf\ufffd" in wanted


def test_the_error_names_the_file_the_byte_and_three_remedies(tmp_path: Path) -> None:
    mixed_files(tmp_path)
    remedies = "documents.on_error: skip", "documents.encoding_errors: replace"
    message = assert_refused(
        folder_spec(tmp_path),
        f"{tmp_path}/004b.txt: its first bytes are those of UTF-16",
        *remedies,
        "iconv -f UTF-16 -t UTF-8",
    )
    assert "\n" not in message
    (tmp_path / "004b.txt").unlink()
    invalid = f"{tmp_path}/005b.txt: invalid UTF-8 at byte 3; "
    assert_refused(folder_spec(tmp_path), invalid, *remedies, "iconv -f CP1252 -t UTF-8")


@pytest.mark.parametrize(("kind", "name"), [("jsonl", "a.jsonl"), ("csv", "a.csv"), ("jsonl", "a.jsonl.gz")])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("rules", [{}, {"encoding_errors": "replace"}])
def test_a_file_of_rows_in_utf16_is_one_bad_row(
    kind: str, name: str, encoding: str, rules: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 20)
    data = encoded(kind, TEXTS, encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    reader = make_reader(
        {"kind": kind, "text": "text", "max_bytes": 1000, "delimiter": ",", "on_error": "skip"} | rules
    )
    parts = reader.partitions(str(tmp_path / name))
    assert len(parts) == 1
    batches = list(reader.read(str(tmp_path / name), parts[0]))
    assert [(bad.row, bad.num_rows, bad.reason) for batch in batches for bad in batch.bad] == [(0, 1, "invalid_utf8")]
    assert sum(batch.num_read for batch in batches) == 1


def test_a_large_separated_file_in_utf16_is_one_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 20)
    (tmp_path / "a.txt").write_bytes(encoded("text", TEXTS * 9, "utf-16"))
    reader = make_reader({"kind": "text", "separator": "<|next|>", "max_bytes": 1000, "on_error": "skip"})
    (part,) = reader.partitions(str(tmp_path / "a.txt"))
    (rows,) = reader.read(str(tmp_path / "a.txt"), part)
    assert [(bad.row, bad.reason) for bad in rows.bad] == [(0, "invalid_utf8")]
