"""Hostile input: mutants and forged files give the right rows or a named error; so do the files of the data folder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import raw_parquet as raw
from tests.builders.datasets import build, write_parquet
from tests.builders.good_files import DATA, NUM_ROWS, real_texts
from tests.builders.refusals import assert_nothing_visible, spec_of
from tests.counts import SUMMARY, count
from tests.drivers import mutants as program
from tests.drivers.mutants import Case, Children, Outcome, read_as_built, read_plainly
from tokenloom.errors import WorkerLost
from tokenloom.flows import direct


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()


def read(children: Children, path: Path, data: bytes, **options: Any) -> Outcome:
    """Write a parquet file and read it in a worker as a build does."""
    path.write_bytes(data)
    return children.call(read_as_built, Case(str(path), {"kind": "parquet", **options}))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_mutants_give_the_rows_of_a_plain_reading_or_a_named_error(tmp_path: Path) -> None:
    wanted = count(20, 1000)
    for name, tally in program.run(wanted, tmp_path).items():
        SUMMARY.append(
            f"mutants of {name}: {tally.right} right ({tally.changed} with other rows), {tally.refused} refused, "
            f"{tally.lost} lost workers, {tally.peak / 1e6:.0f} MB"
        )
        assert tally.wrong == []
        assert tally.right + tally.refused + tally.lost == wanted
        assert min(tally.right, tally.refused) > wanted // 20, (
            "nearly all files are read or nearly all refused, so the damage shows nothing"
        )


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_flipped_bit_in_any_page_with_a_checksum_is_found_and_named(
    compression: str, version: str, use_dictionary: bool, tmp_path: Path, children: Children
) -> None:
    table, sink = pa.table({"text": real_texts()[0][:NUM_ROWS]}), io.BytesIO()
    options: dict[str, Any] = {"compression": compression, "data_page_version": version}
    pq.write_table(table, sink, row_group_size=8, write_page_checksum=True, use_dictionary=use_dictionary, **options)
    whole, num_pages = sink.getvalue(), 0
    metadata = pq.ParquetFile(sink).metadata
    assert read(children, tmp_path / "a.parquet", whole).texts == table["text"].to_pylist()
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(0)
        starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
        for end in [*starts[1:], starts[0] + chunk.total_compressed_size]:
            for at in (end - 1, end - 4):
                damaged = bytearray(whole)
                damaged[at] ^= 1 << (at % 8)
                found = read(children, tmp_path / "a.parquet", bytes(damaged))
                assert found.texts is None
                assert f"a.parquet, row group {group}, after row 0 of it" in found.said
                assert "CRC checksum" in found.said
            num_pages += 1
    assert num_pages == metadata.num_row_groups * (2 if use_dictionary else 1) == 5 * (2 if use_dictionary else 1)


TEN = raw.page(raw.DATA_PAGE, 10, b"\1" + raw.run(10), raw.RLE_DICTIONARY)
ONE = raw.page(raw.DICTIONARY_PAGE, 1, raw.plain([b"hello"]), raw.PLAIN)


@pytest.mark.parametrize(("num_rows", "num_values"), [(5, 10), (10, 5), (0, 10), (-10, 10)])
def test_a_footer_that_hides_rows_is_refused(
    num_rows: int, num_values: int, tmp_path: Path, children: Children
) -> None:
    """Arrow trusts the footer, and the remaining rows are lost silently."""
    found = read(children, tmp_path / "a.parquet", raw.file_of([ONE, TEN], num_rows, num_values=num_values))
    assert found.texts is None
    assert f"a.parquet, row group 0: its footer says {num_rows} rows, and {num_values} values" in found.said


@pytest.mark.parametrize("index", [1, 7, 255])
@pytest.mark.parametrize("row_bytes", [1, 1000])
def test_a_reference_beyond_the_dictionary_is_refused(
    row_bytes: int, index: int, tmp_path: Path, children: Children
) -> None:
    """Return whether a column is read as a dictionary, as a column of small rows is."""
    bad = raw.page(raw.DATA_PAGE, 10, b"\x08" + raw.run(10, index), raw.RLE_DICTIONARY)
    found = read(children, tmp_path / "a.parquet", raw.file_of([ONE, bad], 10, num_bytes=10 * row_bytes))
    assert found.texts is None
    assert "a.parquet, row group 0, after row 0 of it: can't be decoded" in found.said


def test_a_file_that_kills_its_worker_is_named_and_the_build_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow 26 ends the process at a histogram of the wrong length, which a footer can contain."""
    monkeypatch.setattr(direct, "RETRY_SECONDS", (0, 0, 0))
    path = tmp_path / "bad.parquet"
    path.write_bytes(raw.file_of([ONE, TEN], 10, histogram=[1, 2, 3]))
    with pytest.raises(WorkerLost, match=rf"cutting {path} into partitions: crashed in native code "):
        build(spec_of(path), num_workers=1)
    assert_nothing_visible(spec_of(path))
    write_parquet(path, ["good"])
    assert build(spec_of(path), num_workers=1).published


# The data folder

_COLUMNS = {"tang_poems": "paragraphs", "scisummnet": "article", "stories": "story", "boolq": "passage"}
_COLUMNS |= {"sciq": "support", "openbookqa": "question_stem"}


def _options(path: Path) -> dict[str, Any]:
    """Return the options for a file by its suffix; an unknown kind is read as text."""
    column = next((column for part, column in _COLUMNS.items() if part in str(path)), "text")
    suffix = next((s for s in path.suffixes if s in (".parquet", ".arrow", ".jsonl", ".json")), "")
    kind = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "jsonl", ".json": "jsonl"}.get(suffix, "text")
    separator = "<|endoftext|>" if "endoftext" in path.name else None
    return {"kind": kind, "text": column, "separator": separator, "max_bytes": 2**28}


@pytest.mark.slow
def test_every_file_of_the_data_folder_is_read_or_refused_by_name(children: Children) -> None:
    if not DATA.is_dir():
        pytest.skip("TOKENLOOM_TEST_DATA names no folder")
    paths = sorted(path for path in DATA.rglob("*") if path.is_file())
    refused = {}
    for path in paths:
        case = Case(str(path), _options(path))
        found, plain = children.call(read_as_built, case), children.call(read_plainly, case)
        assert not found.fault, found
        if found.texts is None:
            assert plain.texts is None, (path, found.said)
            assert str(path) in found.said
            refused[path.name] = found.said
        else:
            assert (found.texts, found.num_rows) == (plain.texts, plain.num_rows), path
    assert len(paths) - len(refused) > 30
    conversations = {path.name for path in (DATA / "chat").glob("*.jsonl")}  # they have no key "text"
    others = refused.keys() - conversations
    assert all(path.suffix in (".zip", ".json", ".v1", ".model", "") for path in map(Path, others)), refused
