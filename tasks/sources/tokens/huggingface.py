"""Datasets of Hugging Face with a column `input_ids`: folders of save_to_disk, Arrow files, parquet files.

`labels` (-100 is not learned) and columns of MASKS are the mask, `attention_mask` says what is padding. Other columns
are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tokenloom.spec.leave_out import LeaveOut
from tokenloom.tasks.sources import arrow, parquet
from tokenloom.tasks.sources.base import INDEX, MASK, FileRange, Options, PartitionRange
from tokenloom.tasks.sources.files.finding import FoundFile, find_files
from tokenloom.tasks.sources.rows.shown_names import shown_names
from tokenloom.tasks.sources.saved_datasets import find_arrow_files
from tokenloom.tasks.sources.tokens.base import Piece, TokenFormat
from tokenloom.tasks.sources.tokens.id_columns import ATTENTION, BESIDE, IDS, IdColumns, piece_of

_PARQUET = ".parquet"


class Format(TokenFormat):
    """Rows of ids, read as the kinds `arrow` and `parquet` read rows."""

    name = "huggingface"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        columns = IdColumns([name for name in BESIDE if name in options["has"]] if "has" in options else None)
        self._arrow, self._parquet = arrow.Reader(options, columns), parquet.Reader(options, columns)
        self._found: list[str] | None = None

    def _reader(self, url: str) -> arrow.Reader | parquet.Reader:
        return self._parquet if url.endswith(_PARQUET) else self._arrow

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; a folder that datasets.save_to_disk wrote means its data files."""
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

    def pieces(self, url: str, part: FileRange) -> Iterator[Piece]:
        """See TokenFormat.pieces."""
        for rows in self._reader(url).read(url, part):
            yield piece_of(rows, url, self.has_mask)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See TokenFormat.locate."""
        return self._reader(url).locate(url, rows)

    def place(self, url: str, row: int) -> str:
        """See TokenFormat.place."""
        return f"{url}, row {row}"
