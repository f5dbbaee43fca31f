"""Formats of tokens: where documents end, read in pieces and by parts; what is damaged, cut off or foreign."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.token_files import documents_in, masks_in
from tests.counts import count
from tokenloom.errors import InputError
from tokenloom.tasks.sources import FileRange, Rows, SourceReader, make_reader, tokens
from tokenloom.tasks.sources.base import INDEX, MASK

_EOT, _BOS = 0, 1
_MB = 2**20
_IDS = [5, 6, _EOT, 7, _EOT]  # of the small files below: two documents


def _reader(form: str, has: Sequence[str] | None = (), **options: Any) -> SourceReader:
    """Return a reader; `has` is what is beside its files, None while they are listed."""
    default = {"eot_id": _EOT, "bos_id": None, "vocab_size": 50_000, "max_bytes": 256 * _MB}
    found = {} if has is None else {"has": list(has)}
    return make_reader({"kind": "tokens", "format": form, **default, **found, **options})


def read_all(form: str, path: Path, **options: Any) -> list[Rows]:
    """Return what a source reads."""
    files = _reader(form, None, **options).files(str(path))
    readers = [(_reader(form, **options, **file.options), file.url) for file in files]
    return [rows for reader, url in readers for part in reader.partitions(url) for rows in reader.read(url, part)]


def _plain(ids: list[int], leading_id: int | None) -> list[tuple[int, list[int]]]:
    """Return the row and the ids of each document that ends with _EOT, one token after the other."""
    documents, begin = [], 0
    bos_id = leading_id if ids[:1] == [leading_id] else None
    for i in range(len(ids)):
        is_end = ids[i] == _EOT and (bos_id is None or ids[i + 1 : i + 2] in ([], [bos_id]))
        if is_end or i + 1 == len(ids):
            document = ids[begin : i + 1]
            stripped = document[1:] if document[0] == leading_id else document
            documents.append((begin, stripped[:-1] if stripped[-1:] == [_EOT] else stripped))
            begin = i + 1
    return documents


@settings(max_examples=count(150, 3000), deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), max_size=60),
    bos_id=st.sampled_from([None, _BOS]),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    piece_tokens=st.integers(1, 8),
)
def test_inferred_documents_are_those_of_a_plain_loop_however_the_file_is_cut(
    ids: list[int], bos_id: int | None, cuts: list[int], piece_tokens: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("ids") / "ids.bin"
    np.array(ids, np.uint16).tofile(path)
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    expected = _plain(ids, bos_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BATCH_TOKENS", piece_tokens)
        reader = _reader("nanogpt", bos_id=bos_id)
        found = [rows for part in pairwise(bounds) for rows in reader.read(str(path), FileRange(*part))]
        assert documents_in(found) == expected
        for row, document in expected:
            again = [rows for part in reader.locate(str(path), [row]) for rows in reader.read(str(path), part)]
            assert documents_in(again) == [(row, document)]


@settings(max_examples=count(80, 1000), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(sum),
    cut=st.integers(1, 20),
    piece_tokens=st.integers(1, 8),
    index_documents=st.integers(1, 5),
)
def test_indexed_documents_and_their_masks_are_read_by_number(
    lengths: list[int], cut: int, piece_tokens: int, index_documents: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("ids") / "a.ds"
    ends = np.cumsum(lengths, dtype=np.uint64)
    ids = np.arange(1, sum(lengths) + 1, dtype=np.uint16)
    learned = (ids % 3 == 0).astype(np.uint8)
    ids.tofile(path)
    ends.tofile(f"{path}.index")
    learned.tofile(f"{path}.loss")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BATCH_TOKENS", piece_tokens)
        patch.setattr(tokens, "INDEX_DOCUMENTS", index_documents)
        reader = _reader("datatrove", has=[INDEX, MASK])
        bounds = [0, *[cut] * (cut < len(lengths)), len(lengths)]
        found = [rows for part in pairwise(bounds) for rows in reader.read(str(path), FileRange(*part))]
    parts = np.split(ids, ends[:-1].astype(np.int64)), np.split(learned, ends[:-1].astype(np.int64))
    assert documents_in(found) == list(enumerate(part.tolist() for part in parts[0]))
    assert masks_in(found) == [[*part.tolist(), 0] for part in parts[1]]  # the end-of-text id is not in the file


@pytest.mark.parametrize("has_index", [False, True])
def test_a_document_above_the_limit_is_bad_and_the_next_one_is_read(
    has_index: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "BATCH_TOKENS", 8)
    ids = [5, _EOT, *[6] * 100, _EOT, 7, _EOT, *[8] * 19, _EOT]
    np.array(ids, np.uint16).tofile(tmp_path / "a.ds")
    np.array([2, 103, 105, 125], np.uint64).tofile(tmp_path / "a.ds.index")
    path, has = str(tmp_path / "a.ds"), [INDEX] * has_index
    expected = [(0, [5]), (2 if has_index else 103, [7]), (3 if has_index else 105, [8] * 19)]
    skipping = _reader("datatrove", has, max_bytes=80, on_error="skip")
    end = skipping.partitions(path)[-1].end
    found = list(skipping.read(path, FileRange(0, end)))
    assert documents_in(found) == expected
    (bad,) = [bad for rows in found for bad in rows.bad]
    assert (bad.row, bad.reason) == (1 if has_index else 2, "too_large")
    assert documents_in(list(skipping.read(path, FileRange(2 if has_index else 50, end)))) == expected[1:]
    with pytest.raises(InputError, match=r"a.ds, document .*: .* too many for documents.max_bytes, which counts 4"):
        list(_reader("datatrove", has, max_bytes=80).read(path, FileRange(0, end)))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each read of a file asks for."""
    reads, real = [], tokens.read_values

    def noting(file: Any, url: str, position: int, count: int, dtype: Any) -> Any:
        reads.append(count)
        return real(file, url, position, count, dtype)

    monkeypatch.setattr(tokens, "read_values", noting)
    return reads


def test_memory_holds_a_document_not_the_file(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "BATCH_TOKENS", 100)
    np.array([*[5] * 150, _EOT] * 60, np.uint16).tofile(tmp_path / "ids.bin")
    assert len(documents_in(read_all("nanogpt", tmp_path / "ids.bin"))) == 60
    assert max(reads) <= 201


def test_a_document_is_read_again_without_much_of_the_file(tmp_path: Path, reads: list[int]) -> None:
    np.array([5, 6, _EOT] * 700_000, np.uint16).tofile(tmp_path / "ids.bin")
    reader = _reader("nanogpt")
    (part,) = reader.locate(str(tmp_path / "ids.bin"), [300_000])
    assert documents_in(list(reader.read(str(tmp_path / "ids.bin"), part))) == [(300_000, [5, 6])]
    assert sum(reads) < 10_000


# The formats


def _olmo(folder: Path, lines: str = "0,3\n3,5\n", mask: bytes | None = None) -> Path:
    path = folder / "token_ids_part_0000.npy"
    np.array(_IDS, np.uint16).tofile(path)
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(lines.encode()))
    if mask is not None:
        (folder / "labels_mask_part_0000.npy").write_bytes(mask)
    return path


def _datatrove(folder: Path, ends: list[int], metadata: str = "gpt2|2\n5\n5 T") -> Path:
    np.array(_IDS, np.uint16).tofile(folder / "a.ds")
    np.array(ends, np.uint64).tofile(folder / "a.ds.index")
    (folder / "a.ds.metadata").write_text(metadata)
    return folder / "a.ds"


def _llmc(folder: Path, ids: list[int], header: list[int] | None = None, dtype: str = "<u2") -> Path:
    values = np.zeros(256, "<i4")
    values[:4] = header or [20240520, 1, len(ids), 0]
    (folder / "x_train_000000.bin").write_bytes(values.tobytes() + np.array(ids, dtype).tobytes())
    return folder / "x_train_000000.bin"


def test_lines_of_olmo_may_have_more_fields_and_may_be_missing(tmp_path: Path) -> None:
    path = _olmo(tmp_path, '0,2,"a,""\nb",s3://x,1\r\n2,5,c,s3://x,2\r\n')  # as dolma's tool writes
    assert documents_in(read_all("olmo", path)) == [(0, [5, 6]), (1, [_EOT, 7])]
    path.with_suffix(".csv.gz").unlink()
    assert documents_in(read_all("olmo", path)) == [(0, [5, 6]), (3, [7])]


def test_lines_that_are_cut_off_are_reported(tmp_path: Path) -> None:
    path = _olmo(tmp_path, "".join(f"{i},{i + 1}\n" for i in range(5)))
    packed = path.with_suffix(".csv.gz")
    whole = packed.read_bytes()
    for end in range(len(whole)):
        packed.write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"csv\.gz"):
            read_all("olmo", path)


def _saved(folder: Path) -> Path:
    """Write what numpy.save writes."""
    with (folder / "a.npy").open("wb") as file:
        np.save(file, np.zeros(5, np.uint16))
    return folder / "a.npy"


def _raw(name: str, data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


def _alone(folder: Path) -> Path:
    _olmo(folder, mask=b"\1\0\1\1\1")
    return folder / "labels_*.npy"


def _without_index(folder: Path) -> Path:
    path = _olmo(folder, mask=b"\1\1\0\1\1\1")
    path.with_suffix(".csv.gz").unlink()
    return path


_LLMC_HEADER = np.array([20240520, 1, 5, 0, *[0] * 252], "<i4").tobytes()
_WRONG: list[tuple[str, Callable[[Path], Path], str]] = [
    ("olmo", partial(_olmo, lines="0,3\n"), r"csv.gz: documents \[0, 1\) are tokens \[0, 3\), .*, which has 5: a"),
    ("olmo", partial(_olmo, lines="0,3\n3,6\n"), r"csv.gz: documents \[0, 2\) are tokens \[0, 6\), not"),
    ("olmo", partial(_olmo, lines="0,3\n4,5\n"), "csv.gz, line 2: 4,5 is not a document from token 3 on; copy"),
    ("olmo", partial(_olmo, lines="0,3\n3,3\n3,5\n"), "line 2: 3,3 is not"),
    ("olmo", partial(_olmo, lines=""), "csv.gz: not lines of start,end"),
    ("olmo", partial(_olmo, lines="0,3\n3,x\n"), "csv.gz: not lines of start,end"),
    ("olmo", partial(_olmo, mask=b"\1\1\0\1"), "labels_mask_part_0000.npy: 4 tokens, and .*ids_part_0000.npy says 5"),
    ("olmo", _without_index, "labels_mask_part_0000.npy: 6 tokens, and .*ids_part_0000.npy says 5: a file was cut"),
    ("olmo", partial(_olmo, mask=b"\1\1\0\1\2"), "npy, document 1: column loss_mask has 2 where .* masks are 0 or 1"),
    ("olmo", _alone, "labels_mask_part_0000.npy: a mask, .* token file token_ids_part_0000.npy"),
    ("olmo", _saved, r"a.npy: it begins with a header, not with ids; write numpy's array with tofile\(\)"),
    ("datatrove", _raw("a.ds", _LLMC_HEADER + bytes(10)), "a.ds: it begins with a header, .* set format: llmc"),
    ("nanogpt", _raw("a.bin", b"12345"), "a.bin: 5 bytes are not a multiple of the 2 of uint16"),
    ("nanogpt", _raw("a.txt", b"12"), "a.txt: the ids of nanogpt are in .bin files; write a path such as"),
    ("llmc", _raw("a.bin", _LLMC_HEADER[:1000]), "a.bin: it ends at byte 1,000"),
    ("llmc", partial(_llmc, ids=_IDS, header=[20240521, 1, 5, 0]), "it begins with 20240521, 1, not a header of llm.c"),
    ("llmc", partial(_llmc, ids=_IDS, header=[20240520, 1, 6, 0]), "1,034 bytes, and its header says 1,036"),
    ("llmc", partial(_llmc, ids=_IDS, header=[20240520, 1, -1, 0]), "1,034 bytes, and its header says 1,022"),
    ("llmc", partial(_llmc, ids=_IDS, header=[278895051, 1, 5, 3]), "it begins with 278895051, 1, not a header"),
    ("datatrove", partial(_datatrove, ends=[3, 4]), r"a.ds.index: documents \[0, 2\) are tokens \[0, 4\), .*a.ds"),
    ("datatrove", partial(_datatrove, ends=[]), "a.ds: 5 tokens, and its index says 0"),
    ("datatrove", partial(_datatrove, ends=[4, 3, 5]), "a.ds.index: documents .*, not in turn those of"),
    ("datatrove", partial(_datatrove, ends=[2**63 + 1, 5]), "a.ds.index: documents .*, not in turn those of"),
    ("datatrove", partial(_datatrove, ends=[3, 5], metadata="gpt2|2\n6\n"), "a.ds: 5 tokens, and .*a.ds.metadata says"),
    ("datatrove", partial(_datatrove, ends=[3, 5], metadata="gpt2|3\n5\n"), "a.ds.metadata: not metadata of datatrove"),
    ("datatrove", partial(_datatrove, ends=[5], metadata=f"gpt2|2\n{'9' * 5_000}\n"), "not metadata of datatrove"),
]


@pytest.mark.parametrize(("form", "write", "message"), _WRONG)
def test_files_that_do_not_fit_or_are_something_else_are_reported(
    form: str, write: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_all(form, write(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_vocabulary_too_large_for_nanogpt_needs_a_type(tmp_path: Path) -> None:
    np.array([5, _EOT, 6], np.uint32).tofile(tmp_path / "train.bin")
    with pytest.raises(InputError, match=r"train.bin: nanoGPT's 16 bits can't hold 70,000 ids; set dtype"):
        read_all("nanogpt", tmp_path / "train.bin", vocab_size=70_000)
    found = read_all("nanogpt", tmp_path / "train.bin", vocab_size=70_000, dtype="uint32")
    assert documents_in(found) == [(0, [5]), (2, [6])]


def test_the_metadata_of_datatrove_says_the_type_of_ids(tmp_path: Path) -> None:
    path = _datatrove(tmp_path, [2, 5], "Unknown|Tokenizer|2\n5\n5 T")
    assert documents_in(read_all("datatrove", path, vocab_size=100_000)) == [(0, [5, 6]), (1, [_EOT, 7])]
    Path(f"{path}.metadata").unlink()
    Path(f"{path}.index").unlink()
    assert documents_in(read_all("datatrove", path)) == [(0, [5, 6]), (3, [7])]


@pytest.mark.parametrize(
    ("header", "dtype"), [([20240520, 1, 6, 0], "<u2"), ([20240801, 7, 6, 0], "<u4"), ([278895051, 1, 6, 4], "<u4")]
)
def test_an_end_of_text_id_begins_the_documents_of_llmc(header: list[int], dtype: str, tmp_path: Path) -> None:
    ids = [_EOT, 5, 6, _EOT, 7, 8]
    assert documents_in(read_all("llmc", _llmc(tmp_path, ids, header, dtype))) == [(1, [5, 6]), (4, [7, 8])]
    cut = [5, 6, _EOT, 7, _EOT, 8]  # its first document began in the file before
    assert documents_in(read_all("llmc", _llmc(tmp_path, cut, header, dtype))) == [(0, [5, 6]), (3, [7]), (5, [8])]


def test_a_person_is_told_what_a_format_does_not_say(tmp_path: Path) -> None:
    path = _olmo(tmp_path)
    others: dict[str, list[Any]] = {"attention_mask": [[1]], "special_tokens_mask": [[0]], "weight": [1]}
    rows = _written(tmp_path / "a.parquet", _table([[5]], None, **others))
    for form, file, has, expected in [
        ("olmo", path, [], r"no index, so a document ends with the id 0$"),
        ("olmo", path, [INDEX], None),
        ("datatrove", _datatrove(tmp_path, [3, 5]), [INDEX, "metadata"], "its metadata says that gpt2 made the ids"),
        ("huggingface", rows, [INDEX, "attention_mask"], "other columns are not read: special_tokens_mask, weight$"),
    ]:
        notes = _reader(form, has=has).notes(str(file))
        assert len(notes) == (expected is not None)
        assert all(re.search(f"{file.name}: .*{expected}", note) for note in notes)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int32", "int64"])
def test_raw_ids_are_of_the_type_that_is_given(dtype: str, tmp_path: Path) -> None:
    for form, name in [("olmo", "a.npy"), ("nanogpt", "a.bin"), ("datatrove", "a.ds")]:
        np.array(_IDS, dtype).tofile(tmp_path / name)
        assert documents_in(read_all(form, tmp_path / name, dtype=dtype)) == [(0, [5, 6]), (3, [7])]


# Rows of Hugging Face


def _table(rows: list[Any], labels: list[Any] | None = None, kind: Any = None, **others: list[Any]) -> pa.Table:
    columns = {"input_ids": pa.array(rows, pa.list_(kind or pa.int32()))}
    if labels is not None:
        columns["labels"] = pa.array(labels, pa.list_(pa.int64()))
    return pa.table(columns | others)


def _written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


@pytest.fixture(params=["a.parquet", "a.arrow"])
def file_of_rows(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path of either kind of file."""
    return tmp_path / str(request.param)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()])
def test_rows_of_any_integer_type_are_read(kind: Any, file_of_rows: Path) -> None:
    rows = [[5, 6, _EOT], None, [], [7], [8, 9, 10], [_EOT]]
    ones = [None if row is None else [1] * len(row) for row in rows]
    path = _written(file_of_rows, _table(rows, None, kind, attention_mask=ones, source=list("abcdef")))
    expected = [[5, 6], [], [], [7], [8, 9, 10], []]
    assert documents_in(read_all("huggingface", path)) == list(enumerate(expected))
    reader = _reader("huggingface", has=["index", "attention_mask"])
    again = [rows for part in reader.locate(str(path), [4]) for rows in reader.read(str(path), part)]
    assert (4, [8, 9, 10]) in documents_in(again)


@pytest.mark.parametrize("name", ["assistant_masks", "completion_mask", "loss_mask"])
@pytest.mark.parametrize("kind", [pa.int8(), pa.bool_()])
def test_masks_beside_the_ids_say_what_is_learned(name: str, kind: Any, file_of_rows: Path) -> None:
    rows = [[5, 6, _EOT], [7, 8], []]
    mask = pa.array([[0, 1, 1], [1, 0], []], pa.list_(pa.int8())).cast(pa.list_(kind))
    found = read_all("huggingface", _written(file_of_rows, _table(rows, **{name: mask})))
    assert masks_in(found) == [[0, 1, 1], [1, 0, 0], [0]]
    labels = [[5, -100, _EOT], [7, 8], []]  # each column may keep a token out
    found = read_all("huggingface", _written(file_of_rows, _table(rows, labels, **{name: mask})))
    assert masks_in(found) == [[0, 0, 1], [1, 0, 0], [0]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6))
def test_padding_is_no_part_of_a_document(
    tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("padded") / "a.parquet"
    rows = [[9] * left + [5] * count + [9] * right for left, count, right in shape]
    attention = pa.array([[0] * left + [1] * count + [0] * right for left, count, right in shape], pa.list_(pa.int8()))
    labels = [[-100] * left + [5] * count + [-100] * right for left, count, right in shape]
    for table in (_table(rows, attention_mask=attention), _table(rows, labels, attention_mask=attention)):
        found = read_all("huggingface", _written(path, table))
        assert documents_in(found) == [(i, [5] * count) for i, (_, count, _) in enumerate(shape)]
    assert masks_in(found) == [[1] * count + [0] for _, count, _ in shape]


_IDS_OF_ROWS = [[5], [6, 7, 8]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"attention_mask": [[1], [1, 0, 1]]}, "row 1: attention_mask is 0 within the row; zeros are padding"),
        ({"attention_mask": [[1], [1, 2, 2]]}, "row 1: column attention_mask has 2 where the id is 7; masks are 0"),
        ({"loss_mask": [[1], [1, 1]]}, "row 1: 3 ids and 2 loss_mask; repair the row"),
        ({"completion_mask": [[1], [1, None, 1]]}, "row 1: column completion_mask has -1 where"),
        ({"prompt_mask": [[1], [1, 0, 0]]}, "column 'prompt_mask' seems to say which ids are learned; .* as loss_mask"),
        ({"weights": [[1.0], [0.0, 1.0, 0.5]]}, "column 'weights' seems to say which ids are learned"),
        ({"assistant_masks": [[1.0], [0.0] * 3]}, "column 'assistant_masks' is list<.*double>, not lists of integers"),
        ({"labels": [[5], [8, 7, -100]]}, r"row 1: column labels has 8 where the id is 6; .*, not shifted: correct"),
        ({"labels": [[5], None]}, "row 1: 3 ids and 0 labels"),
        ({"labels": [[None], [6, 7, 8]]}, "row 0: column labels has -1 where the id is 5"),
        ({"labels": [1, 2]}, "column 'labels' is int64, not lists of integers"),
        ({"input_ids": [[0.5], [1.0]]}, "column 'input_ids' is list<.*double>, not lists of integers"),
        ({"input_ids": None, "text": ["a", "b"]}, "not one column 'input_ids'; its columns are: text. Rename columns"),
    ],
)
def test_columns_that_do_not_fit_the_ids_are_reported(table: Any, message: str, file_of_rows: Path) -> None:
    columns = {name: values for name, values in ({"input_ids": _IDS_OF_ROWS} | table).items() if values is not None}
    with pytest.raises(InputError, match=message):
        read_all("huggingface", _written(file_of_rows, pa.table(columns)))


@pytest.mark.parametrize(
    ("row", "kind"), [([5, 50_000], pa.int32()), ([5, -1], pa.int32()), ([2**64 - 1, None], pa.uint64())]
)
def test_rows_with_ids_outside_of_the_vocabulary_are_bad(row: list[Any], kind: Any, file_of_rows: Path) -> None:
    path = _written(file_of_rows, _table([[5], row], None, kind))
    with pytest.raises(InputError, match=r"row 1: its token [01] is .*, outside of the vocabulary"):
        read_all("huggingface", path)
    assert documents_in(read_all("huggingface", path, on_error="skip")) == [(0, [5])]


def test_rows_of_a_damaged_page_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = _table([[5, 6], [7], [8], [9, 10]])
    pq.write_table(table, path, row_group_size=2, use_dictionary=False, compression="none", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match="row group 0, after row 0 of it: can't be decoded"):
        read_all("huggingface", path)
    batches = read_all("huggingface", path, on_error="skip")
    assert [(row.row, row.num_rows, row.reason) for rows in batches for row in rows.bad] == [(0, 2, "bad_page")]
    assert documents_in(batches) == [(2, [8]), (3, [9, 10])]


def test_labels_that_only_some_files_have_are_reported(tmp_path: Path) -> None:
    rows = [[5, 6], [7]]
    for of_a, of_b, has in [(rows, None, "lacks"), (None, rows, "has")]:
        _written(tmp_path / "a.arrow", _table(rows, of_a))
        _written(tmp_path / "b.arrow", _table(rows, of_b))
        with pytest.raises(InputError, match=f"b.arrow: it {has} labels, unlike the first file of its source; read"):
            read_all("huggingface", tmp_path / "*.arrow")
