"""Document rules: which rows of a batch become documents, and how the others are counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import BadRow, InputError, SpecError, named_message_of
from tokenloom.tasks.sources import Rows
from tokenloom.tokenizers.base import WORKER_MARK, Tokenizer, text_bytes
from tokenloom.without_pandas import let_pandas_in

MAX_ID_BYTES = 1024  # so that the ids of a million documents fit into one Arrow array
Transform = Callable[[str], str | None]
PlaceOf = Callable[[int], str]  # how a message names a row, see SourceReader.place


@dataclass(frozen=True)
class RulesJob:
    """The document rules and keys that every partition of a build shares; see DocumentRules of the spec."""

    min_chars: int
    max_chars: int | None
    max_bytes: int
    on_error: str
    transform: str | None
    deduplicate: bool
    seed: int
    shares: list[tuple[str, float]]


@lru_cache(maxsize=4)
def load_transform(name: str) -> Transform:
    """Return the function that "package.module:function" names; raises SpecError if it can't be imported."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
        let_pandas_in()
    except BaseException as error:
        if _is_signal(error):
            raise
        raise SpecError(
            f"documents.transform.function: {name} can't be imported: {named_message_of(error)}; "
            "install its package where workers run, or put its folder on PYTHONPATH"
        ) from error
    if not callable(function):
        raise SpecError(f"documents.transform.function: {name} is not a function")
    return function  # type: ignore[no-any-return]


def transformed(texts: pa.Array, numbers: NDArray[np.uint64], name: str | None, place_of: PlaceOf) -> pa.Array:
    """Return texts, (n,) large_string, after the transform `name`: null where it returns None.

    Raises InputError if it fails on a text. Such a row is never skipped, because its bytes may not be the cause.
    """
    if name is None:
        return texts
    function, found = load_transform(name), []
    for text, row in zip(texts.to_pylist(), numbers.tolist(), strict=True):
        try:
            found.append(None if text is None else _checked(function(text)))
        except MemoryError:  # of this process, whatever the function does
            raise
        except BaseException as error:
            if _is_signal(error):
                raise
            raise InputError(
                f"{place_of(row)}: documents.transform {name} failed: {named_message_of(error)}; correct that function"
            ) from error
    return pa.array(found, pa.large_string())


def _is_signal(error: BaseException) -> bool:
    """Return whether a signal to this process raised an error, not the user's code: Ctrl-C, or Prefect's SIGTERM.

    Only the main thread gets signals, and worker processes ignore them.
    """
    if WORKER_MARK in os.environ or threading.current_thread() is not threading.main_thread():
        return False
    return bool({"KeyboardInterrupt", "ExternalSignal"} & {kind.__name__ for kind in type(error).__mro__})


def _checked(text: Any) -> str | None:
    if text is not None and not isinstance(text, str):
        raise TypeError(f"it returned {type(text).__name__}, not str or None")
    if text is not None:
        text.encode()  # a lone surrogate can't be encoded
    return text


def keep_documents(rows: Rows, rules: RulesJob, place_of: PlaceOf, tokenizer: Tokenizer) -> Rows:
    """Return the batch with only its documents; its `num_filtered` and `bad` account for the other rows.

    Args:
        rows: as they were read.
        rules: the build's rules.
        place_of: how a message names a row.
        tokenizer: must be able to encode the texts.

    Raises:
        BadRow: a document or id is too large, unless the rules skip such rows.
        InputError: the transform fails.
    """
    if not len(rows.rows):
        return rows
    rows = replace(rows, texts=transformed(rows.texts, rows.rows, rules.transform, place_of))
    counts_characters = rules.min_chars > 1 or rules.max_chars is not None
    # Counting bytes takes only the offsets, and gives 0 for the same texts.
    lengths = pc.utf8_length(rows.texts) if counts_characters else pc.binary_length(rows.texts)
    kept = pc.greater_equal(lengths, rules.min_chars).fill_null(False)
    if rules.max_chars is not None:
        kept = pc.and_(kept, pc.less_equal(lengths, rules.max_chars).fill_null(False))
    documents = _only(rows, kept.to_numpy(zero_copy_only=False))
    documents = replace(documents, num_filtered=rows.num_filtered + len(rows.rows) - len(documents.rows))
    return _without_large(documents, rules, place_of, tokenizer)


def _only(rows: Rows, kept: NDArray[np.bool_]) -> Rows:
    if kept.all():
        return rows
    mask = pa.array(kept)
    ids = None if rows.ids is None else rows.ids.filter(mask)
    return replace(rows, texts=rows.texts.filter(mask), rows=rows.rows[kept], ids=ids)


def _without_large(rows: Rows, rules: RulesJob, place_of: PlaceOf, tokenizer: Tokenizer) -> Rows:
    data, offsets = text_bytes(rows.texts)
    lengths = np.diff(offsets)
    found: dict[int, tuple[str, str]] = {}  # position in the batch -> reason, and what is wrong
    for i in _above(lengths, rules.max_bytes):
        found[i] = (
            "too_large",
            f"a document of {lengths[i]:,} bytes; at most {rules.max_bytes:,} are allowed (documents.max_bytes); "
            "raise that limit or split the document",
        )
    for i in _above(lengths, tokenizer.max_text_bytes):
        if i not in found and not tokenizer.takes(data[offsets[i] : offsets[i + 1]]):
            found[i] = (
                "too_large",
                f"a document of {lengths[i]:,} bytes; tokenizer {tokenizer.name} ({tokenizer.kind}) encodes at most "
                f"{tokenizer.max_text_bytes:,} at once, because more would need too much memory; split the document",
            )
    if rows.ids is not None:
        for i in _above(np.diff(text_bytes(rows.ids.fill_null(""))[1]), MAX_ID_BYTES):
            found.setdefault(i, ("bad_id", f"an id of more than {MAX_ID_BYTES:,} bytes; repair the row"))
    if not found:
        return rows
    numbered = [(int(rows.rows[i]), *found[i]) for i in sorted(found)]
    bad = [BadRow(f"{place_of(row)}: {message}", row, reason) for row, reason, message in numbered]
    if rules.on_error != "skip":
        raise bad[0]
    kept = np.isin(np.arange(len(rows.rows)), list(found), invert=True)
    return replace(_only(rows, kept), bad=tuple(sorted((*rows.bad, *bad), key=lambda row: row.row)))


def _above(sizes: NDArray[np.int64], max_size: int) -> list[int]:
    return np.flatnonzero(sizes > max_size).tolist()
