"""The formats of tokens: the files of an input, and its documents as ids.

An index says where each document begins: rows are numbers of documents. Without one, documents end with the end-of-text
id, or with the file, and a row is the position of a document's first token. Either way, a part of a file can be read,
and a row be found again, without what is before it. A part has the documents that begin in it. No step here is taken
once a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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

#: Why two files contradict each other, and the next step.
MISMATCH = "one of the two was cut or changed, or they do not belong together; copy both files again"
INDEX_DOCUMENTS = 2**16  # most documents with their bounds in memory
_MIN_TOKENS = 2**13  # to read at a time


@dataclass(frozen=True)
class Layout:
    """The contents of a file: documents (0 without an index), tokens, their type, the byte at which they begin."""

    num_documents: int
    num_tokens: int
    dtype: AnyDtype
    first_byte: int = 0

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
        self.eot_id, self.vocab_size = int(options["eot_id"]), int(options["vocab_size"])
        self.bos_id = None if options.get("bos_id") is None else int(options["bos_id"])
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
        """Return the counts and the type of a file, after comparing it with its index."""
        raise NotImplementedError

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """Return where documents [start, end) begin, in tokens, and, last, where the last of them ends."""
        raise NotImplementedError

    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `num_bytes` counts ID_BYTES for each token.

        `start` and `end` count documents, or tokens without an index.
        """
        layout = self.layout(url)
        num_rows = None if self.infers else layout.num_documents
        count = layout.num_tokens if num_rows is None else num_rows
        return cut_evenly(count, max(1, ID_BYTES * layout.num_tokens), num_rows) if count else []

    def batches(self, url: str, part: FileRange) -> Iterator[RowBatch]:
        """See SourceReader.batches; of about BATCH_TOKENS or one document."""
        layout = self.layout(url)
        count, what = (layout.num_tokens, "token") if self.infers else (layout.num_documents, "document")
        if part.end > count:
            raise InputError(
                f"{url}: {counted(count, what)}, but {part.end:,} were planned; the file changed: build again"
            )
        if MASK in self.options["has"] and (num_bytes := input_bytes(self.sides(url)[MASK])) != layout.num_tokens:
            raise InputError(
                f"{self.sides(url)[MASK]}: a mask has a byte for each token, and this one has {num_bytes:,} for the "
                f"{layout.num_tokens:,} of {url}: {MISMATCH}"
            )
        with open_input(url) as file:
            read = self._inferred if self.infers else self._indexed
            yield from read(_Tokens(file, url, layout, self), part)

    def _indexed(self, tokens: _Tokens, part: FileRange) -> Iterator[RowBatch]:
        for start in range(part.start, part.end, INDEX_DOCUMENTS):
            bounds = self.bounds(tokens.url, start, min(start + INDEX_DOCUMENTS, part.end))
            tokens.announce(int(bounds[0]), int(bounds[-1]))
            for first, end in runs_of(bounds, BATCH_TOKENS):
                run, row = bounds[first : end + 1], start + first
                begin, num_tokens = int(run[0]), int(run[-1] - run[0])
                if num_tokens > self._max_tokens and end == first + 1:
                    yield self._too_large(tokens.url, row, num_tokens)
                    continue
                rows = np.arange(row, row + len(run) - 1, dtype=np.uint64)
                mask = self._mask(tokens.url, begin, num_tokens)
                yield id_batch(tokens.read(begin, begin + num_tokens), np.diff(run), rows, mask)

    def _inferred(self, tokens: _Tokens, part: FileRange) -> Iterator[RowBatch]:
        """Yield the documents that begin in a part."""
        tokens.announce(max(0, part.start - 1), part.end)
        first = tokens.first_document()
        position = tokens.next_document(part.start - 1, part.end) if part.start else first
        usual = num_read = min(BATCH_TOKENS, max(_MIN_TOKENS, part.end - part.start))  # a part may be one document
        while position < part.end:
            ids, ends = tokens.read_documents(position, position + num_read)
            if len(ends):
                begins = position + np.append(0, ends[:-1])
                ends = ends[: np.searchsorted(begins, part.end)]
                ids = ids[: int(ends[-1])]
                rows = begins[: len(ends)].astype(np.uint64)
                yield id_batch(ids, np.diff(ends, prepend=0), rows, self._mask(tokens.url, position, len(ids)))
                position, num_read = position + len(ids), usual
            elif len(ids) > self._max_tokens:
                yield self._too_large(tokens.url, position, len(ids))
                position, num_read = tokens.next_document(position + len(ids), part.end), usual
            else:
                # What was read is read again: that is rare, and simpler than joining parts.
                num_read = min(2 * num_read, self._max_tokens + 1)

    def _mask(self, url: str, start: int, count: int) -> NDArray[np.bool_] | None:
        """Return which of `count` tokens from `start` on are targets, (count,); None for a file without a mask."""
        if MASK not in self.options["has"]:
            return None
        mask_url = self.sides(url)[MASK]
        with open_input(mask_url) as file:
            values = read_values(file, mask_url, start, count, np.dtype(np.uint8))
        if values.max(initial=0) > 1:
            at = int((values > 1).argmax())
            raise InputError(f"{mask_url}: byte {start + at:,} is {values[at]}, and a mask has only 0 and 1; {REPAIR}")
        return values.view(np.bool_)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate."""
        layout = self.layout(url)
        count = layout.num_tokens if self.infers else layout.num_documents
        return locate_runs([row for row in rows if row < count])

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
        return RowBatch(pa.record_batch({}), np.empty(0, np.uint64), (bad.at(self.place(url, row), row),))


class _Tokens:
    """The ids of an open file of a format, and where documents end among them."""

    def __init__(self, file: IO[bytes], url: str, layout: Layout, form: TokenFormat) -> None:
        self._file, self.url, self._layout, self._form = file, url, layout, form
        self._bos_id: int | None = None  # that follows the end of each document

    def announce(self, start: int, end: int) -> None:
        """Announce that tokens [start, end) will be read, unless they are fewer than a block; see files.announce."""
        first_byte, end_byte = self._layout.byte(start), self._layout.byte(end)
        if end_byte - first_byte >= BLOCK_BYTES:
            announce(self._file, [(first_byte, end_byte)])

    def read(self, start: int, end: int) -> AnyArray:
        """Return tokens [start, end)."""
        return read_values(self._file, self.url, self._layout.byte(start), end - start, self._layout.dtype)

    def first_document(self) -> int:
        """Return the token with which the first document begins."""
        head = self.read(0, min(2, self._layout.num_tokens)).tolist()
        first = int(self._form.eot_leads and head[:1] == [self._form.eot_id])
        self._bos_id = self._form.bos_id if head[first:][:1] == [self._form.bos_id] else None
        return first

    def read_documents(self, start: int, end: int) -> tuple[AnyArray, Int64s]:
        """Return tokens [start, end), and after how many of them a document ends: [5, 0, 7, 0] -> [2, 4] if 0 ends one.

        The end of the file ends one too.
        """
        end = min(end, self._layout.num_tokens)
        read = self.read(start, min(end + 1, self._layout.num_tokens))
        ids, following = read[: end - start], read[1 : end - start + 1]
        is_end = ids == self._form.eot_id
        if self._bos_id is not None:
            is_end[: len(following)] &= following == self._bos_id
        if end == self._layout.num_tokens:
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


def _with_sides(found: Sequence[FoundFile], form: TokenFormat) -> list[FoundFile]:
    """Return the inputs among the files that match, each with the files that belong to it.

    Raises InputError if a required file is missing, or if only some inputs have an index or a mask.
    """
    known = {file.url: file for file in found}
    beside = {side for url in known for side in form.sides(url).values()}
    inputs = [_with_own(file, known, form) for file in found if file.url not in beside]
    for role in (INDEX, MASK):
        has_it = {role in file.options["has"]: file.url for file in inputs}
        if len(has_it) > 1:
            raise InputError(
                f"{has_it[False]}: it has no {role}, and {has_it[True]} has one; add the file that is missing, or read "
                "them as two sources"
            )
    return inputs


def _with_own(file: FoundFile, known: Mapping[str, FoundFile], form: TokenFormat) -> FoundFile:
    form.check_name(file.url)
    prints, sides = [file.fingerprint], dict[str, str]()
    for role, url in form.sides(file.url).items():
        try:
            prints.append(known[url].fingerprint if url in known else _fingerprint(url))
            sides[role] = url
        except InputError as error:
            if not isinstance(error.__cause__, Exception) or kind_of(error.__cause__) != "missing":
                raise
            if role in form.required:
                raise InputError(f"{file.url}: {url}, which belongs to it, is missing; copy both files") from error
    fingerprint = None if file.fingerprint is None else joined_fingerprint([one or "" for one in prints])
    return replace(file, fingerprint=fingerprint, sides=tuple(sides.values()), options={"has": sorted(sides)})


def _fingerprint(url: str) -> str | None:
    """Return the fingerprint of a remote file, None for a local one; raises InputError if it is missing."""
    info = info_of(url)
    return None if is_local(url) else remote_fingerprint(info, url)
