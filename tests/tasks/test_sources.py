"""Readers of sources: every row once whatever the cut, the number of each row, and how much is read."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import local_store, make_spec, write_jsonl, write_parquet
from tests.builders.observing import counted_reads
from tests.counts import count
from tokenloom.errors import InputError
from tokenloom.tasks.building.input_messages import input_messages, table_messages
from tokenloom.tasks.building.inputs import find_inputs
from tokenloom.tasks.sources import FileRange, SourceReader, make_reader

Row = tuple[int, str | None]
OPTIONS: dict[str, Any] = {"text": "text", "max_bytes": 2**28}


def read_all(reader: SourceReader, path: Path, part: FileRange) -> list[Row]:
    """Return (row, text) of a part, in the order of reading."""
    rows: list[Row] = []
    for batch in reader.read(str(path), part):
        rows += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    return rows


def read_file(kind: str, path: Path, **options: Any) -> list[Row]:
    """Return (row, text) of a whole file, partition by partition."""
    reader = make_reader({"kind": kind, **OPTIONS, **options})
    return [row for part in reader.partitions(str(path)) for row in read_all(reader, path, part)]


def line_of(text: str) -> bytes:
    """Return a JSON line with a text, without its newline."""
    return json.dumps({"text": text}, ensure_ascii=False).encode()


# JSON lines

line_ends = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\n", b"\r\n\r\n"])
lines = st.lists(st.tuples(st.text(max_size=20), line_ends), max_size=12)


@settings(max_examples=count(150, 2000), deadline=None)
@given(lines, st.booleans(), st.booleans(), st.lists(st.integers(0, 600), max_size=8))
def test_any_cut_of_json_lines_gives_every_line_exactly_once(
    lines: list[tuple[str, bytes]], starts_with_mark: bool, ends_with_newline: bool, cuts: list[int]
) -> None:
    content, expected = b"\xef\xbb\xbf" if starts_with_mark else b"", []
    for text, end in lines:
        expected.append((len(content) if len(content) > 3 or not starts_with_mark else 0, text))
        content += line_of(text) + end
    if lines and not ends_with_newline:
        content = content.rstrip()
    bounds = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    reader = make_reader({"kind": "jsonl", **OPTIONS})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lines.jsonl")
        path.write_bytes(content)
        parts = [read_all(reader, path, FileRange(a, b)) for a, b in pairwise(bounds)]
        again = [read_all(reader, path, part) for part in reader.locate(str(path), [row for row, _ in expected])]
        Path(folder, "lines.jsonl.gz").write_bytes(gzip.compress(content))
        zipped = read_file("jsonl", Path(folder, "lines.jsonl.gz"))
    assert [row for part in parts for row in part] == expected
    assert [row for part in again for row in part] == expected and len(again) <= 1  # neighbours are read together
    assert zipped == expected


def test_a_dotted_key_reaches_into_objects_and_a_key_with_a_dot_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"meta": {"body": "inner"}}\n{"meta.body": "literal", "meta": {"body": "inner"}}\n')
    assert [text for _, text in read_file("jsonl", path, text="meta.body")] == ["inner", "literal"]
    path.write_text('{"meta": {"prompt:": "odd"}}\n')
    assert read_file("jsonl", path, text="meta.prompt:") == [(0, "odd")]


# Parquet


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_uuids_and_json_are_read_as_text(kind: str, tmp_path: Path) -> None:
    uuids = [uuid.UUID(int=7**40), None, uuid.UUID(int=0)]
    texts = ['{"a": "é"}', "[1]", None]
    columns = {
        "json": pa.array(texts, pa.json_()),
        "uuid": pa.array([one and one.bytes for one in uuids], pa.uuid()),
        "same": pa.array(['{"long": "and repeated in each of the rows"}'] * 3, pa.json_()),
    }
    table, path = pa.table(columns), str(tmp_path / f"a.{kind}")
    if kind == "parquet":
        pq.write_table(table, path, store_schema=False)  # as another writer: only parquet's logical types
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    spelled = [one and str(one) for one in uuids]
    for text, wanted in (("json", texts), ("uuid", spelled), ("same", columns["same"].to_pylist())):
        assert read_file(kind, Path(path), text=text) == list(enumerate(wanted))
    (batch,) = make_reader({"kind": kind, **OPTIONS, "text": "json", "id": "uuid"}).read(path, FileRange(0, 1))
    assert batch.ids is not None and batch.ids.to_pylist() == spelled
    assert read_file(kind, Path(path), text="json", filter=f'uuid == "{spelled[2]}"') == [(2, None)]
    lists = pa.ListArray.from_arrays(pa.array([0, 3]), columns["uuid"])  # not joined, as their bytes are no text
    pq.write_table(pa.table({"text": lists}), path)
    with pytest.raises(InputError, match="a text column holds strings, or lists of strings"):
        read_file("parquet", Path(path))


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("_delta_log/00000000000000000000.json", "Delta Lake"),
        ("metadata/v1.metadata.json", "Iceberg"),
        (".hoodie/hoodie.properties", "Hudi"),
    ],
)
def test_a_table_is_named_since_rows_that_it_deleted_are_read(mark: str, name: str, tmp_path: Path) -> None:
    table = tmp_path / "data" / "table"
    write_parquet(table / "a" / "a.parquet", ["text"])
    write_parquet(table / "year=1/month=2/day=3/a.parquet", ["text"])
    folders = (f"{table}/*", f"{table}/a", f"{tmp_path}/data/*/a", f"{tmp_path}/data/**/day=*")
    for pattern in (f"{folder}/a.parquet" for folder in folders):
        spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": pattern}])
        inputs, _ = find_inputs(spec, local_store(spec.store, spec.dataset))
        (table / mark).unlink(missing_ok=True)
        assert list(table_messages(inputs)) == []
        (table / mark).parent.mkdir(exist_ok=True)
        (table / mark).write_text("{}")
        (message,) = table_messages(inputs)
        assert message.startswith(f"source parquet-0: {table} is a table of {name}: every file that matches is read")


def test_files_named_as_data_to_evaluate_on_are_named_beside_others(tmp_path: Path) -> None:
    for name in ("train", "latest", "contest/valids", "wiki.Test", "dev/1", "a_val_0"):
        write_jsonl(tmp_path / f"{name}.jsonl", [name])
    for pattern, named in {"**/*": "a_val_0.jsonl, dev/1.jsonl, wiki.Test.jsonl", "wiki*": "", "*t*n*": ""}.items():
        spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": f"{tmp_path}/{pattern}.jsonl"}])
        messages = list(input_messages(find_inputs(spec, local_store(spec.store, spec.dataset))[0]))
        assert [message.startswith(f"source jsonl-0: {named}: named as data to eval") for message in messages] == (
            [True] if named else []
        )


def test_only_the_text_column_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    noise = np.random.default_rng(0).integers(0, 255, (300, 400), np.uint8)
    table = pa.table({"text": [f"text {i}" for i in range(300)], "noise": [row.tobytes() for row in noise]})
    pq.write_table(table, path, row_group_size=100, use_dictionary=False, compression="zstd")
    whole = bytearray(path.read_bytes())
    metadata = pq.ParquetFile(path).metadata
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(1)
        start = column.data_page_offset
        whole[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(whole)
    with pytest.raises((pa.ArrowException, OSError)):
        pq.read_table(path)
    assert read_file("parquet", path) == [(i, f"text {i}") for i in range(300)]


# Arrow


def write_arrow(path: Path, table: pa.Table, form: str, compression: str | None, batch_rows: int) -> Path:
    """Write a table as an Arrow stream, or as a file with a footer."""
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


@pytest.mark.parametrize("form", ["file", "stream"])
def test_all_partitions_of_an_arrow_file_together_read_it_about_once(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 200_000)
    texts = [random.Random(i).randbytes(5_000).hex() for i in range(400)]
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": texts}), form, "zstd", 10)
    fsspec.filesystem("memory").pipe("/read_once.arrow", path.read_bytes())
    sizes = counted_reads(monkeypatch)
    reader, url = make_reader({"kind": "arrow", **OPTIONS}), "memory://read_once.arrow"
    parts = reader.partitions(url)
    assert len(parts) > 15
    sizes.clear()
    found = [text for part in parts for batch in reader.read(url, part) for text in batch.texts.to_pylist()]
    assert found == texts
    assert sum(sizes) < 1.5 * path.stat().st_size


@pytest.mark.parametrize("has_dictionary", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_any_batches_of_an_arrow_file_give_the_rows_of_the_whole(
    form: str, compression: str | None, has_dictionary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text {i // 3}" for i in range(100)]
    column = pa.array(texts).dictionary_encode() if has_dictionary else pa.array(texts)
    table = pa.table({"n": range(100), "text": column})
    path = write_arrow(tmp_path / "a.arrow", table, form, compression, 7)
    for partition_bytes in (1, 100, 300, 10**6):
        monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", partition_bytes)
        assert read_file("arrow", path) == list(enumerate(texts))
    reader = make_reader({"kind": "arrow", **OPTIONS})
    for rows in ([0], [99], [6, 7, 50], [48, 49, 50, 98]):
        found = dict(row for part in reader.locate(str(path), rows) for row in read_all(reader, path, part))
        assert {row: found[row] for row in rows} == {row: texts[row] for row in rows}
        assert len(found) <= 7 * len(rows)
