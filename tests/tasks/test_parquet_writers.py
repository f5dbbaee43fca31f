"""Parquet files of other libraries, as those libraries write them: each text round-trips.

A build reads them; what was handed to the library is all that the shards are compared with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, make_spec, stored_documents
from tests.counts import full_only
from tests.tasks.source_conformance import TEXTS as ANY_KIND

# pandas 3 warns whenever this engine is used, but files written by it exist.
through_pandas = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")

GROUP_ROWS = 100
ODD = [None, *ANY_KIND, "nan", "None", "1.0", "\U0010ffff"]


def _encoded(texts: Sequence[str | None]) -> list[bytes | None]:
    return [None if text is None else text.encode() for text in texts]


_NUMBERS = random.Random(1)
PLAIN: list[str | None] = [f"text {i} é漢 " * _NUMBERS.randrange(1, 20) for i in range(3 * GROUP_ROWS)]
PLAIN[:10], PLAIN[150:160] = ["repeated"] * 10, [None] * 10
TEXTS = [*ODD, *PLAIN, *ODD]


def built(path: Path, **options: str) -> tuple[dict[int, str], dict[str, int]]:
    """Build files; return {row: text} and the manifest's counts."""
    source = {"kind": "parquet", "path": str(path), **options}
    spec = make_spec(path.parent / "store", [source], documents={"deduplicate": False})
    result = build(spec)
    documents = stored_documents(spec, result.version)
    found = {document["row"]: document["ids"].tobytes().decode() for document in documents}
    assert len(found) == len(documents)
    return found, result.rows


def assert_round_trips(path: Path, texts: Sequence[str | None] = TEXTS, num_groups: int | None = None) -> None:
    """Build one file and compare all of its rows; `num_groups` is how many row groups it must have, at least."""
    if num_groups is not None:
        assert pq.read_metadata(path).num_row_groups >= num_groups
    wanted = {row: text for row, text in enumerate(texts) if text}
    found, counts = built(path)
    assert found == wanted
    assert (counts["read"], counts["kept"]) == (len(texts), len(wanted))
    assert counts["filtered"] == len(texts) - len(wanted)


# pyarrow

_CODECS = [
    name
    for name in ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
    if name == "none" or pa.Codec.is_available(name)
]
_PYARROW: list[dict[str, Any]] = [
    *({"compression": name} for name in _CODECS),
    *({"data_page_version": version, "use_dictionary": has} for version in ("1.0", "2.0") for has in (True, False)),
    *(
        {"use_dictionary": False, "column_encoding": {"text": encoding}}
        for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
    ),
    {"use_dictionary": False, "use_byte_stream_split": ["number", "score"]},
    {"compression": {"text": "zstd", "number": "none", "score": "gzip"}, "compression_level": {"text": 19}},
    {"use_content_defined_chunking": True},
    {"store_schema": False},
    {"version": "1.0"},
    {"data_page_size": 1000, "dictionary_pagesize_limit": 1000},
    {"write_statistics": False, "write_page_index": False},
    {"write_page_index": True, "write_page_checksum": True},
]


@pytest.mark.parametrize("options", _PYARROW, ids=str)
def test_pyarrow(tmp_path: Path, options: dict[str, Any]) -> None:
    number = pa.array(range(len(TEXTS)), pa.int32())
    table = pa.table({"number": number, "score": number.cast(pa.float64()), "text": pa.array(TEXTS, pa.string())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=GROUP_ROWS, **options)
    assert_round_trips(tmp_path / "a.parquet", num_groups=4)


@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.large_binary()],
    ids=str,
)
def test_pyarrow_types(tmp_path: Path, kind: pa.DataType, store_schema: bool) -> None:
    table = pa.table({"text": pa.array(TEXTS, pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=GROUP_ROWS, store_schema=store_schema)
    assert_round_trips(tmp_path / "a.parquet", num_groups=4)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)], ids=str
)
def test_lists_of_pyarrow_are_their_lines(tmp_path: Path, kind: pa.DataType) -> None:
    lists = [[f"one {i}", "two"] for i in range(200)]
    table = pa.table({"text": pa.array(lists, kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=70, data_page_version="2.0", data_page_size=100)
    assert_round_trips(tmp_path / "a.parquet", ["\n".join(lines) for lines in lists], num_groups=3)


def test_a_text_inside_of_structs(tmp_path: Path) -> None:
    rows = [None if i % 7 == 0 else {"body": {"en": text}, "n": i} for i, text in enumerate(TEXTS)]
    kind = pa.struct({"body": pa.struct({"en": pa.string()}), "n": pa.int64()})
    pq.write_table(pa.table({"meta": pa.array(rows, kind)}), tmp_path / "a.parquet", row_group_size=GROUP_ROWS)
    found, counts = built(tmp_path / "a.parquet", text="meta.body.en")
    assert found == {i: text for i, text in enumerate(TEXTS) if text and i % 7}
    assert counts["read"] == len(TEXTS)


# pandas


@through_pandas
@pytest.mark.parametrize("dtype", ["object", "str", "string[python]", "string[pyarrow]", "category"])
@pytest.mark.parametrize("engine", ["pyarrow", "fastparquet"])
def test_pandas(tmp_path: Path, engine: Any, dtype: Any) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip(engine)
    frame = pd.DataFrame({"number": range(len(TEXTS)), "text": pd.Series(TEXTS, dtype=dtype)})
    sizes = {"row_group_size": GROUP_ROWS} if engine == "pyarrow" else {"row_group_offsets": GROUP_ROWS}
    frame.to_parquet(tmp_path / "a.parquet", engine=engine, **sizes)
    assert_round_trips(tmp_path / "a.parquet", num_groups=4)


# polars


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["String", "Categorical", "Binary"])
def test_polars(tmp_path: Path, compression: Any, kind: str) -> None:
    pl = pytest.importorskip("polars")
    values = _encoded(TEXTS) if kind == "Binary" else TEXTS
    frame = pl.DataFrame({"number": range(len(TEXTS)), "text": pl.Series(values, dtype=getattr(pl, kind))})
    frame.write_parquet(tmp_path / "a.parquet", compression=compression, row_group_size=GROUP_ROWS)
    assert_round_trips(tmp_path / "a.parquet", num_groups=4)


# DuckDB


@pytest.mark.parametrize(
    "options", ["compression zstd, parquet_version v2", "compression lz4_raw", "parquet_version v1"]
)
@pytest.mark.parametrize("kind", ["varchar", pytest.param("blob", marks=full_only)])
def test_duckdb(tmp_path: Path, options: str, kind: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    texts = TEXTS + PLAIN * 8  # it writes row groups of at least 2,048 rows
    with duckdb.connect() as connection:
        values = _encoded(texts) if kind == "blob" else texts
        connection.register(
            "texts", pa.table({"text": pa.array(values, pa.binary() if kind == "blob" else pa.string())})
        )
        target = tmp_path / "a.parquet"
        connection.execute(f"copy (from texts) to '{target}' (format parquet, row_group_size 2048, {options})")
    assert_round_trips(tmp_path / "a.parquet", texts, num_groups=2)
