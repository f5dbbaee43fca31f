"""Text files that are not in UTF-8: bad rows that do not stop the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.builders.datasets import build, make_spec, stored_texts
from tests.builders.refusals import assert_refused
from tests.builds.test_skips import listed_rows
from tokenloom.spec.build_spec import BuildSpec


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
        f"{tmp_path}/004b.txt: invalid UTF-8 at byte 0; ",
        *remedies,
        "iconv -f CP1252 -t UTF-8",
    )
    assert "\n" not in message
    (tmp_path / "004b.txt").unlink()
    invalid = f"{tmp_path}/005b.txt: invalid UTF-8 at byte 3; "
    assert_refused(folder_spec(tmp_path), invalid, *remedies, "iconv -f CP1252 -t UTF-8")
