"""The check of a build and of `verify --deep`: read about 1,000 documents from their sources again, encode them again,
and compare them with the shards.

The order of a shard is that of hashes of the contents, so its first documents are a random sample. Of these, the sample
takes ten runs of neighbours in the sources: a source is read in row groups, and 1,000 documents that lie apart would
need most of them. A run ends early where documents are long, so that a check of books costs no more than one of lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import content_digits
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.building.documents import DocumentEncoder, document_encoder, encoding_tokenizer
from tokenloom.tasks.building.inputs import InputFile, check_unchanged
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.rules import form_of, transformed
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, SourceReader, make_reader
from tokenloom.tasks.sources.base import WANTED, PlaceOf
from tokenloom.tasks.sources.files import sharing_files
from tokenloom.tasks.sources.reader import naming_source

NUM_SAMPLED, SAMPLED_TOKENS = 1000, 1_000_000  # a smaller version is compared whole
_NUM_RUNS = 10
RUN_DOCUMENTS = NUM_SAMPLED // _NUM_RUNS  # neighbours in a source
_MAX_CANDIDATES = 65_536
_MAX_SHARDS = 1000  # whose first documents are read
_JOB_BYTES = 64_000_000  # a job reads about as much of a file as a partition has
_READERS = 8  # ranges of a remote shard that are read at the same time
_GAP_TOKENS = 8192  # between documents that are read in one range
_CLOSE_BLOCK_BYTES, _APART_BLOCK_BYTES = 16 * 2**20, 2**20


class CheckedDocument(NamedTuple):
    """A document of a version: its source row, its content, and tokens [start, end) of its shard."""

    input_index: int
    row: int
    content: str  # 32 hexadecimal digits
    shard: StoredShard
    start: int
    end: int

    @property
    def place(self) -> str:
        """Where it is in the version, for messages."""
        return f"shard {self.shard.entry.name.removesuffix('.tok')} at token {self.start}"


def choose_documents(shards: Sequence[StoredShard], num_inputs: int) -> list[CheckedDocument]:
    """Return up to 1,000 documents or about 1,000,000 tokens of a version, sorted by input and row.

    They are the same ones each time.

    Args:
        shards: those of the version.
        num_inputs: how many inputs it has.

    Raises StoreError or FormatError if a document table can't be read.
    """
    shards = shards[:: max(1, -(-len(shards) // _MAX_SHARDS))]
    num_documents = sum(shard.entry.documents for shard in shards)
    if not num_documents:
        return []
    share = min(1.0, _MAX_CANDIDATES / num_documents)
    heads: list[tuple[StoredShard, DocumentColumns]] = []  # the first documents of each shard, rounded up
    for shard in shards:
        first_batch = islice(shard.table(num_inputs).batches(), 1)  # it has them all
        heads += [(shard, batch.first(math.ceil(share * shard.entry.documents))) for batch in first_batch]
    order = np.lexsort([np.concatenate([getattr(rows, name) for _, rows in heads]) for name in ("row", "input")])
    places = np.concatenate([np.stack([rows.input, rows.row], axis=1) for _, rows in heads])[order]
    order = order[np.append(True, (places[1:] != places[:-1]).any(axis=1))]  # further copies have the same row
    num_tokens = np.concatenate([rows.num_tokens for _, rows in heads])
    if len(order) > NUM_SAMPLED or num_tokens.sum() > SAMPLED_TOKENS:
        order = np.concatenate(list(_runs(order, num_tokens, seed=int(shards[0].version, 16))))
    ends = np.cumsum([rows.num_rows for _, rows in heads])
    chosen = []
    for head, position in zip(np.searchsorted(ends, order, side="right").tolist(), order.tolist(), strict=True):
        shard, rows = heads[head]
        i = position - int(ends[head])  # from the end
        place = int(rows.input[i]), int(rows.row[i]), content_digits(rows.content[i])
        chosen.append(CheckedDocument(*place, shard, int(rows.start[i]), int(rows.start[i]) + int(rows.num_tokens[i])))
    return chosen


def _runs(order: NDArray[np.intp], num_tokens: NDArray[np.uint64], seed: int) -> Iterator[NDArray[np.intp]]:
    """Yield _NUM_RUNS runs of neighbours in `order`: RUN_DOCUMENTS each, fewer of many tokens, but at least one."""
    stride = max(1, len(order) // _NUM_RUNS)
    length = min(RUN_DOCUMENTS, stride)
    first = seed % (stride - length + 1)
    for start in range(first, len(order) - length + 1, stride)[:_NUM_RUNS]:
        run = order[start : start + length]
        before = np.cumsum(num_tokens[run]) - num_tokens[run]
        yield run[before < SAMPLED_TOKENS // _NUM_RUNS]


class Sample(NamedTuple):
    """Documents of one input, sorted by row, to read and encode again and to compare with their shards."""

    file: InputFile
    documents: list[CheckedDocument]


def divide_by_input(
    chosen: Sequence[CheckedDocument], inputs: Sequence[InputFile | None]
) -> Iterator[list[CheckedDocument]]:
    """Yield the chosen documents of each input; those of a large file in several parts, which workers share.

    Args:
        chosen: sorted by input and row.
        inputs: those of the version; None for one that is gone.
    """
    for input_index, group in groupby(chosen, key=attrgetter("input_index")):
        documents = list(group)
        file = inputs[input_index]
        num_parts = min(-(-len(documents) // RUN_DOCUMENTS), 1 + file.num_bytes // _JOB_BYTES) if file else 1
        bounds = np.linspace(0, len(documents), num_parts + 1, dtype=int).tolist()
        yield from (documents[start:end] for start, end in pairwise(bounds))


class Difference(NamedTuple):
    """A document that differs from its source: the row is "gone", its "text" or its "ids" (or classes) differ."""

    kind: Literal["gone", "text", "ids"]
    document: CheckedDocument
    source_place: str  # file and row


def compare_documents(build: Build, sample: Sample) -> list[Difference]:
    """Encode documents again as a build does, and return those that differ from their shards; runs in a worker.

    Raises:
        InputError: the input can't be read, has changed, or the transform or a template fails.
        EncoderMismatch: a fast encoder gives other ids than the reference.
    """
    file, documents = sample
    progress.report(progress.Working(f"reading documents of {file.url} again"))
    wanted = {document.row: document for document in documents}
    is_close = file.num_bytes < len(wanted) * _APART_BLOCK_BYTES
    found: list[Difference] = []
    encoder = document_encoder(encoding_tokenizer(build), build.chat_of(file))
    with ThreadPoolExecutor(_READERS) as readers:
        stored = {row: ids for run in readers.map(_read_run, _close_runs(documents)) for row, ids in run.items()}
    with naming_source(file.source):
        with sharing_files(_CLOSE_BLOCK_BYTES if is_close else _APART_BLOCK_BYTES):
            for rows, place_of in read_rows(file, sorted(wanted), build.rules.transform):
                found += _compare(encoder, rows, place_of, wanted, stored)
        found += [Difference("gone", document, f"{file.url}: row {row}") for row, document in wanted.items()]
        if found:
            check_unchanged(file)  # it may have changed while it was read
    return found


def _compare(
    encoder: DocumentEncoder,
    rows: Rows,
    place_of: PlaceOf,
    wanted: dict[int, CheckedDocument],
    stored: dict[int, tuple[AnyArray, NDArray[np.uint8]]],
) -> Iterator[Difference]:
    """Yield the rows that differ from their stored documents; remove from `wanted` all that were compared."""
    is_there = rows.texts.is_valid().to_numpy(zero_copy_only=False)
    for row in rows.rows[~is_there].tolist():  # the transform leaves it out now
        yield Difference("text", wanted.pop(row), place_of(row))
    if not is_there.any():
        return
    for part in encoder.prepared(iter([rows.take(np.flatnonzero(is_there))]), "fail", "keep", place_of):
        encoded, contents = encoder.encode(part), encoder.form.contents(part.texts)
        documents = [wanted.pop(row) for row in part.rows.tolist()]
        bounds = pairwise([0, *np.cumsum(encoded.num_tokens, dtype=np.int64).tolist()])
        for document, content, (start, end) in zip(documents, contents, bounds, strict=True):
            ids, classes = stored[document.row]
            if content_digits(content) != document.content:
                yield Difference("text", document, place_of(document.row))
                continue
            again = np.uint8(TEXT_CLASS) if encoded.classes is None else encoded.classes[start:end]
            if not np.array_equal(encoded.tokens[start:end], ids) or np.any(again != classes):
                yield Difference("ids", document, place_of(document.row))
        progress.report(progress.Advanced(num_documents=len(documents), done=len(documents)))


def _close_runs(documents: Sequence[CheckedDocument]) -> list[list[CheckedDocument]]:
    """Divide documents of one input into those that are close together in a shard."""
    runs: list[list[CheckedDocument]] = []
    for one in sorted(documents, key=lambda one: (one.shard.entry.name, one.start)):
        last = runs[-1][-1] if runs else None
        if last and last.shard.entry.name == one.shard.entry.name and one.start <= last.end + _GAP_TOKENS:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _read_run(run: Sequence[CheckedDocument]) -> dict[int, tuple[AnyArray, NDArray[np.uint8]]]:
    """Return the ids and classes of documents of one shard by their rows, read in one range of each file."""
    shard, first, end = run[0].shard, run[0].start, run[-1].end
    ids, classes = shard.tokens(first, end), shard.classes(first, end)
    return {
        one.row: (ids[one.start - first : one.end - first], classes[one.start - first : one.end - first]) for one in run
    }


def read_rows(file: InputFile, wanted: Sequence[int], transform: str | None) -> Iterator[tuple[Rows, PlaceOf]]:
    """Yield (rows, how a message names one) until all wanted rows are found or the file ends.

    Args:
        file: the input.
        wanted: rows, sorted.
        transform: applied to each text, as the build did.
    """
    reader = make_reader({**file.options, WANTED: frozenset(wanted)})
    place_of = partial(reader.place, file.url)
    numbers, num_found = np.array(wanted, np.uint64), 0
    for batch in each_bounded(located(reader, file.url, wanted), file.options["max_bytes"], file.url):
        here = np.flatnonzero(np.isin(batch.rows, numbers))
        if len(here):
            found = batch.take(here)
            texts = transformed(found.texts, found.rows, transform, place_of, form_of(file.options))
            yield replace(found, texts=texts), place_of
        num_found += len(here)
        if num_found == len(wanted):
            return  # a file that is one partition need not be read to its end


def located(reader: SourceReader, url: str, rows: Sequence[int]) -> Iterator[Rows]:
    """Yield the rows of the parts of a file that hold these rows, which are sorted."""
    for part in reader.locate(url, rows):
        yield from reader.read(url, part)
