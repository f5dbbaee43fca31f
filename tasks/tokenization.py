"""Tokenize: one partition of an input file to spills sorted by document key.

The partition's record is written last: a build that finds it has nothing to do here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import FormatError, InputError, TokenizerError
from tokenloom.storage.canonical import canonical_json, read_signed, sign
from tokenloom.storage.filesystem import Store
from tokenloom.storage.keys import content_hashes, order_keys, order_keys_with_duplicates, split_indices
from tokenloom.storage.shard import token_dtype
from tokenloom.storage.spill import FOLDER, SpillDocuments, spill_path, write_spill
from tokenloom.tasks import progress
from tokenloom.tasks.inputs import InputFile, check_unchanged
from tokenloom.tasks.sources import Rows, make_reader
from tokenloom.tokenizers import Tokenizer, load_tokenizer
from tokenloom.tokenizers.base import text_bytes

_SPILL_TEXT_BYTES = 64_000_000


@dataclass(frozen=True)
class DocumentRulesJob:
    """The document rules and keys that every partition of a build shares; see BuildSpec."""

    min_chars: int
    max_bytes: int
    deduplicate: bool
    seed: int
    shares: list[tuple[str, float]]


@dataclass(frozen=True)
class TokenizeJob:
    """One partition to encode: where it is, and under which name its spills go; `num_bytes` is its weight."""

    store: str
    spill: str
    file: InputFile
    start: int
    end: int
    num_bytes: int
    rules: DocumentRulesJob
    definition: dict[str, Any]
    tokenizer_fingerprint: str


@dataclass
class _Pending:
    """Documents that wait for the next spill."""

    parts: list[SpillDocuments] = field(default_factory=list)
    text_bytes: int = 0

    def take(self) -> SpillDocuments:
        parts, self.parts, self.text_bytes = self.parts, [], 0
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("split", "key", "content", "row", "num_tokens", "tokens")
        }
        return SpillDocuments(**joined)


def record_path(spill: str) -> str:
    """Return the path of a partition's record."""
    return f"{FOLDER}/{spill}.json"


def read_record(store: Store, spill: str) -> dict[str, Any] | None:
    """Return a partition's record if it and all its spills are there, else None.

    The record: {"read", "filtered", "spills": [{"bytes", "documents": [by split], "tokens": [by split]}]}
    """
    try:
        record = read_signed(store.read(record_path(spill)), record_path(spill))
    except (FileNotFoundError, FormatError):
        return None
    spills = record["spills"]
    lengths = [store.num_bytes(spill_path(spill, i)) for i in range(len(spills))]
    return record if lengths == [item["bytes"] for item in spills] else None


def tokenize_partition(job: TokenizeJob) -> dict[str, Any]:
    """Encode one partition into spills and return its record.

    Raises:
        InputError: a row is bad; the message names file and row group or byte.
        InputError: the file is not what it was when the build was planned.
        TokenizerError: a text can't be encoded, or the tokenizer's files changed since the plan.
        StoreError: a spill can't be written.
    """
    store = Store(job.store)
    if record := read_record(store, job.spill):
        return record
    url = job.file.url
    progress.report(progress.Working(f"encoding {url}, [{job.start}, {job.end})"))
    tokenizer = job_tokenizer(job.definition, job.tokenizer_fingerprint)
    pending, tally = _Pending(), _Tally(job.num_bytes)
    record = {"read": 0, "filtered": 0, "spills": []}
    for rows in make_reader(job.file.options).read(url, job.start, job.end):
        record["read"] += len(rows.rows)
        texts, numbers = keep_documents(rows, job.rules, url)
        record["filtered"] += len(rows.rows) - len(texts)
        if len(texts):
            documents, num_bytes = _encode(texts, numbers, job, tokenizer)
            pending.parts.append(documents)
            pending.text_bytes += num_bytes
            tally.report(num_bytes, len(documents.tokens))
        if pending.text_bytes >= _SPILL_TEXT_BYTES:
            record["spills"].append(_spill(store, job, tokenizer, len(record["spills"]), pending.take()))
    if pending.parts:
        record["spills"].append(_spill(store, job, tokenizer, len(record["spills"]), pending.take()))
    check_unchanged(job.file)  # the record speaks for the fingerprint: no other bytes may stand behind it
    store.replace(record_path(job.spill), sign(record), durable=False)
    tally.finish()
    return record


class _Tally:
    """Progress through a partition: text is counted as it comes, against the bytes that the plan knows.

    A compressed file holds more text than bytes, JSON lines less; the partition's end settles the difference.
    """

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def report(self, text_bytes: int, num_tokens: int) -> None:
        done = min(text_bytes, self._left)
        self._left -= done
        progress.report(progress.Advanced(text_bytes, num_tokens, done))

    def finish(self) -> None:
        progress.report(progress.Advanced(0, 0, self._left))


def keep_documents(rows: Rows, rules: DocumentRulesJob, url: str) -> tuple[pa.Array, NDArray[np.uint64]]:
    """Return the texts of a batch that are documents, (n,) large_string, and their rows, (n,) uint64.

    Raises InputError for a text of more than `rules.max_bytes` bytes.
    """
    long_enough = pc.greater_equal(pc.utf8_length(rows.texts), rules.min_chars).fill_null(False)
    texts, numbers = rows.texts, rows.rows
    if not pc.all(long_enough, min_count=0).as_py():
        texts = texts.filter(long_enough)
        numbers = numbers[long_enough.to_numpy(zero_copy_only=False)]
    lengths = np.diff(text_bytes(texts)[1])
    if len(lengths) and lengths.max() > rules.max_bytes:
        at = int(lengths.argmax())
        raise InputError(
            f"{url}, row {numbers[at]}: a document of {lengths[at]:,} bytes; the largest allowed has "
            f"{rules.max_bytes:,} (documents.max_bytes); raise it or cut the document"
        )
    return texts, numbers


@lru_cache(maxsize=2)
def _load_tokenizer(definition: bytes, expected: str) -> Tokenizer:
    tokenizer = load_tokenizer(json.loads(definition))
    if tokenizer.fingerprint != expected:
        raise TokenizerError(
            f"tokenizer {tokenizer.name} is not the one of the plan (another fingerprint here): its files changed, or "
            "this process uses another library version; build again"
        )
    return tokenizer


def job_tokenizer(definition: dict[str, Any], expected_fingerprint: str) -> Tokenizer:
    """Return the tokenizer of a job, made once a process; raises TokenizerError if it is not the plan's."""
    return _load_tokenizer(canonical_json(definition), expected_fingerprint)


def _encode(
    texts: pa.Array, rows: NDArray[np.uint64], job: TokenizeJob, tokenizer: Tokenizer
) -> tuple[SpillDocuments, int]:
    data, offsets = text_bytes(texts)
    content = content_hashes(data, offsets)
    rules = job.rules
    if rules.deduplicate:
        key = order_keys(content, rules.seed)
    else:
        key = order_keys_with_duplicates(content, rules.seed, job.file.fingerprint, rows)
    encoded = tokenizer.encode(texts, token_dtype(tokenizer.vocab_size))
    split = split_indices(content, rules.shares)
    return SpillDocuments(split, key, content, rows, encoded.num_tokens, encoded.tokens), len(data)


def _spill(
    store: Store, job: TokenizeJob, tokenizer: Tokenizer, index: int, documents: SpillDocuments
) -> dict[str, Any]:
    info = {"tokenizer": tokenizer.fingerprint, "backend": tokenizer.backend}
    return write_spill(store, job.spill, index, documents, len(job.rules.shares), info)
