"""Exclusion: contents to drop, such as removal requests and the texts of a benchmark.

The shuffle drops them after encoding, so a rebuild after a removal request encodes nothing.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tokenloom.chat.conversation import content_hashes
from tokenloom.errors import BadConversation, FormatError, InputError
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.records import build_path
from tokenloom.storage.work.work_files import reading_work_file
from tokenloom.tasks.rows.rules import conversation_text
from tokenloom.tasks.sources.files import input_bytes, open_decompressed

_NAME = "excluded.bin"
_DIGEST_BYTES = 16
_CONTENT = re.compile("[0-9a-fA-F]{32}")  # bytes.fromhex would ignore blanks
_HELP = (
    'a line is a content hash (32 hexadecimal digits), a text as a JSON string, {"text": ...}, or a conversation as '
    '{"messages": [...]}: correct the line'
)


def read_exclusions(url: str, *, only_hashes: bool = False) -> NDArray[np.uint64]:
    """Return the contents that a file lists, (n, 2) uint64 (high and low half), sorted, each once.

    Args:
        url: file of lines: 32 hexadecimal digits as in the document table's `content`, a JSON string, or an object
            with `text`, `content` or `messages` and perhaps `tools`; blank lines and lines that begin with # are
            comments.
        only_hashes: whether a text or conversation is an error, because the documents are ids.

    Raises InputError, which names a line of any other form, or the file if it can't be read.
    """
    input_bytes(url)  # opening would report a missing file as deleted since the plan
    hashes: list[bytes] = []
    with open_decompressed(url) as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text and not text.startswith("#"):
                    if only_hashes and not _CONTENT.fullmatch(text):
                        raise ValueError(f"{text[:40]!r} is not a content hash, and sources of tokens have no texts")
                    hashes.append(_content_of(text))
            except BadConversation as error:
                raise InputError(f"{url}, line {number}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise InputError(f"{url}, line {number}: {str(error)[:80]}; {_HELP}") from error
    return np.unique(np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64).reshape(-1, 2), axis=0)


def _content_of(line: str) -> bytes:
    value: Any = line
    if line.startswith(('"', "{")):
        value = json.loads(line)
        if isinstance(value, dict) and "messages" in value:
            text = pa.array([conversation_text(value)], pa.large_string())
            return content_hashes(text).astype(">u8").tobytes()
        text = value.get("text") if isinstance(value, dict) else value
        if isinstance(text, str):
            return xxhash.xxh3_128_digest(text.encode())
        value = value.get("content")
    if not isinstance(value, str) or not _CONTENT.fullmatch(value):
        raise ValueError(f"{str(value)[:40]!r} is neither a text, a conversation nor a content hash")
    return bytes.fromhex(value)


def write_exclusions(store: Store, version: str, excluded: NDArray[np.uint64]) -> None:
    """Write the excluded contents where the shuffle of a version finds them."""
    data = np.ascontiguousarray(excluded, "<u8").tobytes()
    store.replace(build_path(version, _NAME), data + xxhash.xxh3_128_digest(data), durable=False)


def load_exclusions(store: Store, version: str) -> NDArray[np.uint64]:
    """Return the excluded contents of a version that is being built; raises WorkError if they are damaged."""
    path = build_path(version, _NAME)
    with reading_work_file(store, path):
        return _parse(store.read(path))


@lru_cache(maxsize=1)
def _parse(data: bytes) -> NDArray[np.uint64]:  # the same for every shard that a worker makes
    if xxhash.xxh3_128_digest(data[:-_DIGEST_BYTES]) != data[-_DIGEST_BYTES:]:
        raise FormatError("its checksum does not match")
    return np.frombuffer(data[:-_DIGEST_BYTES], "<u8").reshape(-1, 2)


def is_excluded(excluded: NDArray[np.uint64], high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return whether each content (high, low), (n,) uint64 both, is among `excluded`, (m, 2) and sorted."""
    first = np.searchsorted(excluded[:, 0], high, side="left")
    end = np.searchsorted(excluded[:, 0], high, side="right")
    found = np.zeros(len(high), dtype=bool)
    for i in np.flatnonzero(end > first):  # few: only the excluded ones
        found[i] = low[i] in excluded[first[i] : end[i], 1]
    return found
