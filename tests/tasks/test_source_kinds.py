"""Every kind of source passes the same tests."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tests.servers.web_server import web_server
from tests.tasks.source_conformance import Row, SourceConformance, make_rows
from tokenloom.errors import BadRow, InputError
from tokenloom.tasks.sources import SourceReader, make_reader
from tokenloom.tasks.sources import listing as finding

_SCHEMA = pa.schema({"text": pa.string(), "score": pa.float64(), "lang": pa.string()})


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table; ids are text or integers."""
    table = pa.Table.from_pylist(rows, _SCHEMA)
    return table.add_column(1, "id", pa.array([row["id"] for row in rows]))


def raw_table(texts: list[bytes]) -> pa.Table:
    """Return texts as a string column, whatever their bytes."""
    return pa.table({"text": pa.array(texts, pa.binary()).view(pa.string())})


def json_lines(rows: Sequence[Row]) -> bytes:
    """Return rows as JSON lines."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def raw_lines(texts: list[bytes]) -> bytes:
    """Return texts as JSON lines, whatever their bytes."""
    return b"".join(b'{"text": "' + text + b'"}\n' for text in texts)


def written(path: Path, data: bytes) -> Path:
    """Write a file, return its path."""
    path.write_bytes(data)
    return path


class TestParquet(SourceConformance):
    kind = "parquet"
    is_cut = True

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        pq.write_table(table_of(rows), folder / "a.parquet", row_group_size=10)
        return folder / "a.parquet"

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        pq.write_table(raw_table(texts), folder / "a.parquet")
        return folder / "a.parquet"


class TestJsonLines(SourceConformance):
    kind = "jsonl"
    holds_empty_file = is_cut = True
    reports_truncation = False
    suffix = ".jsonl"
    compress: Callable[[bytes], bytes] = staticmethod(bytes)

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        return written(folder / f"a{self.suffix}", type(self).compress(json_lines(rows)))

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return written(folder / f"a{self.suffix}", type(self).compress(raw_lines(texts)))

    def test_a_missing_text_column_is_reported(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, make_rows(["one", "two"]))
        with pytest.raises(BadRow, match=r"'body'.*text, id, score, lang.*Set text:") as raised:
            self.batches(path, text="body")
        assert str(path) in str(raised.value)
        assert raised.value.reason == "missing_key"


class TestJsonLinesGzip(TestJsonLines):
    holds_empty_file = is_cut = False
    reports_truncation = True
    suffix = ".jsonl.gz"
    compress: Callable[[bytes], bytes] = staticmethod(gzip.compress)


class TestJsonLinesBzip2(TestJsonLinesGzip):
    suffix = ".jsonl.bz2"
    compress = staticmethod(bz2.compress)


class TestJsonLinesZstd(TestJsonLinesGzip):
    suffix = ".jsonl.zst"
    compress = staticmethod(lambda data: pa.Codec("zstd").compress(data, asbytes=True))


class TestJsonArray(TestJsonLines):
    suffix = ".json"
    reports_truncation = True
    is_cut = False

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        return written(folder / "a.json", json.dumps(rows, ensure_ascii=False, indent=1).encode())

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return written(folder / "a.json", b"[" + raw_lines(texts).replace(b"}\n{", b"},\n{") + b"]")


class TestCsv(SourceConformance):
    kind = "csv"
    has_nulls = False
    reports_truncation = False

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text", "id", "score", "lang"], quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(rows)
        return folder / "a.csv"

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return written(folder / "a.csv", b"text,id\n" + b"".join(text + b",1\n" for text in texts))


class TestTextWithSeparator(SourceConformance):
    kind = "text"
    options = {"separator": "<|next|>"}  # noqa: RUF012
    has_columns = has_nulls = reports_truncation = False
    holds_empty_file = is_cut = True

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        text = "\n<|next|>\n".join(row["text"] or "" for row in rows)
        return written(folder / "a.txt", text.encode())

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return written(folder / "a.txt", b"<|next|>".join(texts))

    def expected(self, rows: Sequence[Row]) -> list[str | None]:
        """Two separators with only line ends between them don't make a row."""
        return [text.strip("\r\n") for row in rows if (text := row["text"]) and text.strip("\r\n")]


class TestArrowStream(SourceConformance):
    kind = "arrow"
    is_cut = True
    new_file = staticmethod(pa.ipc.new_stream)

    def write_table(self, folder: Path, table: pa.Table) -> Path:
        """Write a table in record batches of ten rows."""
        with pa.OSFile(str(folder / "a.arrow"), "wb") as file, type(self).new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
        return folder / "a.arrow"

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        return self.write_table(folder, table_of(rows))

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return self.write_table(folder, raw_table(texts))


class TestArrowFile(TestArrowStream):
    new_file = staticmethod(pa.ipc.new_file)


class TestArrowFolder(SourceConformance):
    kind = "arrow"

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        datasets.Dataset(table_of(rows)).save_to_disk(folder / "saved", num_shards=2 if len(rows) > 1 else 1)
        return folder / "saved"


class TestArrayRecord(SourceConformance):
    kind = "arrayrecord"
    is_cut = True
    has_columns = has_nulls = False

    def write_records(self, folder: Path, records: list[bytes]) -> Path:
        """Write records."""
        module = pytest.importorskip("array_record.python.array_record_module")
        writer = module.ArrayRecordWriter(str(folder / "a.array_record"), "group_size:3")
        for record in records:
            writer.write(record)
        writer.close()
        return folder / "a.array_record"

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        return self.write_records(folder, [row["text"].encode() for row in rows])

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return self.write_records(folder, texts)


class TestArrayRecordOfJson(TestArrayRecord):
    has_columns = has_nulls = True
    test_a_missing_text_column_is_reported = TestJsonLines.test_a_missing_text_column_is_reported

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        return self.write_records(folder, [json.dumps(row, ensure_ascii=False).encode() for row in rows])

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        return self.write_records(folder, raw_lines(texts).split(b"\n")[:-1])


class _HuggingFace(SourceConformance):
    kind = "huggingface"
    num_located = 3

    def reader(self, path: Path, **options: Any) -> SourceReader:
        """Return the reader of the dataset's files: that of their kind, or the one that uses `datasets`."""
        found = super().reader(path, **options).files("")
        return super().reader(path, **options, **found[0].options)

    def urls(self, reader: SourceReader, path: Path) -> list[str]:
        return [file.url for file in super().reader(path).files("")]


class TestHuggingFaceText(_HuggingFace):
    """A dataset that is read through the package; each line is a row."""

    holds_empty_file = True
    has_columns = has_nulls = reports_truncation = False

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        pytest.importorskip("datasets")
        return written(folder / "a.txt", "".join(f"{row['text']}\n" for row in rows).encode())

    def options_for(self, path: Path) -> dict[str, Any]:
        return {"name": "text", "data_files": str(path), "text": "text"}

    def expected(self, rows: Sequence[Row]) -> list[str | None]:
        lines = "".join(f"{row['text']}\n" for row in rows).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [*lines[:-1]]


class TestHuggingFaceFolder(_HuggingFace):
    is_cut = True

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        pytest.importorskip("datasets")
        half = len(rows) // 2
        (folder / "set").mkdir(exist_ok=True)
        pq.write_table(table_of(rows[:half]), folder / "set" / "train-0.parquet", row_group_size=10)
        pq.write_table(table_of(rows[half:]), folder / "set" / "train-1.parquet", row_group_size=10)
        return folder / "set"

    def options_for(self, path: Path) -> dict[str, Any]:
        return {"name": str(path)}

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path:
        (folder / "set").mkdir()
        pq.write_table(raw_table(texts), folder / "set" / "a.parquet")
        return folder / "set"


# Real data


def read_real(path: Path | str, **options: Any) -> list[str | None]:
    """Return the texts of a source of real data."""
    reader = make_reader({"text": "text", "delimiter": ",", "separator": None, "max_bytes": 2**28, **options})
    return [
        text
        for file in reader.files(str(path))
        for part in reader.partitions(file.url)
        for batch in reader.read(file.url, part)
        for text in batch.texts.to_pylist()
    ]


# Single kinds


def test_the_files_of_a_saved_dataset_come_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name in ("one", "two", "unlisted"):
        TestArrowStream().write(tmp_path / "set", make_rows([name])).rename(tmp_path / "set" / f"{name}.arrow")
    state = {"_data_files": [{"filename": "two.arrow"}, {"filename": "one.arrow"}]}
    written(tmp_path / "set" / "state.json", json.dumps(state).encode())
    reader = make_reader({"kind": "arrow", "text": "text"})
    for pattern in (tmp_path / "set", f"{tmp_path}/set/", tmp_path / "s*"):
        assert [file.path for file in reader.files(str(pattern))] == ["set/two.arrow", "set/one.arrow"]
    assert read_real(tmp_path / "set", kind="arrow") == ["two", "one"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("dataset_dict.json", b"{}", r"give the folder of a split, or .*/set/\*.arrow"),
        *(("state.json", state, "no list of data files") for state in (b"", b"[]", b"{}", b'{"_data_files": [1]}')),
        ("state.json", b'{"_data_files": [], "_indices_data_files": [0]}', "selects rows by indices"),
    ],
)
def test_a_folder_that_is_not_a_saved_dataset_of_files_is_reported(
    name: str, data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    written(tmp_path / "set" / name, data)
    with pytest.raises(InputError, match=message):
        read_real(tmp_path / "set", kind="arrow")


def test_arrow_over_a_url_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        finding, "remote_fingerprint", lambda info, url: "etag:1"
    )  # the memory file system has no ETags
    rows = make_rows([f"text {i}" for i in range(30)])
    for kind in (TestArrowStream(), TestArrowFile(), TestArrowFolder()):
        path = kind.write(tmp_path, rows)
        for file in [path] if path.is_file() else sorted(path.iterdir()):
            fsspec.filesystem("memory").pipe(f"/sets/{file.relative_to(tmp_path)}", file.read_bytes())
        found = make_reader({"kind": "arrow", "text": "text"}).files(f"memory://sets/{path.name}")
        assert found[0].path == (path.name if path.is_file() else f"{path.name}/data-00000-of-00002.arrow")
        assert found[0].fingerprint == "etag:1"
        assert read_real(f"memory://sets/{path.name}", kind="arrow") == [row["text"] for row in rows]


def test_files_of_a_web_server_are_read_in_parts(tmp_path: Path) -> None:
    folder, files = tmp_path / "web", ("a.jsonl", "b.jsonl.gz", "c.parquet")
    texts = [[f"document {i} of {name} " * 20_000 for i in range(16)] for name in files]  # several blocks of fsspec
    write_jsonl(folder / "a.jsonl", texts[0])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(write_jsonl(tmp_path / "b", texts[1]).read_bytes(), 0))
    pq.write_table(pa.table({"text": texts[2]}), folder / "c.parquet", use_dictionary=False, compression="none")

    def built(root: str, name: str, num_files: int = 3) -> dict[str, str]:
        sources = [{"kind": file.split(".")[1], "path": f"{root}/{file}"} for file in files[:num_files]]
        spec = make_spec(tmp_path / name, sources)
        return listed_files(spec, build(spec).version, ".tok")

    with web_server(folder) as (url, _):
        assert built(url, "web") == built(str(folder), "local")
    for has, reason in {
        "length": "gives neither a hash of the content nor an ETag; copy the file",
        "chunks": "gives no length, or sends no parts of it; download it",
        "gzip": "gives no length, or sends no parts of it; download it",
        "etag": "support range requests.*; download it",
    }.items():
        with web_server(folder, has) as (url, _), pytest.raises(InputError, match=f"^{url}/a.jsonl: .*{reason}"):
            built(url, has, 1)


def test_dictionaries_that_change_from_batch_to_batch(tmp_path: Path) -> None:
    batches = [pa.record_batch({"text": pa.array([f"a{i}", "b", f"a{i}"]).dictionary_encode()}) for i in range(3)]
    with pa.OSFile(str(tmp_path / "a"), "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert read_real(tmp_path / "a", kind="arrow") == [text for i in range(3) for text in (f"a{i}", "b", f"a{i}")]


def test_two_streams_in_one_file_are_reported(tmp_path: Path) -> None:
    path = TestArrowStream().write(tmp_path, make_rows(["one", "two"]))
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(InputError, match="bytes after its end of stream"):
        read_real(path, kind="arrow")


@pytest.mark.parametrize("values", [["a" * 9, "b" * 9], [["a" * 9], ["b" * 9]]])
def test_offsets_out_of_order_are_reported(tmp_path: Path, values: list[Any]) -> None:
    table = pa.table({"text": values})
    offsets = table["text"].chunk(0).buffers()[1].to_pybytes()
    with pa.OSFile(str(tmp_path / "a"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    data = (tmp_path / "a").read_bytes()
    assert data.count(offsets) == 1
    broken = offsets[:4] + (1 << 30).to_bytes(4, "little") + offsets[8:]
    written(tmp_path / "a", data.replace(offsets, broken))
    with pytest.raises(InputError, match="record batch 0: can't be read: "):
        read_real(tmp_path / "a", kind="arrow")


def test_array_records_of_another_machine_are_refused() -> None:
    with pytest.raises(InputError, match="only files on this machine; copy them"):
        read_real("s3://bucket/a", kind="arrayrecord")


def test_an_array_record_file_without_records_has_no_rows(tmp_path: Path) -> None:
    assert read_real(TestArrayRecord().write(tmp_path, []), kind="arrayrecord", text=None) == []


def test_a_record_that_is_too_large_is_reported_or_skipped(tmp_path: Path) -> None:
    path = TestArrayRecord().write_records(tmp_path, [b"small", b"x" * 100, b"last"])
    options = {"kind": "arrayrecord", "text": None, "max_bytes": 50}
    with pytest.raises(BadRow, match=r"record 1: more than 50 bytes, too much for .*max_bytes; raise that") as raised:
        read_real(path, **options)
    assert raised.value.reason == "too_large"
    assert read_real(path, **options, on_error="skip") == ["small", "last"]
