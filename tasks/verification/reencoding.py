"""Read sampled documents from their source again, encode them, and compare them with what their shards hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.storage.formats.keys import content_hashes
from tokenloom.storage.formats.token_types import token_dtype
from tokenloom.tasks.inputs import InputFile
from tokenloom.tasks.rows.rules import PlaceOf, transformed
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, SourceReader, make_reader
from tokenloom.tasks.sources.files.shared_files import sharing_files
from tokenloom.tasks.verification.sampling import SampledDocument, hash_of_ids
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.base import text_bytes

_CLOSE_BLOCK_BYTES, _APART_BLOCK_BYTES = 16 * 2**20, 2**20


@dataclass(frozen=True)
class ReencodeJob:
    """Documents of one input to encode again, in the order of their rows.

    `tokenizer_files` are those of a published version; None while it is built, see load_job_tokenizer.
    """

    file: InputFile
    definition: dict[str, Any]
    tokenizer_fingerprint: str
    tokenizer_files: dict[str, bytes] | None
    transform: str | None
    documents: list[SampledDocument]


@dataclass(frozen=True)
class Comparison:
    """How a document that was encoded again compares with its shard; `place` names its row in a message.

    `has_same_ids` is False where the text differs.
    """

    document: SampledDocument
    place: str
    has_same_text: bool
    has_same_ids: bool


def compare_with_source(
    job: ReencodeJob, tokenizer: Tokenizer, stored_hash: Callable[[SampledDocument], int]
) -> list[Comparison]:
    """Encode documents again and return how each compares; leaves out those whose rows are gone.

    Args:
        job: which documents.
        tokenizer: the job's.
        stored_hash: returns hash_of_ids of the tokens in the shard.

    Raises InputError if the input can't be read, or the transform fails.
    """
    progress.report(progress.Working(f"reading documents of {job.file.url} again"))
    wanted = {document.row: document for document in job.documents}
    found: list[Comparison] = []
    with sharing_files(_block_bytes(job.file.num_bytes, len(wanted))):
        for texts, rows, place_of in read_rows(job.file, sorted(wanted), job.transform):
            found += _compare(tokenizer, texts, [wanted[row] for row in rows], place_of, stored_hash)
            progress.report(progress.Advanced(num_documents=len(rows), done=len(rows)))
    return found


def _compare(
    tokenizer: Tokenizer,
    texts: pa.Array,
    documents: list[SampledDocument],
    place_of: PlaceOf,
    stored_hash: Callable[[SampledDocument], int],
) -> Iterator[Comparison]:
    """Encode texts and compare them with the documents, which are in the same order."""
    texts = texts.fill_null("")
    content = content_hashes(*text_bytes(texts)).tolist()
    encoded = tokenizer.encode(texts, token_dtype(tokenizer.vocab_size))
    ids = np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1])
    for document, hashes, new_ids in zip(documents, content, ids, strict=True):
        same_text = hashes == [document.content_high, document.content_low]
        same_ids = same_text and len(new_ids) == document.num_tokens and hash_of_ids(new_ids) == stored_hash(document)
        yield Comparison(document, place_of(document.row), same_text, same_ids)


def read_rows(
    file: InputFile, wanted: Sequence[int], transform: str | None
) -> Iterator[tuple[pa.Array, list[int], PlaceOf]]:
    """Yield (texts, their rows, how a message names a row) until all wanted rows are found or the file ends.

    Args:
        file: the input.
        wanted: rows, sorted.
        transform: applied to each text, as the build did.
    """
    reader = make_reader(file.options)
    place_of = partial(reader.place, file.url)
    numbers, num_found = np.array(wanted, np.uint64), 0
    for batch in each_bounded(located(reader, file.url, wanted), file.options["max_bytes"], file.url):
        here = np.flatnonzero(np.isin(batch.rows, numbers))
        if len(here):
            rows = batch.rows[here]
            yield transformed(batch.texts.take(pa.array(here)), rows, transform, place_of), rows.tolist(), place_of
        num_found += len(here)
        if num_found == len(wanted):
            return  # a file that is one partition need not be read to its end


def located(reader: SourceReader, url: str, rows: Sequence[int]) -> Iterator[Rows]:
    """Yield the rows of the parts of a file that hold these rows, which are sorted."""
    for part in reader.locate(url, rows):
        yield from reader.read(url, part)


def _block_bytes(num_bytes: int, num_rows: int) -> int:
    """Return how much of a remote file to read at once for some of its rows: more if they are close together."""
    return _CLOSE_BLOCK_BYTES if num_bytes < num_rows * _APART_BLOCK_BYTES else _APART_BLOCK_BYTES
