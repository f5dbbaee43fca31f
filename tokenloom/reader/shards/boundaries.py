"""Where documents and padding begin in rows, and the fields and ignored labels that follow from it."""

from __future__ import annotations

import numpy as np

from tokenloom.reader.arrays import Int32s
from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.reader.shards.rows import offsets_of, ranges
from tokenloom.storage.formats.arrays import Int64s

_TOKENS_AT_A_TIME = 2**17  # the system reclaims the memory of larger temporary arrays, and each new one faults again


class Boundaries:
    """Where documents and padding begin in n rows; gives the fields and the ignored labels of any range of rows.

    A run is the part of a row that belongs to one document, or is padding.

    Args:
        form: what a batch holds.
        lengths: (n,) tokens in each row; padding follows them.
        rows, marks: (m,) for each document or padding that begins inside a row: the row, and the token in [1, T] that
            begins it; sorted by row, then mark.
    """

    def __init__(self, form: BatchFormat, lengths: Int64s, rows: Int64s, marks: Int64s) -> None:
        self._form = form
        inside = marks < form.seq_len
        counts = np.bincount(rows[inside], minlength=len(lengths)) + 1
        row_of_run = np.repeat(np.arange(len(lengths)), counts)
        firsts = np.zeros(len(row_of_run), dtype=np.int64)
        # Each row has a run at token 0 before its marks, so mark k of row r begins run k + r + 1.
        firsts[np.arange(int(inside.sum())) + rows[inside] + 1] = marks[inside]
        #: (num_rows + 1,) the number of runs before each row
        self._row_runs = offsets_of(counts)
        self._runs = row_of_run * form.seq_len + firsts
        self._shifts = -firsts.astype(np.int32)  # added to a position in a row: the position in the document
        self._run_lengths = np.diff(self._runs, append=len(lengths) * form.seq_len)
        self._added = {"document_ids": np.zeros(1, np.int32), "position_ids": np.arange(form.seq_len, dtype=np.int32)}
        ids = np.arange(len(row_of_run)) - self._row_runs[row_of_run]
        self._ids = np.where(firsts >= lengths[row_of_run], -1, ids).astype(np.int32)
        self._ignored = self._ignored_labels(lengths, rows, marks)

    def _ignored_labels(self, lengths: Int64s, rows: Int64s, marks: Int64s) -> Int64s:
        """Return the positions, in the flattened rows, of the labels that losses must ignore, ascending."""
        seq_len, shift = self._form.seq_len, int(self._form.labels == "shifted")
        first = np.clip(lengths - shift, 0, seq_len)  # the first label that has no token
        padding = ranges(np.arange(len(lengths)) * seq_len + first, seq_len - first)
        if not self._form.mask_documents:
            return padding
        labels = marks - shift
        begins: Int64s = (rows * seq_len + labels)[labels < seq_len]
        if not len(padding):
            return begins
        # Both ascend. np.union1d would take half a minute for 30 M positions: newer releases of numpy hash them.
        at = np.searchsorted(padding, begins)
        is_new = padding[np.minimum(at, len(padding) - 1)] != begins
        return np.insert(padding, at[is_new], begins[is_new])

    def write(self, field: str, first: int, end: int, out: Int32s) -> None:
        """Write a field of rows [first, end) to `out`, (end - first, T).

        "document_ids" number the documents of a row from 0, with -1 for padding; "position_ids" count a token's
        position from the first token of its document in the row.
        """
        num_rows = max(1, _TOKENS_AT_A_TIME // self._form.seq_len)
        for row in range(first, end, num_rows):
            self._write(field, row, min(row + num_rows, end), out[row - first :][:num_rows])

    def _write(self, field: str, first: int, end: int, out: Int32s) -> None:
        runs = slice(self._row_runs[first], self._row_runs[end])
        of_runs = self._ids if field == "document_ids" else self._shifts
        spread = np.repeat(of_runs[runs], self._run_lengths[runs]).reshape(out.shape)
        np.add(spread, self._added[field], out=out)

    def ignored_labels(self, first: int, end: int) -> Int64s:
        """Return the positions, in rows [first, end) flattened, of the labels that losses must ignore."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        a, b = np.searchsorted(self._ignored, (begin, stop))
        return self._ignored[a:b] - begin

    def cu_seqlens(self, first: int, end: int) -> Int32s:
        """Return the offsets of the runs in rows [first, end) flattened, (num_runs + 1,), for flash attention."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        runs = self._runs[self._row_runs[first] : self._row_runs[end]]
        return np.append(runs - begin, stop - begin).astype(np.int32)
