"""Documents of a comparison as JSON lines: where each of them is in its version, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tokenloom.storage.comparison.matching import Fates
from tokenloom.storage.comparison.rows import Rows, VersionDocuments

_BLOCK_ROWS = 8192


class DocumentLines:
    """Makes JSON lines of documents; `num_lines` is how many so far.

    Args:
        a: the documents of the old version.
        b: those of the new one.
        fate: "added", "removed", "kept" or "moved".
    """

    def __init__(self, a: VersionDocuments, b: VersionDocuments, fate: str) -> None:
        self._fate, self.num_lines = fate, 0
        side = a if fate == "removed" else b
        self._splits_a, self._splits = (list(map(json.dumps, one.splits)) for one in (a, side))
        self._places = [f'"source": {json.dumps(one.source)}, "path": {json.dumps(one.path)}' for one in side.inputs]
        self._shards = [
            [json.dumps(row["name"]) for row in split.shards.rows] for split in side.manifest.splits.values()
        ]

    def blocks(self, fates: Fates) -> Iterator[str]:
        """Yield the lines of those of these documents that had the fate, some thousand at a time."""
        rows: Rows = getattr(fates, self._fate)
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            yield "".join(self._lines(rows[block], fates.moved_from[block]))
        self.num_lines += len(rows)

    def _lines(self, rows: Rows, before: Rows) -> Iterator[str]:
        """Yield the lines of documents; `before` are the same ones in A if they moved, else anything."""
        content = rows["content"].astype(">u8").tobytes().hex()
        columns = [rows[name].tolist() for name in ("split", "shard", "input", "row", "num_tokens")]
        old = [""] * len(rows)
        if self._fate == "moved":
            old = [f'"split_before": {self._splits_a[split]}, ' for split in before["split"].tolist()]
        for i, (split, shard, number, row, num_tokens) in enumerate(zip(*columns, strict=True)):
            yield (
                f'{{"split": {self._splits[split]}, {old[i]}"shard": {self._shards[split][shard]}, '
                f'{self._places[number]}, "row": {row}, "content": "{content[32 * i : 32 * i + 32]}", '
                f'"num_tokens": {num_tokens}}}\n'
            )
