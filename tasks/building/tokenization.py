"""Tokenize one partition of an input file into spills sorted by document key.

The partition's record is written last: a build that finds it need not encode the partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.keys import order_keys, order_keys_with_duplicates, split_indices
from tokenloom.storage.formats.records import JsonObject
from tokenloom.storage.work.records import (
    PartitionRecord,
    SpillCounts,
    find_partition_records,
    partition_record_path,
    write_work_record,
)
from tokenloom.storage.work.spill import SpillDocuments, write_spill
from tokenloom.tasks.building.documents import DocumentEncoder, EncodedDocuments, document_encoder, encoding_tokenizer
from tokenloom.tasks.building.inputs import InputFile, check_unchanged
from tokenloom.tasks.building.plan import Build, Partition, may_reuse
from tokenloom.tasks.quarantine import PartitionTally, QuarantineWriter
from tokenloom.tasks.rules import RowRules, keep_documents
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, make_reader
from tokenloom.tasks.sources.files import sharing_files
from tokenloom.tasks.sources.reader import naming_source
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.base import text_bytes
from tokenloom.tokenizers.fast.tokenizer import FastTokenizer

SPILL_TEXT_BYTES = 64_000_000
HELD_BYTES = 1_500_000_000  # of ids and keys, held before a spill is written; writing takes as much again


class _SpillWriter:
    """Collects the documents of a partition, and writes them as spills.

    All documents of a partition have classes, or none has. Progress is a share of the partition's bytes in the plan: a
    compressed file holds more text than bytes, JSON lines hold less.

    Attributes:
        spills: the counts of each spill.
        bytes_left: the partition's bytes that no text stood for.
    """

    def __init__(self, build: Build, part: Partition, tokenizer: Tokenizer) -> None:
        self._build, self._name = build, part.spill_name
        self._info: JsonObject = {"tokenizer": tokenizer.fingerprint}  # only what the spill's name contains
        self._pending: list[SpillDocuments] = []
        self._num_bytes = self._held_bytes = 0
        self.spills: list[SpillCounts] = []
        self.bytes_left = part.num_bytes

    def add(self, documents: SpillDocuments, num_bytes: int) -> None:
        """Add documents, whose texts have `num_bytes`."""
        self._pending.append(documents)
        self._num_bytes += num_bytes + len(documents.ids)
        self._held_bytes += sum(values.nbytes for values in vars(documents).values() if values is not None)
        done = min(num_bytes, self.bytes_left)
        self.bytes_left -= done
        counts = {"num_documents": len(documents.key), "num_tokens": len(documents.tokens)}
        progress.report(progress.Advanced(num_bytes=num_bytes, done=done, **counts))

    def flush(self, min_bytes: int = 0) -> None:
        """Write the documents as a spill if there are any, with at least `min_bytes` of text or HELD_BYTES."""
        if not self._pending or (self._num_bytes < min_bytes and self._held_bytes < HELD_BYTES):
            return
        first, *others = self._pending
        joined: dict[str, Any] = {}
        for name, values in vars(first).items() if others else ():
            joined[name] = None if values is None else np.concatenate([getattr(part, name) for part in self._pending])
        documents = replace(first, **joined)
        self._pending, self._num_bytes, self._held_bytes = [], 0, 0
        del first, others, joined  # their memory
        place = self._build.store, self._name, len(self.spills)
        self.spills.append(write_spill(*place, documents, len(self._build.rules.shares), self._info))


def tokenize_partition(build: Build, part: Partition, limit: int | None = None) -> int:
    """Encode one partition into spills with a record; with a limit, only its first documents. Return their number.

    Raises:
        InputError: a row is bad (the message names file and row group or byte), or the file has changed since the build
            was planned.
        TokenizerError: a text can't be encoded, or the tokenizer's files changed since the plan.
        EncoderMismatch: the fast encoder gives other ids than the reference.
        StoreError: a spill can't be written.
    """
    progress.report(progress.Working(f"encoding {part.file.url}, [{part.start}, {part.end})"))
    tokenizer = encoding_tokenizer(build)
    with naming_source(part.file.source):
        if part.file.stamps:  # another file in its place, for as long as it is read, would be missed below
            check_unchanged(part.file)
        try:
            record = _encode_partition(build, part, limit, tokenizer)
        except InputError:
            check_unchanged(part.file)  # it may not be bad, but still being written
            raise
        check_unchanged(part.file)  # the record vouches for the fingerprint, so the bytes read must be its bytes
    write_work_record(build.store, partition_record_path(part.spill_name), record)  # last: it vouches for the spills
    return record.encoded.documents


def _encode_partition(build: Build, part: Partition, limit: int | None, tokenizer: Tokenizer) -> PartitionRecord:
    fast = tokenizer if isinstance(tokenizer, FastTokenizer) else None
    compared_before = fast.num_compared if fast else 0
    encoder = document_encoder(tokenizer, build.chat_of(part.file))
    writer, tally = _SpillWriter(build, part, tokenizer), PartitionTally()
    with QuarantineWriter(build.store, part.spill_name) as quarantine, sharing_files():
        for rows in read_documents(build, part, encoder, limit):
            tally.add(rows)
            if rows.bad:
                quarantine.add(rows.bad)
            if len(rows.rows):
                documents, encoded = _encode(rows, build.rules, part.file, encoder)
                tally.add_encoded(encoded.num_bytes, encoded.counts)
                writer.add(documents, len(text_bytes(rows.texts)[0]))
                del documents, encoded
            del rows
            writer.flush(part.file.options.get("partition_bytes", SPILL_TEXT_BYTES))
        writer.flush()
    progress.report(progress.Advanced(done=writer.bytes_left))
    record = tally.record(writer.spills, quarantine.num_bytes, quarantine.checksum.hexdigest())
    return replace(record, encoder=fast.encoder, compared=fast.num_compared - compared_before) if fast else record


def read_documents(build: Build, part: Partition, encoder: DocumentEncoder, limit: int | None = None) -> Iterator[Rows]:
    """Return the documents of a partition in batches, with counts of skipped rows; at most `limit` documents."""
    reader, rules = make_reader(part.file.options), build.rules
    place_of = partial(reader.place, part.file.url)
    keep = partial(keep_documents, rules=rules, place_of=place_of, tokenizer=encoder.tokenizer, form=encoder.form)
    # `map` keeps no reference to a batch, which may be large; a generator's frame would.
    place = f"{part.file.url}, [{part.start}, {part.end})"
    batches = each_bounded(reader.read(part.file.url, part), part.file.options["max_bytes"], place)
    documents = encoder.prepared(map(keep, batches), rules.on_error, rules.without_target, place_of)
    return documents if limit is None else _first(documents, limit)


def _first(batches: Iterator[Rows], limit: int) -> Iterator[Rows]:
    for documents in batches:
        yield documents.head(limit)
        limit -= len(documents.rows)
        if limit <= 0:
            return


def tokenize_tryout(build: Build, parts: Sequence[Partition]) -> list[tuple[str, bool]]:
    """Encode partitions of one source until there are `build.limit` documents; errors as tokenize_partition.

    Args:
        build: a try-out.
        parts: all partitions of the source, in order.

    Returns:
        The name of each partition's spills, and whether an earlier build left them.
    """
    spills: list[tuple[str, bool]] = []
    left = build.limit or 0
    for part in parts:
        limited = replace(part, spill_name=f"{part.spill_name}-{left}")
        record = find_partition_records(build.store, [limited.spill_name]).get(limited.spill_name)
        is_cached = record is not None and may_reuse(record, build.definition)
        left -= record.encoded.documents if record and is_cached else tokenize_partition(build, limited, left)
        spills.append((limited.spill_name, is_cached))
        if left == 0:
            break
    return spills


def _encode(
    rows: Rows, rules: RowRules, file: InputFile, encoder: DocumentEncoder
) -> tuple[SpillDocuments, EncodedDocuments]:
    """Return the documents of a batch for a spill, and as they were encoded."""
    content = encoder.form.contents(rows.texts)
    if rules.deduplicate:
        key = order_keys(content, rules.seed)
    else:
        key = order_keys_with_duplicates(content, rules.seed, file.fingerprint, rows.rows)
    encoded = encoder.encode(rows)
    split = split_indices(content, rules.shares)
    ids, id_bytes = np.empty(0, np.uint8), np.zeros(len(key), np.uint32)
    if rows.ids is not None:
        ids, id_offsets = text_bytes(rows.ids.fill_null(""))  # a null may have bytes under it
        id_bytes = np.diff(id_offsets).astype(np.uint32)
    place = (split, key, content, rows.rows)
    return SpillDocuments(*place, encoded.num_tokens, encoded.tokens, id_bytes, ids, encoded.classes), encoded
