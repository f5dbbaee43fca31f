"""Documents of a comparison as JSON lines: where each of them is in its version, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tokenloom.storage.comparison.matching import Fates
from tokenloom.storage.comparison.rows import Rows, VersionDocuments


class DocumentLines:
    """Writes documents as JSON lines.

    Args:
        a: the documents of the old version.
        b: those of the new one.
        fate: "added", "removed", "kept" or "moved".
    """

    def __init__(self, a: VersionDocuments, b: VersionDocuments, fate: str) -> None:
        self._fate = fate
        side = a if fate == "removed" else b
        self._splits_a, self._splits = list(a.splits), list(side.splits)
        self._places = [f'"source": {json.dumps(one.source)}, "path": {json.dumps(one.path)}' for one in side.inputs]
        self._shards = [[row["name"] for row in split.shards.rows] for split in side.manifest.splits.values()]

    def lines(self, fates: Fates) -> Iterator[str]:
        """Yield a line for each of these documents that had the fate; with its line end."""
        rows: Rows = getattr(fates, self._fate)
        content = rows["content"].astype(">u8").tobytes().hex()
        columns = [rows[name].tolist() for name in ("split", "shard", "input", "row", "num_tokens")]
        old = [f'"split_before": "{name}", ' for name in self._old_splits(fates)] or [""] * len(rows)
        for i, (split, shard, number, row, num_tokens) in enumerate(zip(*columns, strict=True)):
            yield (
                f'{{"split": "{self._splits[split]}", {old[i]}"shard": "{self._shards[split][shard]}", '
                f'{self._places[number]}, "row": {row}, "content": "{content[32 * i : 32 * i + 32]}", '
                f'"num_tokens": {num_tokens}}}\n'
            )

    def _old_splits(self, fates: Fates) -> list[str]:
        return [self._splits_a[i] for i in fates.moved_from["split"].tolist()] if self._fate == "moved" else []
