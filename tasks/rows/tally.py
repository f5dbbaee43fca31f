"""Count what becomes of the rows of a partition."""

from __future__ import annotations

from collections import Counter

from tokenloom.storage.formats.statistics import ChatCounts, EncodedCounts
from tokenloom.storage.work.records import PartitionRecord, QuarantineSummary
from tokenloom.storage.work.spill import SpillCounts
from tokenloom.tasks.sources import Rows

_MESSAGE_CHARS = 500  # how much of the first bad row's message is kept for a message about many


class PartitionTally:
    """Counts the rows of a partition: those read, filtered and not read, and the bad ones by reason.

    Attributes:
        num_read: rows so far.
    """

    def __init__(self) -> None:
        self.num_read = self._num_filtered = self._num_not_read = self._text_bytes = 0
        self._unseen: tuple[str, ...] = ()
        self._reasons: Counter[str] = Counter()
        self._first = ""
        self._chat: ChatCounts | None = None

    def add(self, rows: Rows) -> None:
        """Count a batch of documents; the batches come in the order of the file."""
        self.num_read += rows.num_read
        self._num_filtered += rows.num_filtered
        self._num_not_read += rows.num_not_read
        self._unseen = rows.missing_keys
        if rows.num_without_target:
            self.add_encoded(0, ChatCounts(dropped=rows.num_without_target))
        for bad in rows.bad:
            self._reasons[bad.reason] += bad.num_rows
            self._first = self._first or str(bad)[:_MESSAGE_CHARS]

    def add_encoded(self, num_bytes: int, chat: ChatCounts | None) -> None:
        """Count documents that were encoded: the bytes of their texts in UTF-8, and what `chat` counts."""
        self._text_bytes += num_bytes
        if chat is not None:
            self._chat = chat + (self._chat or ChatCounts())

    def record(self, spills: list[SpillCounts], list_bytes: int = 0, list_xxh3_128: str = "") -> PartitionRecord:
        """Return the record of the partition.

        Args:
            spills: its spills.
            list_bytes: length of its list of skipped rows, 0 if none was written.
            list_xxh3_128: checksum of that list.
        """
        return PartitionRecord(
            encoded=EncodedCounts(
                documents=sum(sum(spill.documents) for spill in spills),
                tokens=sum(sum(spill.tokens) for spill in spills),
                bytes=self._text_bytes,
                chat=self._chat,
                rows=self.num_read,
                filtered=self._num_filtered,
            ),
            not_read=self._num_not_read,
            unseen=list(self._unseen),
            spills=spills,
            quarantine=QuarantineSummary(
                bytes=list_bytes,
                rows=self._reasons.total(),
                xxh3_128=list_xxh3_128,
                reasons=dict(sorted(self._reasons.items())),
                first=self._first,
            ),
        )
