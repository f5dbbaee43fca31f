"""Document rules: which rows of a batch become documents, and how the others are counted.

A document is a text; or a conversation, whose text is its canonical JSON; or ids, whose bytes are its text. Its form
says what a rule means for it: what a transform gets, which characters count, what identifies a document.

Lists of contents or ids, such as removal requests and the texts of a benchmark, are applied after encoding, as marks: a
rebuild after a removal request encodes nothing.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tokenloom.chat import conversation
from tokenloom.chat.layouts import normalized
from tokenloom.errors import BadConversation, BadRow, InputError, SpecError, named_message_of
from tokenloom.process import let_pandas_in
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.keys import DIGEST_DTYPE, Digests, content_hashes
from tokenloom.tasks.sources.base import PlaceOf, Rows
from tokenloom.tasks.sources.files import input_bytes, open_decompressed
from tokenloom.tokenizers.base import WORKER_MARK, Tokenizer, text_bytes

MAX_ID_BYTES = 1024  # so that the ids of a million documents fit into one Arrow array
Transform = Callable[[Any], Any]  # text or conversation's object -> the same, or None
FoundBad = dict[int, tuple[str, str]]  # position in a batch -> reason and message
_CONTENT = re.compile("[0-9a-fA-F]{32}")  # bytes.fromhex would ignore blanks
_HELP = {
    "content": "a line is a content hash (32 hexadecimal digits), a text as a JSON string, "
    '{"text": ...}, or a conversation as {"messages": [...]}: correct the line',
    "id": "a line is an id, in UTF-8: correct the line",
}


@dataclass(frozen=True)
class DocumentForm:
    """Turns the rows of a file into documents.

    Attributes:
        type: of a text in a batch: large_string, or large_binary for ids.
        value_of: returns what a transform gets, from a text of a row.
        text_of: returns the text of a row, from what a transform returned; raises an error if that is not allowed.
        num_chars: returns how many characters the rules count in each of (n,) texts, null for null.
        sizes: returns a number for each text that is 0 where num_chars is, and null for null; faster.
        contents: returns what identifies each of (n,) texts, (n, 2), see storage.formats.keys.content_hashes.
    """

    type: pa.DataType
    value_of: Callable[[str], Any]
    text_of: Callable[[Any], str]
    num_chars: Callable[[pa.Array], pa.Array]
    sizes: Callable[[pa.Array], pa.Array]
    contents: Callable[[pa.Array], UInt64s]


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it returned {type(value).__name__}, not str or None")
    value.encode()  # a lone surrogate can't be encoded
    return value


def conversation_text(value: Any) -> str:
    """Return the text of a conversation that a person or a function wrote as an object; raises BadConversation."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it returned {type(value).__name__}, not a conversation or None")
    text = conversation.canonical(normalized(value, "messages"))
    text.encode()  # see _checked_text
    return text


def _conversation_chars(texts: pa.Array) -> pa.Array:
    counts = [None if text is None else conversation.num_chars(text) for text in texts.to_pylist()]
    return pa.array(counts, pa.int64())


def _contents(texts: pa.Array, purpose: bytes = b"") -> UInt64s:
    return content_hashes(*text_bytes(texts), purpose)


# Bytes are counted by the offsets alone.
TEXT = DocumentForm(pa.large_string(), str, _checked_text, pc.utf8_length, pc.binary_length, _contents)
CONVERSATION = DocumentForm(
    pa.large_string(),
    conversation.parse,
    conversation_text,
    _conversation_chars,
    _conversation_chars,
    conversation.content_hashes,
)
#: The ids of a document, as little-endian uint32 in a large_binary; the marks of its begin and end are not part of it.
IDS = DocumentForm(
    pa.large_binary(),
    str,  # not called: a spec with ids has no transform
    str,
    pc.binary_length,
    pc.binary_length,
    partial(_contents, purpose=b"ids\0"),
)


def form_of(options: Mapping[str, Any]) -> DocumentForm:
    """Return the form of the rows of a file, which `options` say how to read."""
    if options["kind"] == "tokens":
        return IDS
    return TEXT if options.get("messages") is None else CONVERSATION


@dataclass(frozen=True)
class RowRules:
    """The document rules and keys that every partition of a build shares; see DocumentRules of the spec."""

    min_chars: int
    max_chars: int | None
    max_bytes: int
    on_error: str
    transform: str | None
    deduplicate: bool
    seed: int
    shares: list[tuple[str, float]]
    without_target: str = "drop"


#: those that the spec's `documents` have as they are
ROW_RULES = {"min_chars", "max_chars", "max_bytes", "on_error", "deduplicate", "without_target"}


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


def transformed(
    texts: pa.Array, numbers: NDArray[np.uint64], name: str | None, place_of: PlaceOf, form: DocumentForm = TEXT
) -> pa.Array:
    """Return texts of a form, (n,) large_string, after the transform `name`: null where it returns None.

    Raises InputError if it fails on a text. Such a row is never skipped, because its bytes may not be the cause.
    """
    if name is None:
        return texts
    function = load_transform(name)
    found = []
    for text, row in zip(texts.to_pylist(), numbers.tolist(), strict=True):
        try:
            value = None if text is None else function(form.value_of(text))
            found.append(None if value is None else form.text_of(value))
        except MemoryError:  # the process is out of memory, whatever the function does
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


def keep_documents(
    rows: Rows, rules: RowRules, place_of: PlaceOf, tokenizer: Tokenizer, form: DocumentForm = TEXT
) -> Rows:
    """Return the batch with only its documents; its `num_filtered` and `bad` account for the other rows.

    Args:
        rows: as they were read.
        rules: the build's rules.
        place_of: how a message names a row.
        tokenizer: must be able to encode the texts; what it encodes of conversations is not known yet.
        form: of the rows.

    Raises:
        BadRow: a document or id is too large, unless the rules skip such rows.
        InputError: the transform fails.
    """
    if not len(rows.rows):
        return rows
    if rules.transform is not None:
        rows = replace(rows, texts=transformed(rows.texts, rows.rows, rules.transform, place_of, form))
    counts_characters = rules.min_chars > 1 or rules.max_chars is not None
    lengths = form.num_chars(rows.texts) if counts_characters else form.sizes(rows.texts)
    kept = pc.greater_equal(lengths, rules.min_chars)
    if rules.max_chars is not None:
        kept = pc.and_(kept, pc.less_equal(lengths, rules.max_chars))
    documents = without_filtered(rows, kept.fill_null(False).to_numpy(zero_copy_only=False))
    num_bytes = np.diff(text_bytes(documents.texts)[1])
    limit = min(rules.max_bytes, tokenizer.max_text_bytes) if form is TEXT else rules.max_bytes
    found = {i: too_large(num_bytes[i], tokenizer, rules.max_bytes) for i in np.flatnonzero(num_bytes > limit).tolist()}
    if documents.ids is not None:
        for i in np.flatnonzero(np.diff(text_bytes(documents.ids.fill_null(""))[1]) > MAX_ID_BYTES).tolist():
            found.setdefault(i, ("bad_id", f"an id of more than {MAX_ID_BYTES:,} bytes; repair the row"))
    return without_bad(documents, found, rules.on_error, place_of) if found else documents


def without_filtered(rows: Rows, kept: NDArray[np.bool_]) -> Rows:
    """Return the batch with only the rows to keep, (n,); the others count as filtered."""
    documents = rows if kept.all() else rows.only(np.flatnonzero(kept))
    return replace(documents, num_filtered=rows.num_filtered + len(rows.rows) - len(documents.rows))


def too_large(num_bytes: int, tokenizer: Tokenizer, max_bytes: int = 2**63) -> tuple[str, str]:
    """Return the reason and the problem of a document that is too large for the rules, or else for the tokenizer."""
    rule = f"at most {max_bytes:,} are allowed (documents.max_bytes); raise that limit or split the document"
    if num_bytes <= max_bytes:
        limit = f"tokenizer {tokenizer.name} ({tokenizer.kind}) encodes at most {tokenizer.max_text_bytes:,}"
        rule = f"{limit}, because more would need too much memory; split the document"
    return "too_large", f"a document of {num_bytes:,} bytes; {rule}"


def without_bad(rows: Rows, found: FoundBad, on_error: str, place_of: PlaceOf) -> Rows:
    """Return the batch without its bad rows, which it lists; raise the first as a BadRow unless `on_error` is skip."""
    numbered = [(int(rows.rows[i]), *found[i]) for i in sorted(found)]
    bad = [BadRow(f"{place_of(row)}: {message}", row, reason) for row, reason, message in numbered]
    if on_error != "skip":
        raise bad[0]
    kept = np.isin(np.arange(len(rows.rows)), list(found), invert=True)
    return replace(rows.only(np.flatnonzero(kept)), bad=tuple(sorted((*rows.bad, *bad), key=lambda row: row.row)))


def read_list(url: str, key: str, *, only_hashes: bool = False) -> Digests:
    """Return the contents, or hashes of ids, that a file lists, (n,), sorted, each once.

    Args:
        url: file of lines: ids; or contents, each 32 hexadecimal digits as in the document table's `content`, a JSON
            string, or an object with `text`, `content` or `messages` and perhaps `tools`. Blank lines and, in lists of
            contents, lines that begin with # are comments.
        key: "id" or "content".
        only_hashes: whether a text or conversation is an error, because the documents are ids.

    Raises InputError, which names a line of any other form, or the file if it can't be read.
    """
    input_bytes(url)  # opening would report a missing file as deleted since the plan
    keys = bytearray()
    with open_decompressed(url) as file:
        for number, data in enumerate(file, 1):
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if line and key == "id":
                    keys += xxhash.xxh3_128_digest(line.encode())
                elif line and not line.startswith("#"):
                    keys += content_digest(line, only_hashes=only_hashes)
            except BadConversation as error:
                raise InputError(f"{url}, line {number}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise InputError(f"{url}, line {number}: {str(error)[:80]}; {_HELP[key]}") from error
    found = np.sort(np.frombuffer(keys, DIGEST_DTYPE), kind="stable")  # np.unique takes ten times as long
    return np.delete(found, np.flatnonzero(found[1:] == found[:-1]))


def content_digest(line: str, *, only_hashes: bool = False) -> bytes:
    """Return the content, 16 bytes, that a line names, see read_list; raises ValueError or BadConversation."""
    value: Any = line
    if only_hashes and not _CONTENT.fullmatch(line):
        raise ValueError(f"{line[:40]!r} is not a content hash, and sources of tokens have no texts")
    if line.startswith(('"', "{")):
        value = json.loads(line)
        if isinstance(value, dict) and "messages" in value:
            text = pa.array([conversation_text(value)], pa.large_string())
            return conversation.content_hashes(text).astype(">u8").tobytes()
        text = value.get("text") if isinstance(value, dict) else value
        if isinstance(text, str):
            return xxhash.xxh3_128_digest(text.encode())
        value = value.get("content")
    if not isinstance(value, str) or not _CONTENT.fullmatch(value):
        raise ValueError(f"{str(value)[:40]!r} is neither a text, a conversation nor a content hash")
    return bytes.fromhex(value)
