"""The tests that every kind of source must pass, as one class; the tests of a kind are a small subclass.

The subclass writes rows. They are read only through the interface SourceReader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tokenloom.errors import BadRow, InputError
from tokenloom.tasks.sources import FileRange, Rows, SourceReader, base, make_reader
from tokenloom.tasks.sources.base import BATCH_BYTES, REASONS

Row = dict[str, Any]
Keeps = Callable[[Row], bool]

TEXTS = [
    "plain",
    "",
    "nul \0 inside",
    "one\r\ntwo\nthree\rfour",
    "emoji \U0001f469\u200d\U0001f680 and e\u0301, \u2028 too",
    "1 MB " * 200_000,
    "<|endoftext|>",
    'quotes " and , commas; \\backslash \\n',
    " spaces around ",
    "\ufeffmark",
]
FILTERS: list[tuple[str, Keeps]] = [  # tests/tokenloom/test_row_filter.py has the others
    ('lang != "en"', lambda row: row["lang"] is not None and row["lang"] != "en"),
    (
        'lang in ["de", "fr"] or score <= 0.25',
        lambda row: row["lang"] in ("de", "fr") or (row["score"] is not None and row["score"] <= 0.25),
    ),
    ('lang == "none of them"', lambda row: False),
]


def make_rows(texts: Sequence[str | None]) -> list[Row]:
    """Return rows with these texts, and an id, a score and a language derived from their position."""
    return [
        {"text": text, "id": f"id-{i}", "score": i % 7 / 7, "lang": ("en", "de", "fr")[i % 3]}
        for i, text in enumerate(texts)
    ]


def texts_of(batches: Sequence[Rows]) -> list[str | None]:
    """Return the texts of batches."""
    return [text for batch in batches for text in batch.texts.to_pylist()]


class SourceConformance:
    """The tests of one kind; a subclass defines how its files are written and what they can't hold."""

    kind: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    has_columns = True  # ids, filters, a name for the text
    has_nulls = True
    holds_empty_file = False  # a file without bytes has no rows, and is not an error
    reports_truncation = True  # a file that is cut off anywhere is an error
    is_cut = False  # a large file is cut into several partitions
    num_located = 1000  # rows that are located one by one

    def write(self, folder: Path, rows: Sequence[Row]) -> Path:
        """Write rows, return the path for SourceReader.files."""
        raise NotImplementedError

    def write_invalid(self, folder: Path, texts: list[bytes]) -> Path | None:
        """Write texts that need not be UTF-8; None if the kind can't hold them."""
        return None

    def expected(self, rows: Sequence[Row]) -> list[str | None]:
        """Return the texts that must be read."""
        return [row["text"] for row in rows]

    # Helpers

    def options_for(self, path: Path) -> dict[str, Any]:
        """Return the options of the source beside its path."""
        return {}

    def reader(self, path: Path, **options: Any) -> SourceReader:
        """Return a reader of the kind."""
        default = {"text": "text" if self.has_columns else None, "delimiter": ",", "max_bytes": 2**28, "split": "train"}
        return make_reader({"kind": self.kind, **default, **self.options, **self.options_for(path), **options})

    def urls(self, reader: SourceReader, path: Path) -> list[str]:
        """Return the files of a source."""
        return [file.url for file in reader.files("" if self.kind == "huggingface" else str(path))]

    def batches(self, path: Path, **options: Any) -> list[Rows]:
        """Read all files, partition by partition."""
        reader = self.reader(path, **options)
        return [
            batch
            for url in self.urls(reader, path)
            for part in reader.partitions(url)
            for batch in reader.read(url, part)
        ]

    @pytest.fixture
    def small_partitions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut after a few rows."""
        monkeypatch.setattr(base, "PARTITION_BYTES", 700)

    # Rows

    def test_texts_come_back_exactly(self, tmp_path: Path) -> None:
        rows = make_rows([*TEXTS, *([None, "three", None] if self.has_nulls else [])])
        assert texts_of(self.batches(self.write(tmp_path, rows))) == self.expected(rows)

    def test_every_row_is_read_once_and_in_order_whatever_the_cut(self, tmp_path: Path, small_partitions: None) -> None:
        rows = make_rows([f"text number {i} " * (i % 9 + 1) for i in range(97)])
        path = self.write(tmp_path, rows)
        reader = self.reader(path)
        texts: list[str | None] = []
        for url in self.urls(reader, path):
            numbers: list[int] = []
            parts = reader.partitions(url)
            assert parts == self.reader(path).partitions(url)
            assert parts[0].start == 0
            assert (len(parts) > 2) is self.is_cut
            assert all(part.start < part.end and part.num_bytes > 0 for part in parts)
            assert all(a.end == b.start for a, b in pairwise(parts))
            for part in parts:
                batches = list(reader.read(url, part))
                assert part.num_rows in (None, sum(batch.num_read for batch in batches))
                for batch in batches:
                    numbers += batch.rows.tolist()
                    texts += batch.texts.to_pylist()
                    assert batch.rows.dtype.name == "uint64"
                    assert batch.num_read == len(batch.rows) == len(batch.texts)
            assert numbers == sorted(set(numbers))
        assert texts == self.expected(rows)

    def test_batches_stay_small(self, tmp_path: Path) -> None:
        rows = make_rows([f"{i:6d}" + "x" * 150_000 for i in range(80)])
        batches = self.batches(self.write(tmp_path, rows))
        assert texts_of(batches) == self.expected(rows)
        assert max(sum(map(len, batch.texts.to_pylist())) for batch in batches) <= BATCH_BYTES + 150_000

    # Finding rows again

    def test_locate_finds_every_row(self, tmp_path: Path, small_partitions: None) -> None:
        path = self.write(tmp_path, make_rows([f"text number {i} " * (i % 5 + 1) for i in range(40)]))
        reader = self.reader(path)
        for url in self.urls(reader, path):
            texts = dict(self._read(reader, url, reader.partitions(url)))
            numbers = list(texts)
            chosen = random.Random(0).sample(numbers, min(self.num_located, len(numbers)))
            subsets = [sorted(random.Random(i).sample(numbers, 1 + i % len(numbers))) for i in range(8)]
            for wanted in [[row] for row in chosen] + subsets:
                ranges = reader.locate(url, wanted)
                assert all(a.end <= b.start for a, b in pairwise(ranges))
                found = list(self._read(reader, url, ranges))
                assert {row: text for row, text in found if row in wanted} == {row: texts[row] for row in wanted}
                assert all(texts[row] == text for row, text in found)

    def _read(self, reader: SourceReader, url: str, ranges: Sequence[FileRange]) -> Iterator[tuple[int, str | None]]:
        for part in ranges:
            for batch in reader.read(url, part):
                yield from zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)

    # Columns

    def _needs_columns(self) -> None:
        if not self.has_columns:
            pytest.skip("the kind has no columns")

    @pytest.mark.parametrize(("written", "keeps"), FILTERS, ids=[written for written, _ in FILTERS])
    def test_a_filter_keeps_what_python_would(self, tmp_path: Path, written: str, keeps: Keeps) -> None:
        self._needs_columns()
        rows = make_rows([f"text {i}" for i in range(50)])
        if self.has_nulls:
            for i in range(0, 50, 5):
                rows[i]["lang"] = None
                rows[(i + 2) % 50]["score"] = None
        batches = self.batches(self.write(tmp_path, rows), filter=written)
        assert texts_of(batches) == [row["text"] for row in rows if keeps(row)]
        assert sum(batch.num_read for batch in batches) == 50
        assert sum(batch.num_filtered for batch in batches) == sum(not keeps(row) for row in rows)

    def test_ids_come_as_text(self, tmp_path: Path) -> None:
        self._needs_columns()
        texts = make_rows([f"text {i}" for i in range(20)])
        for rows in (texts, [{**row, "id": 2**53 + i} for i, row in enumerate(texts)]):
            batches = self.batches(self.write(tmp_path, rows), id="id", filter='lang == "en"')
            ids = [i for batch in batches if batch.ids is not None for i in batch.ids.to_pylist()]
            assert ids == [str(row["id"]) for row in rows if row["lang"] == "en"]
        assert all(batch.ids is None for batch in self.batches(self.write(tmp_path, texts)))

    def test_a_missing_text_column_is_reported(self, tmp_path: Path) -> None:
        self._needs_columns()
        path = self.write(tmp_path, make_rows(["one", "two"]))
        with pytest.raises(InputError, match=r"'body'.*text, id, score, lang.*[sS]et text:") as raised:
            self.batches(path, text="body")
        assert str(tmp_path) in str(raised.value)

    # Bad files

    def _first_file(self, tmp_path: Path) -> tuple[Path, Path]:
        path = self.write(tmp_path, make_rows([f"text number {i} " * 20 for i in range(200)]))
        return path, Path(self.urls(self.reader(path), path)[0])

    def test_a_missing_file_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="missing"):
            self.batches(tmp_path / "missing")
        path, file = self._first_file(tmp_path)
        reader = self.reader(path)
        part = reader.partitions(str(file))[0]
        file.unlink()
        with pytest.raises(InputError, match=file.name):
            reader.partitions(str(file))
        with pytest.raises(InputError, match=file.name):
            list(reader.read(str(file), part))

    def test_an_empty_file_is_reported_or_has_no_rows(self, tmp_path: Path) -> None:
        path, file = self._first_file(tmp_path)
        file.write_bytes(b"")
        if self.holds_empty_file:
            assert texts_of(self.batches(path)) in ([], [""])
            return
        with pytest.raises(InputError, match=file.name):
            self.batches(path)

    def test_a_truncated_file_is_reported(self, tmp_path: Path) -> None:
        if not self.reports_truncation:
            pytest.skip("a prefix of such a file is a valid file")
        path, file = self._first_file(tmp_path)
        whole = file.read_bytes()
        cuts = [1, 100, len(whole) // 3, len(whole) // 2, len(whole) - 9, len(whole) - 8, len(whole) - 1]
        for end in cuts:
            file.write_bytes(whole[:end])
            with pytest.raises(InputError, match=file.name):
                self.batches(path)

    def test_random_bytes_are_reported(self, tmp_path: Path) -> None:
        path, file = self._first_file(tmp_path)
        for seed in range(10):
            file.write_bytes(random.Random(seed).randbytes(100_000))
            with pytest.raises(InputError, match=file.name):
                self.batches(path)

    # Invalid UTF-8

    def test_invalid_utf8_fails_or_is_replaced_or_skipped(self, tmp_path: Path) -> None:
        path = self.write_invalid(tmp_path, [b"good one", b"bad \xff\xfe one", "good tóo".encode()])
        if path is None:
            pytest.skip("the kind can store only UTF-8")
        with pytest.raises(BadRow, match=f"{tmp_path}.*invalid UTF-8") as raised:
            self.batches(path)
        assert raised.value.reason == "invalid_utf8" in REASONS
        replaced = self.batches(path, encoding_errors="replace")
        assert texts_of(replaced) == ["good one", "bad \ufffd\ufffd one", "good tóo"]
        batches = self.batches(path, on_error="skip")
        assert texts_of(batches) == ["good one", "good tóo"]
        assert [one.reason for batch in batches for one in batch.bad] == ["invalid_utf8"]
        assert sum(batch.num_read for batch in batches) == 3
