"""Parquet files with a row a document or sample: `input_ids`, and `labels` of a version with masks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tokenloom.tasks.exporting.formats import rows
from tokenloom.tasks.exporting.formats.base import ExportUnit, VersionFacts
from tokenloom.tasks.exporting.hashed_file import HashedFile


class Parquet(rows.TableFormat):
    """SPLIT/00000.parquet and so on, with a row group for each 4 MB of ids."""

    name = "parquet"
    part_bytes = rows.PART_BYTES

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{split}/{index:05}.parquet",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write row groups; a dictionary of ids would be longer than they are."""
        sink = pa.PythonFile(files[0], "w")
        with pq.ParquetWriter(sink, rows.schema(facts), compression="zstd", use_dictionary=False) as writer:
            for batch in rows.record_batches(unit, facts):
                writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
