"""The formats of tokens: the files of an input, and its documents as ids.

An index says where each document begins: rows are numbers of documents. Without one, documents end with the end-of-text
id, or with the file, and a row is the position of a document's first token. Either way, a part of a file can be read,
and a row be found again, without what is before it. A part has the documents that begin in it. No step here is taken
once a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, ClassVar

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyArray, AnyDtype, Int64s, runs_of
from tokenloom.storage.stores.remote_errors import kind_of
from tokenloom.storage.stores.store import BLOCK_BYTES
from tokenloom.storage.work.fingerprints import joined_fingerprint, remote_fingerprint
from tokenloom.tasks.sources.base import (
    INDEX,
    MASK,
    REPAIR,
    BadValue,
    FileRange,
    Options,
    PartitionRange,
    RowBatch,
    cut_evenly,
    locate_runs,
)
from tokenloom.tasks.sources.files import announce, info_of, input_bytes, is_local, open_input
from tokenloom.tasks.sources.listing import FoundFile, LeaveOut, find_files
from tokenloom.tasks.sources.reader import SourceReader
from tokenloom.tasks.sources.token_ids import BATCH_TOKENS, ID_BYTES, IdColumns, id_batch
from tokenloom.wording import counted

MISMATCH = "a file was cut or changed, or they do not belong together; copy them again"
INDEX_DOCUMENTS = 2**16  # most documents with their bounds in memory
_MIN_TOKENS = 2**13  # to read at a time


@dataclass(frozen=True)
class Layout:
    """The contents of a file: documents (None without an index), tokens, their type, the byte at which they begin."""

    num_documents: int | None
    num_tokens: int
    dtype: AnyDtype
    first_byte: int = 0

    @property
    def num_rows(self) -> int:
        """The number of rows: of documents, or without an index of tokens."""
        return self.num_tokens if self.num_documents is None else self.num_documents

    def byte(self, token: int) -> int:
        """Return the byte at which a token begins."""
        return self.first_byte + token * self.dtype.itemsize


class TokenFormat(SourceReader):
    """Reads the files of one format, whose documents lie end to end; it adds `layout`, and `bounds` of an index.

    Without an index, documents end with the end-of-text id, or with the file. In a file that begins with `bos_id`, only
    an end-of-text id that it follows ends a document, as in OLMo-core. Every error is an InputError that names the
    file, rule and next step.

    Args:
        options: those of the source; `eot_id`, `bos_id` (or None) and `vocab_size` of the tokenizer; `max_bytes` of the
            document rules; and, except where files are listed, `has`: what a file has beside its ids, INDEX or MASK.

    Attributes:
        bos_id, eot_id: ids before and after a document that are not part of it; bos_id is None if there is none.
        vocab_size: above every id.
        infers: whether document boundaries come from the ids, for lack of an index.
    """

    suffix: ClassVar[str] = ""  # its files' names end so
    required: ClassVar[tuple[str, ...]] = ()  # roles of sides without which an input can't be read
    eot_leads: ClassVar[bool] = False  # the end-of-text id is before documents, so one that begins a file ends none

    def __init__(self, options: Options) -> None:
        self.options = options
        self.eot_id = int(options["eot_id"])
        self.vocab_size = int(options["vocab_size"])
        self.bos_id: int | None = options.get("bos_id")
        self.infers = INDEX not in options.get("has", ())
        self._max_tokens = int(options["max_bytes"]) // ID_BYTES + 2  # with the ids around it
        self.columns = IdColumns(options)

    def check_name(self, url: str) -> None:
        """Raise InputError if a file is not an input by its name."""
        if not url.endswith(self.suffix):
            raise InputError(
                f"{url}: the ids of {self.options['format']} are in {self.suffix} files; write a path such as "
                f"data/*{self.suffix}"
            )

    def notes(self, url: str) -> list[str]:
        """See SourceReader.notes."""
        return [f"{url}: no index, so a document ends with the id {self.eot_id:,}"] if self.infers else []

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files; raises InputError if a file lacks one that belongs to it."""
        return _with_sides(find_files(path, leave_out), self)

    def sides(self, url: str) -> dict[str, str]:
        """Return the URLs of files that may belong to an input, by role, such as INDEX; their content is part of it."""
        return {}

    def id_type(self, default: str) -> AnyDtype:
        """Return the type of ids of a file that does not state it: `dtype` of the source, or a format's default."""
        return np.dtype(self.options.get("dtype") or default).newbyteorder("<")

    def layout(self, url: str) -> Layout:
        """Return the counts and the type of a file."""
        raise NotImplementedError

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """Return where documents [start, end) begin, in tokens, and, last, where the last of them ends."""
        raise NotImplementedError

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `num_bytes` counts ID_BYTES for each token.

        `start` and `end` count documents, or tokens without an index.
        """
        layout = self.layout(url)
        if not layout.num_rows:
            compare(url, layout.num_tokens, "its index", 0, "tokens")
            return []
        num_bytes = max(1, ID_BYTES * layout.num_tokens)
        return cut_evenly(layout.num_rows, num_bytes, self.columns.partition_bytes, layout.num_documents)

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches; of about BATCH_TOKENS or one document."""
        layout = self.layout(url)
        if MASK in self.options["has"]:
            compare(self.sides(url)[MASK], input_bytes(self.sides(url)[MASK]), url, layout.num_tokens, "tokens")
        part = replace(part, end=min(part.end, layout.num_rows))  # a file that changed is refused after it was read
        with open_input(url) as file:
            tokens = _Tokens(file, url, layout, self)
            yield from self._inferred(tokens, part) if self.infers else self._indexed(tokens, part)

    def _indexed(self, tokens: _Tokens, part: FileRange) -> Iterator[RowBatch]:
        for start in range(part.start, part.end, INDEX_DOCUMENTS):
            bounds = self._checked_bounds(tokens, start, min(start + INDEX_DOCUMENTS, part.end))
            tokens.announce(int(bounds[0]), int(bounds[-1]))
            for first, end in runs_of(bounds, BATCH_TOKENS):
                run = bounds[first : end + 1]
                row = start + first
                begin = int(run[0])
                num_tokens = int(run[-1] - run[0])
                if num_tokens > self._max_tokens and end == first + 1:
                    yield self._too_large(tokens.url, row, num_tokens)
                    continue
                rows = np.arange(row, row + len(run) - 1, dtype=np.uint64)
                mask = self._mask(tokens.url, begin, num_tokens)
                yield id_batch(tokens.read(begin, begin + num_tokens), np.diff(run), rows, mask)

    def _checked_bounds(self, tokens: _Tokens, start: int, end: int) -> Int64s:
        """Return `bounds`; raises InputError unless they ascend from 0 to the end of the file."""
        url = tokens.url
        layout = tokens.layout
        bounds = self.bounds(url, start, end)
        is_wrong = bounds.min() < 0 or bounds.max() > layout.num_tokens or (np.diff(bounds) < 0).any()
        is_wrong |= start == 0 and bounds[0] != 0
        is_wrong |= end == layout.num_rows and bounds[-1] != layout.num_tokens
        if is_wrong:
            raise InputError(
                f"{self.sides(url)[INDEX]}: documents [{start:,}, {end:,}) are tokens [{bounds[0]:,}, {bounds[-1]:,}), "
                f"not in turn those of {url}, which has {layout.num_tokens:,}: {MISMATCH}"
            )
        return bounds

    def _inferred(self, tokens: _Tokens, part: FileRange) -> Iterator[RowBatch]:
        """Yield the documents that begin in a part."""
        tokens.announce(max(0, part.start - 1), part.end)
        first = tokens.first_document()
        position = tokens.next_document(part.start - 1, part.end) if part.start else first
        num_read = min(BATCH_TOKENS, max(_MIN_TOKENS, part.end - part.start))  # a part may be one document
        while position < part.end:
            ids, ends = tokens.read_documents(position, position + num_read)
            if not len(ends):  # a long document is read again when its end is known
                end = tokens.next_document(position + len(ids), position + self._max_tokens + 1)
                if end - position > self._max_tokens:
                    yield self._too_large(tokens.url, position, end - position)
                    position = tokens.next_document(end - 1, part.end)
                    continue
                ids, ends = tokens.read_documents(position, end)
            begins = position + np.append(0, ends[:-1])
            ends = ends[: np.searchsorted(begins, part.end)]
            ids = ids[: int(ends[-1])]
            rows = begins[: len(ends)].astype(np.uint64)
            yield id_batch(ids, np.diff(ends, prepend=0), rows, self._mask(tokens.url, position, len(ids)))
            position += len(ids)

    def _mask(self, url: str, start: int, count: int) -> AnyArray | None:
        """Return 1 for those of `count` tokens from `start` on that are targets; None for a file without a mask."""
        if MASK not in self.options["has"]:
            return None
        with open_input(self.sides(url)[MASK]) as file:
            return read_values(file, self.sides(url)[MASK], start, count, np.dtype(np.uint8))

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate."""
        num_rows = self.layout(url).num_rows
        return locate_runs([row for row in rows if row < num_rows])

    def place(self, url: str, row: int) -> str:
        """Return how a message names a document."""
        return f"{url}, document at token {row}" if self.infers else f"{url}, document {row}"

    def _too_large(self, url: str, row: int, num_tokens: int) -> RowBatch:
        """Return the batch of a document with more tokens than the document rules allow: it need not be read."""
        problem = (
            f"{counted(num_tokens, 'token')}, too many for documents.max_bytes, which counts {ID_BYTES} bytes for "
            "each; raise that value"
        )
        bad = BadValue(problem, "too_large", "check tokenizer.eot_id" if self.infers else "")
        none = np.empty(0, np.int64)
        batch = id_batch(none, none, none.astype(np.uint64), none if MASK in self.options["has"] else None)
        return replace(batch, bad=(bad.at(self.place(url, row), row),))


class _Tokens:
    """The ids of an open file of a format, and where documents end among them."""

    def __init__(self, file: IO[bytes], url: str, layout: Layout, form: TokenFormat) -> None:
        self._file, self.url, self.layout, self._form = file, url, layout, form
        self._bos_id: int | None = None  # that follows the end of each document

    def announce(self, start: int, end: int) -> None:
        """Announce that tokens [start, end) will be read, unless they are fewer than a block; see files.announce."""
        first_byte = self.layout.byte(start)
        end_byte = self.layout.byte(end)
        if end_byte - first_byte >= BLOCK_BYTES:
            announce(self._file, [(first_byte, end_byte)])

    def read(self, start: int, end: int) -> AnyArray:
        """Return tokens [start, end)."""
        return read_values(self._file, self.url, self.layout.byte(start), end - start, self.layout.dtype)

    def first_document(self) -> int:
        """Return the token with which the first document begins."""
        head = self.read(0, min(2, self.layout.num_tokens)).tolist()
        first = int(self._form.eot_leads and head[:1] == [self._form.eot_id])
        self._bos_id = self._form.bos_id if head[first:][:1] == [self._form.bos_id] else None
        return first

    def read_documents(self, start: int, end: int) -> tuple[AnyArray, Int64s]:
        """Return tokens [start, end), and after how many of them a document ends: [5, 0, 7, 0] -> [2, 4] if 0 ends one.

        The end of the file ends one too.
        """
        end = min(end, self.layout.num_tokens)
        read = self.read(start, min(end + 1, self.layout.num_tokens))
        ids = read[: end - start]
        following = read[1 : end - start + 1]
        is_end = ids == self._form.eot_id
        if self._bos_id is not None:
            is_end[: len(following)] &= following == self._bos_id
        if end == self.layout.num_tokens:
            is_end[-1:] = True
        return ids, np.flatnonzero(is_end) + 1

    def next_document(self, start: int, limit: int) -> int:
        """Return the first position after `start` at which a document begins; `limit` if there is none before it."""
        for position in range(start, limit, BATCH_TOKENS):
            _, ends = self.read_documents(position, min(position + BATCH_TOKENS, limit))
            if len(ends):
                return position + int(ends[0])
        return limit


def read_values(file: IO[bytes], url: str, position: int, count: int, dtype: AnyDtype) -> AnyArray:
    """Return (count,) values of an open file from a byte position on; raises InputError if it ends before."""
    file.seek(position)
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise InputError(
            f"{url}: it ends at byte {position + len(data):,}, {counted(count * dtype.itemsize, 'byte')} after "
            f"{position:,} are needed: it was cut; {REPAIR}"
        )
    return np.frombuffer(data, dtype)


def count_values(url: str, dtype: AnyDtype) -> int:
    """Return how many values a file has; raises InputError if the last one is cut."""
    num_bytes = input_bytes(url)
    if num_bytes % dtype.itemsize:
        raise InputError(
            f"{url}: {num_bytes:,} bytes are not a multiple of the {dtype.itemsize} of {dtype.name}: it was cut, or is "
            "of another type; copy the file again, or set dtype"
        )
    return num_bytes // dtype.itemsize


def compare(url: str, count: int, other: str, described: int, noun: str) -> None:
    """Raise InputError unless a file has as many tokens or bytes as another one, or its own head, says."""
    if count != described:
        raise InputError(f"{url}: {count:,} {noun}, and {other} says {described:,}: {MISMATCH}")


def _with_sides(found: Sequence[FoundFile], form: TokenFormat) -> list[FoundFile]:
    """Return the inputs among the files that match, each with the files that belong to it.

    Raises InputError if a required file is missing, or if only some inputs have an index or a mask.
    """
    beside = {side for file in found for side in form.sides(file.url).values()}
    inputs = [_with_own(file, form) for file in found if file.url not in beside]
    for role in (INDEX, MASK):
        has_it = {role in file.options["has"]: file.url for file in inputs}
        if len(has_it) > 1:
            raise InputError(
                f"{has_it[False]}: it has no {role}, and {has_it[True]} has one; add the file that is missing, or read "
                "them as two sources"
            )
    return inputs


def _with_own(file: FoundFile, form: TokenFormat) -> FoundFile:
    form.check_name(file.url)
    prints = [file.fingerprint or ""]
    sides = dict[str, str]()
    for role, url in form.sides(file.url).items():
        try:
            info = info_of(url)
            prints.append("" if is_local(url) else remote_fingerprint(info, url))
            sides[role] = url
        except InputError as error:
            is_missing = isinstance(error.__cause__, Exception) and kind_of(error.__cause__) == "missing"
            if role in form.required or not is_missing:
                raise
    fingerprint = None if file.fingerprint is None else joined_fingerprint(prints)
    return replace(file, fingerprint=fingerprint, sides=tuple(sides.values()), options={"has": sorted(sides)})
