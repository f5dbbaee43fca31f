"""Find the documents of a content, or of a text or conversation in a file.

Where duplicates are removed, a content is found by its key. Otherwise all tables of its split are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.chat.conversation import canonical
from tokenloom.chat.definition import version_chat
from tokenloom.chat.layouts import normalized, recognized
from tokenloom.errors import BadConversation, InputError, SpecError, message_of
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import content_digits, words_of
from tokenloom.storage.formats.manifest import BUILD, ShardEntry
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.stores.remote_errors import is_transient, reason_of
from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
from tokenloom.storage.versions.published import read_tokenizer_files
from tokenloom.tasks.building.documents import document_encoder
from tokenloom.tasks.rows.rules import CONVERSATION, IDS, TEXT, DocumentForm, is_excluded, read_exclusions, transformed
from tokenloom.tasks.running import progress
from tokenloom.tasks.sources import Rows
from tokenloom.tasks.verify_sources import checked_spec, recorded_spec
from tokenloom.tokenizers import Tokenizer, load_job_tokenizer
from tokenloom.tokenizers.ids import IdsTokenizer
from tokenloom.wording import counted

if TYPE_CHECKING:  # importing it takes as long as reading a gigabyte
    from tokenloom.spec.build_spec import BuildSpec


Status = Literal[  # docs/guides/trace.md says what each means
    "found", "duplicate", "filtered", "excluded", "quarantined", "not_found"
]
_READERS = 8  # tables read at the same time


class SpecOfVersion:
    """The spec of a version: the one that the user gives, else that of build.json, loaded only if a lookup needs it.

    Attributes:
        why_unknown: why there is none, once `spec` is None.

    Args:
        tables: those of the version.
        path: of the user's spec; None for build.json.

    Raises SpecError if the user's spec is wrong, or not that of the version.
    """

    def __init__(self, tables: VersionTables, path: str | None) -> None:
        self._tables = tables
        self.why_unknown = ""
        self._given: BuildSpec | None = None
        if path is not None:
            from tokenloom.spec.loading import load_spec

            self._given = checked_spec(load_spec(path), tables.manifest, "--spec")

    @cached_property
    def spec(self) -> BuildSpec | None:
        """The spec, None if it is not known."""
        if self._given is not None:
            return self._given
        try:
            return recorded_spec(self._tables.store, self._tables.manifest)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if is_transient(error):
                raise
            self.why_unknown = f"{BUILD} does not say where it is ({reason_of(error)})"
            return None


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup: its status, the reason in words, the content that was looked up, and the documents.

    `content` is None if the text of a row could not be read.
    """

    status: Status
    reason: str
    content: str | None
    documents: list[FoundDocument] = field(default_factory=list)


def look_up_content(tables: VersionTables, content: str, known: SpecOfVersion) -> Lookup:
    """Return the documents of a content.

    Args:
        tables: those of the version.
        content: 32 hexadecimal digits.
        known: the version's spec, to see whether the content is excluded.
    """
    words = words_of(bytes.fromhex(content))
    if found := _find_content(tables, words):
        return Lookup("found", "", content, found)
    return absent(tables, content, known)


def look_up_text(tables: VersionTables, path: str, known: SpecOfVersion) -> Lookup:
    """Return the documents with the text of a file: exactly, or without the line end that an editor adds.

    Args:
        tables: those of the version.
        path: a local file in UTF-8.
        known: the version's spec; if it has a transform, the user must give it, and it is applied.

    Raises:
        InputError: the file can't be read, or is not UTF-8.
        SpecError: the version has a transform, and there is no spec.
    """
    text = _read(path)
    found = _look_up_text(tables, text, known, path)
    if found.status == "not_found" and text.endswith("\n"):
        return _look_up_text(tables, text.removesuffix("\n").removesuffix("\r"), known, path)
    return found


def _look_up_text(tables: VersionTables, text: str, known: SpecOfVersion, path: str) -> Lookup:
    if tables.manifest.tokenizer.kind == "ids":
        return _look_up(tables, _ids_of(tables)(text), known, IDS)
    return _look_up(tables, _transformed(tables, text, known, path, TEXT), known, TEXT)


def _ids_of(tables: VersionTables) -> Callable[[str], bytes]:
    """Return what makes documents of texts, with the tokenizer that made the ids of a version."""
    tokenizer = _tokenizer_of(tables)
    assert isinstance(tokenizer, IdsTokenizer)
    decoder = tokenizer.decoder
    if decoder is None:
        raise SpecError(
            "--text: nothing says which tokenizer made the tokens of the version; give --content, or import them with "
            "tokenizer.decode"
        )

    def ids_of(text: str) -> bytes:
        encoded = decoder.encode(pa.array([text], pa.large_string()), np.dtype("<u4")).tokens
        return encoded[len(decoder.bos_ids) : -1].tobytes()

    return ids_of


def look_up_messages(tables: VersionTables, path: str, known: SpecOfVersion) -> Lookup:
    """Return the documents with the conversation in a file of JSON, whatever its layout.

    Args:
        tables: those of the version.
        path: a local file; `tools` beside the messages are those of the conversation.
        known: as for look_up_text.

    Raises InputError if the file can't be read, or holds no conversation; SpecError as look_up_text.
    """
    try:
        value = json.loads(_read(path))
        text = canonical(normalized(value, recognized([value])))
    except (BadConversation, RecursionError) as error:
        problem = message_of(error).partition(";")[0]  # its advice is for a source
        raise InputError(f"{path}: {problem}; write one conversation to the file, in any layout") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({message_of(error)}); write a conversation as JSON") from error
    return _look_up(tables, _transformed(tables, text, known, path, CONVERSATION), known, CONVERSATION)


def _look_up(tables: VersionTables, text: str | bytes | None, known: SpecOfVersion, form: DocumentForm) -> Lookup:
    """Return the documents of a text after the transform, None if that leaves it out."""
    if text is None:
        return Lookup("filtered", why_filtered(tables, text, form), None)
    content = content_of(text, form)
    found = look_up_content(tables, content, known)
    if found.status == "not_found" and (why := why_filtered(tables, text, form)):
        return Lookup("filtered", why, content)
    return found


def absent(tables: VersionTables, content: str, known: SpecOfVersion) -> Lookup:
    """Return the result for a content that no document has: excluded, or not found."""
    url = known.spec.documents.exclude if known.spec else None
    if tables.rules.exclude and url:
        words = words_of(bytes.fromhex(content))
        try:
            if is_excluded(read_exclusions(url), words[:1], words[1:])[0]:
                return Lookup("excluded", f"documents.exclude lists it now: {url}", content)
        except InputError:
            pass
    return Lookup("not_found", f"no document has the content {content}", content)


def content_of(text: str | bytes, form: DocumentForm) -> str:
    """Return the content of a text, 32 hexadecimal digits."""
    return content_digits(form.contents(pa.array([text], form.type))[0])


def why_filtered(tables: VersionTables, text: str | bytes | None, form: DocumentForm) -> str:
    """Return why a text is not a document of a version, "" if no rule leaves it out.

    The text is that after the transform. The template of a conversation must render it with a target.
    """
    if text is None:
        return "documents.transform leaves it out" if tables.rules.transform else "it has no text"
    minimum, maximum = tables.rules.min_chars, tables.rules.max_chars
    num_chars = form.num_chars(pa.array([text], form.type))[0].as_py()
    if num_chars < minimum:
        return f"it has {counted(num_chars, 'character')}, and documents.min_chars is {minimum:,}"
    if maximum is not None and num_chars > maximum:
        return f"it has {counted(num_chars, 'character')}, and documents.max_chars is {maximum:,}"
    return _why_not_rendered(tables, str(text)) if form is CONVERSATION else ""


def _why_not_rendered(tables: VersionTables, text: str) -> str:
    """Return why a conversation is not a document of a version, "" if its template renders it with a target."""
    chat = version_chat(tables.store, tables.manifest)
    if chat is None:
        return "the version has no conversations"
    rows = Rows(pa.array([text], pa.large_string()), np.zeros(1, np.uint64))
    encoder, rule = document_encoder(_tokenizer_of(tables), chat), tables.rules.without_target
    (rows,) = encoder.prepared(iter([rows]), "skip", "keep" if rule == "keep" else "drop", lambda _: "it")
    if rows.bad:
        return str(rows.bad[0])
    return f"nothing of it is learned, and documents.without_target is {rule}" if rows.num_without_target else ""


def _tokenizer_of(tables: VersionTables) -> Tokenizer:
    manifest = tables.manifest
    files = read_tokenizer_files(tables.store, manifest)
    return load_job_tokenizer(manifest.tokenizer_definition, manifest.tokenizer.fingerprint, files)


def scan(
    tables: VersionTables,
    matches: Callable[[DocumentColumns], NDArray[np.bool_]],
    splits: Collection[str],
    what: str,
) -> list[FoundDocument]:
    """Return the documents that match, of all tables of some splits, and report progress.

    Args:
        tables: those of the version.
        matches: whether each row of a batch does, (n,).
        splits: names of splits.
        what: names the step for people.
    """
    entries = [entry for name in splits if (split := tables.manifest.splits.get(name)) for entry in split.shards]
    progress.report(progress.StepStarted(what, sum(entry.documents for entry in entries)))

    def of_shard(entry: ShardEntry) -> list[FoundDocument]:
        found: list[FoundDocument] = []
        for columns in tables.open(entry).batches():
            for i in np.flatnonzero(matches(columns)).tolist():
                found += tables.documents(entry, columns.slice(i, i + 1))
            progress.report(progress.Advanced(num_documents=columns.num_rows, done=columns.num_rows))
        return found

    with ThreadPoolExecutor(_READERS) as readers:
        return [found for each in readers.map(of_shard, entries) for found in each]


def _find_content(tables: VersionTables, content: UInt64s) -> list[FoundDocument]:
    """Return the documents of a content, (2,): by binary search, or with all copies by reading all tables."""
    if tables.rules.deduplicate:
        return tables.find(content)

    def matches(columns: DocumentColumns) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (columns.content == content).all(axis=1)
        return found

    return scan(tables, matches, [tables.split_of(content)], "reading document tables, because duplicates were kept")


def _read(path: str) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert the text to UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error


def _transformed(tables: VersionTables, text: str, known: SpecOfVersion, path: str, form: DocumentForm) -> str | None:
    """Return the text of a file after the transform of the version, None if that leaves it out."""
    if not tables.rules.transform:
        return text
    if known.spec is None or known.spec.documents.transform is None:
        raise SpecError("the version was built with a documents.transform, which is code: give --spec, so that it runs")
    function = known.spec.documents.transform.function
    texts = transformed(pa.array([text], pa.large_string()), np.zeros(1, np.uint64), function, lambda _: path, form)
    found: str | None = texts[0].as_py()
    return found
