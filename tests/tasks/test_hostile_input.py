"""Damaged and hostile input: an error gives the place and the next step, and no version becomes visible."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.builders.datasets import build, write_jsonl, write_parquet
from tests.builders.refusals import TEXTS, assert_builds, assert_nothing_visible, assert_refused, spec_of
from tokenloom.errors import CheckError, InputError, TokenloomError
from tokenloom.tasks.encoding import tokenization
from tokenloom.tasks.publishing.validate import validate_build
from tokenloom.tasks.shuffling.assign import assign_shards
from tokenloom.tasks.sources.datasets_package import translate_package_errors

_WAY_OUT = ", or leave out bad rows (documents.on_error: skip)"

# Empty files


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.parquet", "parquet"), ("a.jsonl.gz", "jsonl"), ("a.jsonl", "jsonl"), ("a.txt", "text")],
)
def test_an_empty_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    assert_refused(spec_of(path, kind), str(path))


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


@pytest.mark.parametrize("window_log", [27, 28, 31])
def test_a_window_of_zstd_that_is_too_large_is_named_with_the_way_out(window_log: int, tmp_path: Path) -> None:
    text = b'{"text": "one"}\n'
    frame = b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3])  # of RFC 8878: no flag, then the window
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frame + (len(text) << 3 | 1).to_bytes(3, "little") + text)  # one last block, not compressed
    if window_log == 27:
        assert_builds(spec_of(path, "jsonl"), ["one"])
    else:
        assert_refused(spec_of(path, "jsonl"), str(path), "zstd --long=28 or more", "recreate it with 27 or less")
        assert "--long=27" in str(translated(path, "Frame requires too much memory for decoding"))


def translated(path: Path, reason: str) -> InputError:
    """Return the error for a file that the package datasets can't read for a reason."""
    with pytest.raises(InputError) as caught, translate_package_errors(str(path)):
        raise RuntimeError(reason)
    return caught.value


# JSON lines


def _gz(path: Path) -> bytes:
    content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
    return path.read_bytes()


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", ["truncated", "cut in its end", "flipped", "garbage behind", "no gzip"])
def test_broken_gzip_is_refused_and_builds_when_repaired(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    whole = _gz(path)
    damaged = {
        "truncated": whole[: len(whole) // 2],
        "cut in its end": whole[:-3],
        "flipped": _flipped(whole),
        "garbage behind": whole + b"garbage",
        "no gzip": b'{"text": "plain"}\n',
    }
    path.write_bytes(damaged[damage])
    assert_refused(spec_of(path, "jsonl"), str(path))
    path.write_bytes(whole)
    assert_builds(spec_of(path, "jsonl"), TEXTS)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"text": "bad \xff byte"}', ["line at byte 18: invalid UTF-8 at byte 14; "]),
        (b'{"text": "lone \\ud800 surrogate"}', ["lone surrogate", "encoding_errors: replace"]),
        (b"[" * 100_000, ["nested too deep"]),
        (b'{"text": ' + b'{"a":' * 100_000, ["nested too deep"]),
        (b'{"text": 12}', ["'text' is a number, not text; repair the row", _WAY_OUT]),
        (b'{"text": {"a": "b"}}', ["'text' is an object, not text"]),
        (b'{"text": ' + b"9" * 5000 + b"}", ["not valid JSON"]),
        (b'["text", "more"]', ["an array where an object with the key 'text' is expected; repair"]),
        (b'"text"', ["a string where an object with the key 'text' is expected; set text: ."]),
        (b'{"body": "a", "id": 1}', ["no key 'text'", "body, id. Set text: to one of them", _WAY_OUT]),
        (
            b'{"text": "open',
            ["not valid JSON: Invalid control character at: character 15 of the row; repair it", _WAY_OUT],
        ),
        (b'{"text": "one"} {"text": "two"}', ["not valid JSON"]),
        (b"\x00\x00\x00", ["not valid JSON"]),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_bad_line_is_named_by_its_byte(line: bytes, parts: list[str], suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    content = b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n'
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert_refused(spec_of(path, "jsonl"), f"{path}", "byte 18", *parts)
    write_jsonl(path, TEXTS)
    if suffix:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert_builds(spec_of(path, "jsonl"), TEXTS)


def test_invalid_utf8_in_a_text_file_is_named_by_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good until \xc3( here")
    assert_refused(spec_of(path, "text"), str(path), "invalid UTF-8 at byte 11")
    path.write_text("good")
    assert_builds(spec_of(path, "text"), ["good"])


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


@pytest.mark.parametrize("what", ["same length", "other length", "gone"])
def test_an_input_that_changes_while_it_is_built_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    whole = path.read_bytes()

    def change(*arguments: Any) -> Any:
        if what == "gone":
            path.unlink()
        else:
            path.write_bytes(whole.replace(b"text 7 ", b"TEXT 7 ") + (b"\n" if what == "other length" else b""))
        return assign_shards(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("tokenloom.flows.build_steps.assign_shards", change)
        assert_refused(spec_of(path, "jsonl"), error=TokenloomError)
    path.write_bytes(whole)
    assert_builds(spec_of(path, "jsonl"), TEXTS)


def test_an_input_that_changes_after_the_documents_were_compared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)

    def change(*arguments: Any) -> None:
        path.write_bytes(path.read_bytes().replace(b"text 7 ", b"TEXT 7 "))
        validate_build(*arguments)

    monkeypatch.setattr("tokenloom.flows.build_steps.validate_build", change)
    assert_refused(spec_of(path, "jsonl"), str(path), "changed while")


def test_a_step_that_encodes_wrongly_is_found_before_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    encode = tokenization._encode

    def wrong(texts: pa.Array, *arguments: Any) -> Any:
        documents, num_bytes = encode(texts, *arguments)
        documents.tokens[3] += 1
        return documents, num_bytes

    with monkeypatch.context() as patch:
        patch.setattr(tokenization, "_encode", wrong)
        with pytest.raises(CheckError, match=r"a\.parquet, row 0: encoded again, its ids differ"):
            build(spec_of(path))
    assert_nothing_visible(spec_of(path))
