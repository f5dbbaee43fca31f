"""Text files in other encodings: read if the spec names one, otherwise one bad row that does not stop the others."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import build, make_spec, manifest_json, stored_documents
from tests.builders.refusals import assert_refused
from tests.builds.test_skips import listed_rows
from tests.counts import count
from tests.tasks.test_sources import read_file
from tokenloom.errors import BadRow, InputError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import open_store
from tokenloom.tasks.planning.inputs import find_inputs
from tokenloom.tasks.sources import FileRange, make_reader
from tokenloom.tasks.sources.files import encodings

TEXTS = ["plain", "été – „zwölf“", "last"]
ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "cp1252", "cp037", "gb18030"]


def encoded(kind: str, texts: list[str], encoding: str) -> bytes:
    """Return texts as a file of a kind."""
    if kind == "text":
        return "<|next|>\n".join(texts).encode(encoding)
    if kind == "csv":
        return "".join(["text,n\n", *(f'"{text}",1\n' for text in texts)]).encode(encoding)
    rows = [{"text": text} for text in texts]
    if kind == "array":
        return json.dumps(rows, ensure_ascii=False).encode(encoding)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def read(kind: str, path: Path, *encodings: str, **options: Any) -> list[tuple[int, str | None]]:
    """Return (row, text) of a file in one of several encodings."""
    name = "jsonl" if kind == "array" else kind
    separator = "<|next|>" if kind == "text" else None
    return read_file(name, path, delimiter=",", separator=separator, encoding=list(encodings), **options)


def folder_spec(folder: Path, pattern: str = "*.txt", source: dict[str, Any] | None = None, **fields: Any) -> BuildSpec:
    """Return a spec of the text files of a folder."""
    sources = [{"kind": "text", "path": str(folder / pattern), "name": "rows", **(source or {})}]
    return make_spec(folder / "store", sources, **fields)


def texts_of(spec: BuildSpec, version: str) -> list[str]:
    """Return the texts of a version, sorted."""
    return sorted(document["ids"].tobytes().decode() for document in stored_documents(spec, version))


def mixed_files(folder: Path, num_good: int = 12) -> list[str]:
    """Write UTF-8 files with two of other encodings among them; return the texts of the former."""
    texts = [f"document {i}: été" for i in range(num_good)]
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
    assert texts_of(spec, result.version) == sorted(texts)
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
    assert texts_of(spec, build(spec).version) == sorted(wanted)
    assert "caf\ufffd" in wanted


def test_rows_are_not_to_be_left_out_if_that_leaves_none(tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "Why?"}, {"from": "gpt", "value": "So."}]
    path = tmp_path / "a.jsonl"
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(path), "text": "messages"}])
    path.write_text(f"{json.dumps({'messages': conversation})}\n" * 3)
    message = assert_refused(
        spec, "row", "'messages' is a conversation; set messages: messages in place of text: messages"
    )
    assert "on_error" not in message
    path.write_text(f"{json.dumps({'messages': conversation})}\n" + '{"messages": "text"}\n')
    assert_refused(spec, "set messages: messages in place of", "leave out bad rows (documents.on_error: skip)")
    pq.write_table(pa.table({"messages": [conversation[:1]]}), tmp_path / "a.parquet")
    spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": f"{tmp_path}/*.parquet", "text": "messages"}])
    assert_refused(
        spec, "a.parquet: column 'messages' holds conversations; set messages: messages in place of text: messages"
    )


def test_the_error_names_the_file_the_number_of_such_files_and_three_remedies(tmp_path: Path) -> None:
    mixed_files(tmp_path)
    message = assert_refused(
        folder_spec(tmp_path),
        f"{tmp_path}/004b.txt: its first bytes are those of UTF-16",
        "documents.on_error: skip",
        "documents.encoding_errors: replace",
        "encoding: ",
        "2 of the 14 files of source rows have this problem",
    )
    assert "\n" not in message
    (tmp_path / "004b.txt").unlink()
    assert_refused(
        folder_spec(tmp_path),
        f"{tmp_path}/005b.txt: invalid UTF-8 at byte 3; ",
        "documents.on_error: skip",
        "documents.encoding_errors: replace",
        "encoding: ",
        "1 of the 13 files of source rows has this problem",
    )


def test_no_option_is_advised_that_would_change_every_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(encoded("jsonl", ["é"] * 9, "cp1252"))
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}])
    message = assert_refused(spec, "invalid UTF-8 at byte", "encoding: cp1252")
    assert "encoding_errors" not in message and "on_error" not in message
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"text": "good"}\n')
    message = assert_refused(spec, ", or replace bad bytes (documents.encoding_errors: replace), or leave out bad rows")


def test_only_the_first_thousand_files_are_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed_files(tmp_path)
    monkeypatch.setattr("tokenloom.tasks.encoding.bad_files._MAX_FILES", 6)
    assert_refused(folder_spec(tmp_path), "1 of the first 6 files of source rows has this problem")
    monkeypatch.setattr("tokenloom.tasks.encoding.bad_files._MAX_FILES", 5)
    assert_refused(folder_spec(tmp_path), "0 of the first 5 files of source rows have this problem")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_kind_counts_the_files_with_the_same_problem(num_workers: int, tmp_path: Path) -> None:
    lines = [b'{"text": "good"}\n', b"{\n", b'{"body": "x"}\n', b"{\n"]
    for i, line in enumerate(lines):
        (tmp_path / f"{i}.jsonl").write_bytes(line)
    spec = folder_spec(tmp_path, "*.jsonl", {"kind": "jsonl"})
    with pytest.raises(BadRow, match=r"2 of the 4 files of source rows have this problem|1 of the 4 files"):
        build(spec, num_workers)
    with pytest.raises(BadRow, match=r"byte 0: not valid JSON.*2 of the 4 files of source rows have this problem"):
        build(spec, 0)


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


# Encodings that the spec names


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["text", "jsonl", "array", "csv"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst"])
def test_a_file_is_read_in_the_encoding_that_is_named(kind: str, encoding: str, suffix: str, tmp_path: Path) -> None:
    from tests.builders.dirty_files import COMPRESS

    texts = TEXTS if encoding != "cp037" else ["plain", "été", "last"]
    compress: Callable[[bytes], bytes] = COMPRESS.get(suffix, bytes)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(compress(encoded(kind, texts, encoding)))
    assert [text for _, text in read(kind, path, encoding)] == texts
    assert [text for _, text in read(kind, path, "ascii", encoding)] == texts


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["text", "jsonl", "array", "csv"])
def test_every_row_of_an_encoded_file_is_found_again(
    kind: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 50)
    path = tmp_path / "a"
    path.write_bytes(encoded(kind, [f"é {i}" for i in range(40)], encoding))
    rows = read(kind, path, encoding)
    options = {"kind": "jsonl" if kind == "array" else kind, "text": "text", "max_bytes": 1000, "delimiter": ","}
    separator = {"separator": "<|next|>"} if kind == "text" else {}
    reader = make_reader({**options, **separator, "encoding": [encoding]})
    is_cut = encoding == "cp1252" and kind in ("text", "jsonl")
    assert (len(reader.partitions(str(path))) > 2) is is_cut
    for row, text in rows:
        found = [
            pair
            for part in reader.locate(str(path), [row])
            for batch in reader.read(str(path), part)
            for pair in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        ]
        assert (row, text) in found
        assert len(found) == (1 if is_cut else 40)


def test_row_of_a_line_counts_bytes_of_the_file_where_newlines_are_bytes_of_it_else_of_its_utf8(tmp_path: Path) -> None:
    lines = ['{"text": "é"}\n', '{"text": "zwölf"}\n', '{"text": "x"}\n']
    path = tmp_path / "a.jsonl"
    for encoding, counted in (("cp1252", "cp1252"), ("utf-16", "utf-8"), ("cp037", "utf-8")):
        path.write_bytes("".join(lines).encode(encoding))
        starts = [len("".join(lines[:i]).encode(counted)) for i in range(3)]
        assert [row for row, _ in read("jsonl", path, encoding)] == starts


def test_a_build_of_encoded_files_is_checked_against_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = mixed_files(tmp_path)
    spec = folder_spec(tmp_path, source={"encoding": ["utf8", "utf-16", "cp1252"]})
    result = build(spec)
    assert texts_of(spec, result.version) == sorted([*texts, "sixteen – ü", "café"])
    assert result.rows["quarantined"] == 0
    lines = "".join(json.dumps({"text": f"é {i}"}, ensure_ascii=False) + "\n" for i in range(300))
    for encoding in ("utf-16", "cp1252"):
        monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 500)
        (tmp_path / "a.jsonl").write_bytes(lines.encode(encoding))
        spec = folder_spec(tmp_path, "a.jsonl", {"kind": "jsonl", "encoding": encoding})
        version = build(spec, num_workers=2).version
        assert texts_of(spec, version) == sorted(f"é {i}" for i in range(300))
        store = open_store(f"{spec.store}/data")
        assert manifest_json(store, version)["spec"]["sources"][0]["encoding"] == [encoding]
        assert find_inputs(spec, store)[1] == []


def test_the_first_encoding_that_decodes_the_whole_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 3_000_000 + "é".encode())
    assert read_file("text", path, encoding=["cp1252", "utf-8"])[0][1] == "x" * 3_000_000 + "Ã©"
    assert read_file("text", path, encoding=["utf-8", "cp1252"])[0][1] == "x" * 3_000_000 + "é"
    path.write_bytes(b"x" * 3_000_000 + b"\xe9")
    assert read_file("text", path, encoding=["utf-8", "cp1252"])[0][1] == "x" * 3_000_000 + "é"
    path.write_bytes("é".encode("utf-16-le"))  # no byte order mark, so nothing shows that it is UTF-16
    with pytest.raises(BadRow, match="invalid utf-8 or utf-16 at byte 0; repair the file"):
        read_file("text", path, encoding=["utf-8", "utf-16"])


def test_a_file_is_read_once_to_choose_its_encoding_however_often_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    decodes = encodings._decodes

    def counted(url: str, encoding: str) -> bool:
        tried.append(encoding)
        return decodes(url, encoding)

    monkeypatch.setattr(encodings, "_decodes", counted)
    monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded("jsonl", ["é"] * 100, "cp1252"))
    assert len(read("jsonl", path, "utf-8", "cp1252")) == 100
    reader = make_reader({"kind": "jsonl", "text": "text", "max_bytes": 100, "encoding": ["utf-8", "cp1252"]})
    assert len(reader.partitions(str(path))) > 10
    assert tried == ["utf-8", "cp1252"]


@pytest.mark.parametrize("kind", ["text", "jsonl", "csv"])
@pytest.mark.parametrize(
    ("encoding", "bad"), [("cp1252", b"\x81"), ("utf-16-le", b"\x00\xd8"), ("gb18030", b"\x81\x20")]
)
def test_bytes_that_an_encoding_can_not_decode_are_a_bad_row_or_replaced(
    kind: str, encoding: str, bad: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    data = encoded(kind, ["one", "two#", "three"], encoding).replace("#".encode(encoding), bad)
    path.write_bytes(data)
    with pytest.raises(BadRow, match=f"invalid {encoding}.*encoding: .*encoding_errors: replace") as raised:
        read(kind, path, encoding)
    assert raised.value.reason == "invalid_utf8"
    assert [text for _, text in read(kind, path, encoding, on_error="skip")] == ["one", "three"]
    replaced = [str(text) for _, text in read(kind, path, encoding, encoding_errors="replace")]
    assert replaced[0] == "one" and replaced[1].startswith("two\ufffd") and replaced[2] == "three"


def test_utf16_needs_its_mark_as_in_python(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one two".encode("utf-16-le"))
    with pytest.raises(BadRow, match=r"a\.txt: no byte order mark of utf-16 at its start; check encoding: utf-16-le"):
        read_file("text", path, encoding=["utf-16"])
    assert read_file("text", path, encoding=["utf-16"], on_error="skip") == []
    assert read_file("text", path, encoding=["utf-16-le"]) == [(0, "one two")]
    path.write_bytes(b"")
    assert read_file("text", path, encoding=["utf-16"]) == [(0, "")]
    path.write_bytes("\ufeffone".encode())
    assert read_file("text", path, encoding=["utf-8-sig"]) == [(0, "one")]


def test_a_marked_file_is_not_taken_for_text_of_single_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one".encode("utf-16"))
    with pytest.raises(BadRow, match="first bytes are those of UTF-16, not of CP1252"):
        read_file("text", tmp_path / "a.txt", encoding=["utf-8", "cp1252"])


def test_a_separator_that_an_encoding_lacks_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one â\x80\x94 é".encode("latin-1"))  # the bytes of the separator in UTF-8
    assert read_file("text", tmp_path / "a.txt", encoding=["iso8859-1"], separator="—") == [(0, "one â\x80\x94 é")]


def test_a_broken_compressed_file_stays_an_error_in_any_encoding(tmp_path: Path) -> None:
    whole = gzip.compress(encoded("jsonl", TEXTS * 1000, "utf-16"))
    for data in (whole[: len(whole) // 2], b"", b"no gzip", whole[:-4]):
        (tmp_path / "a.jsonl.gz").write_bytes(data)
        for names in (["utf-16"], ["utf-8", "utf-16"]):
            with pytest.raises(InputError, match=r"a\.jsonl\.gz") as raised:
                read("jsonl", tmp_path / "a.jsonl.gz", *names, on_error="skip")
            assert not isinstance(raised.value, BadRow)


@pytest.mark.filterwarnings("ignore:invalid (octal )?escape sequence:DeprecationWarning")  # Python's, of unicode_escape
@settings(max_examples=count(100, 2000), deadline=None)
@given(
    st.binary(max_size=60),
    st.sampled_from([*ENCODINGS, "gb18030", "shift_jis", "iso2022_jp", "hz", "big5", "unicode_escape"]),
    st.sampled_from(["text", "jsonl", "csv"]),
    st.sampled_from(["fail", "skip"]),
    st.booleans(),
)
def test_any_bytes_in_any_encoding_are_rows_or_a_named_error(
    data: bytes, encoding: str, kind: str, on_error: str, replaces: bool
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.any")
        path.write_bytes(encoded(kind, ["good"], "ascii") + data)
        rules = {"on_error": on_error, "encoding_errors": "replace" if replaces else "fail"}
        try:
            rows = read(kind, path, encoding, **rules)
        except InputError as error:
            assert "a.any" in str(error)
            str(error).encode()
        else:
            for _, text in rows:
                (text or "").encode()


def test_an_encoded_file_is_never_held_in_memory_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("w", encoding="utf-16") as file:
        for i in range(25_000):
            file.write(json.dumps({"text": f"{i} " + "x" * 1000}) + "\n")
    reader = make_reader({"kind": "jsonl", "text": "text", "max_bytes": 2**28, "encoding": ["utf-8", "utf-16"]})
    tracemalloc.start()
    num_rows = sum(batch.num_read for batch in reader.read(str(path), FileRange(0, path.stat().st_size)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_rows == 25_000
    assert path.stat().st_size > 50_000_000
    assert peak < 30_000_000


def test_an_encoding_enters_the_version_and_utf8_does_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    sources: list[dict[str, Any]] = [
        {},
        {"encoding": "UTF8"},
        {"encoding": []},
        {"encoding": "latin1"},
        {"encoding": ["iso-8859-1"]},
    ]
    versions = [build(folder_spec(tmp_path, source=source)).version for source in sources]
    assert versions[0] == versions[1] == versions[2] != versions[3] == versions[4]


@pytest.mark.parametrize("name", ["base64", "rot13", "idna", "undefined", "utf-99", "a\0b", ""])
def test_a_codec_that_is_not_a_text_encoding_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an encoding"):
        folder_spec(tmp_path, source={"encoding": name})
