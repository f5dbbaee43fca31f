"""Datasets of Hugging Face with a column `input_ids`: folders of save_to_disk, Arrow files, parquet files.

`labels` (-100 is not learned) and columns of MASKS are the mask, `attention_mask` says what is padding. Other columns
are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tokenloom.tasks.sources import arrow, parquet
from tokenloom.tasks.sources.arrow import find_arrow_files
from tokenloom.tasks.sources.base import INDEX, MASK, FileRange, Options, PartitionRange, RowBatch
from tokenloom.tasks.sources.column_names import shown_names
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.tokens.base import TokenFormat
from tokenloom.tasks.sources.tokens.ids import ATTENTION, BESIDE, IDS, IdColumns

_PARQUET = ".parquet"


class Format(TokenFormat):
    """Rows of ids, read as the kinds `arrow` and `parquet` read rows."""

    name = "huggingface"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        beside = [name for name in BESIDE if name in options["has"]] if "has" in options else None
        self.columns = IdColumns(options, beside)
        self._arrow, self._parquet = arrow.Reader(options, self.columns), parquet.Reader(options, self.columns)
        self._found: list[str] | None = None

    def _reader(self, url: str) -> arrow.Reader | parquet.Reader:
        return self._parquet if url.endswith(_PARQUET) else self._arrow

    def matching(self, path: str, leave_out: LeaveOut | None) -> list[FoundFile]:
        """See TokenFormat.matching; a folder that datasets.save_to_disk wrote means its data files."""
        return (find_files if path.endswith(_PARQUET) else find_arrow_files)(path, leave_out)

    def has(self, url: str, sides: Collection[str]) -> list[str]:
        """See TokenFormat.has; reads the names of the first file's columns. Rows say where documents are."""
        if self._found is None:
            names = self._reader(url).schema(url).names
            beside = [name for name in BESIDE if name in names]
            self._found = [INDEX, *[MASK] * any(name != ATTENTION for name in beside), *beside]
        return self._found

    def notes(self, url: str) -> list[str]:
        """See TokenFormat.notes."""
        others = [name for name in self._reader(url).schema(url).names if name not in (IDS, *BESIDE)]
        return [f"{url}: its other columns are not read: {shown_names(others)}"] if others else []

    def partitions(self, url: str) -> list[PartitionRange]:
        """See TokenFormat.partitions; `start` and `end` count row groups or record batches."""
        return self._reader(url).partitions(url)

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches."""
        return self._reader(url).batches(url, part)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See TokenFormat.locate."""
        return self._reader(url).locate(url, rows)

    def place(self, url: str, row: int) -> str:
        """See TokenFormat.place."""
        return f"{url}, row {row}"
