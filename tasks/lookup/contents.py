"""Find the documents of a content, or of a text or conversation in a file.

Where duplicates are removed, a content is found by its key. Otherwise all tables of its split are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypedDict

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
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.versions.document_tables import FoundDocument, VersionTables
from tokenloom.storage.versions.published import read_tokenizer_files
from tokenloom.tasks.encoding.documents import document_encoder
from tokenloom.tasks.lookup.source_rows import SpecOfVersion
from tokenloom.tasks.rows.exclusion import is_excluded, read_exclusions
from tokenloom.tasks.rows.forms import CONVERSATION, IDS, TEXT, DocumentForm
from tokenloom.tasks.rows.rules import transformed
from tokenloom.tasks.running import progress
from tokenloom.tasks.sources import Rows
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.ids import IdsTokenizer
from tokenloom.tokenizers.loading import load_job_tokenizer
from tokenloom.wording import counted

Status = Literal[  # docs/guides/trace.md says what each means
    "found", "duplicate", "filtered", "excluded", "quarantined", "not_an_input", "no_such_row", "not_found"
]
_BYTE_ORDER_MARK = "\ufeff"
_READERS = 8  # tables read at the same time


class HashedText(TypedDict):
    """A text whose content was looked up, and what it is of the file."""

    what: str
    bytes: int
    content: str


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup: its status, the reason in words, the documents, and the texts that were hashed."""

    status: Status
    reason: str
    documents: list[FoundDocument] = field(default_factory=list)
    hashed: list[HashedText] = field(default_factory=list)


def look_up_content(tables: VersionTables, content: str, known: SpecOfVersion) -> Lookup:
    """Return the documents of a content.

    Args:
        tables: those of the version.
        content: 32 hexadecimal digits.
        known: the version's spec, to see whether the content is excluded.
    """
    words = words_of(bytes.fromhex(content))
    if found := _find_contents(tables, [words]):
        return Lookup("found", "", found)
    split = tables.split_of(words)
    return absent(tables, [words], known, f"no document has the content {content}; it would be in the split {split}")


def look_up_text(tables: VersionTables, path: str, known: SpecOfVersion) -> Lookup:
    """Return the documents with the text of a file: exactly, or without a line end or mark that an editor added.

    Args:
        tables: those of the version.
        path: a local file in UTF-8.
        known: the version's spec; if it has a transform, the user must give it, and it is applied.

    Raises:
        InputError: the file can't be read, or is not UTF-8.
        SpecError: the version has a transform, and there is no spec.
    """
    variants = _variants(_read(path))
    if tables.manifest.tokenizer.kind == "ids":
        as_ids = _ids_of(tables)
        return _look_up_texts(tables, {what: as_ids(text) for text, what in variants.items()}, known, IDS)
    texts = {what: _transformed(tables, text, known, path, TEXT) for text, what in variants.items()}
    return _look_up_texts(tables, texts, known, TEXT)


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
    texts = {"the conversation": _transformed(tables, text, known, path, CONVERSATION)}
    return _look_up_texts(tables, texts, known, CONVERSATION)


def _look_up_texts(
    tables: VersionTables, texts: Mapping[str, str | bytes | None], known: SpecOfVersion, form: DocumentForm
) -> Lookup:
    """Return the documents of the first text that has any; `texts` are by what they are, null where left out."""
    hashed = [hashed_text(what, text, form) for what, text in texts.items() if text is not None]
    contents = [words_of(bytes.fromhex(each["content"])) for each in hashed]
    found = _find_contents(tables, contents)
    for each in hashed:
        if documents := [document for document in found if document["content"] == each["content"]]:
            return Lookup("found", f"the text is {each['what']}" if form is not CONVERSATION else "", documents, hashed)
    missing = absent(tables, contents, known, "no document has a text that was hashed", hashed)
    for what, text in texts.items() if missing.status == "not_found" else ():
        if why := why_filtered(tables, text, form) or why_not_rendered(tables, text, form):
            return Lookup("filtered", f"{what}: {why}" if len(texts) > 1 else why, [], hashed)
    return missing


def absent(
    tables: VersionTables,
    contents: Sequence[UInt64s],
    known: SpecOfVersion,
    reason: str,
    hashed: Sequence[HashedText] = (),
) -> Lookup:
    """Return the result for contents, (2,) each, that no document has: excluded, or not found for a reason."""
    url = known.spec.documents.exclude if known.spec else None
    if tables.rules.exclude and url:
        try:
            excluded = read_exclusions(url)
            if any(is_excluded(excluded, content[:1], content[1:])[0] for content in contents):
                return Lookup("excluded", f"documents.exclude lists it now: {url}", [], list(hashed))
        except InputError:
            pass
    if tables.spec.limit is not None:
        reason += f"; the version is a try-out of at most {counted(tables.spec.limit, 'document')} of each source"
    if tables.rules.exclude:
        reason += "; documents.exclude may have listed it: its file can't be read, or does not list it now"
    return Lookup("not_found", reason, [], list(hashed))


def hashed_text(what: str, text: str | bytes, form: DocumentForm) -> HashedText:
    """Return a text with its content; `what` says what it is."""
    content = form.contents(pa.array([text], form.type))[0]
    num_bytes = len(text if isinstance(text, bytes) else text.encode())
    return {"what": what, "bytes": num_bytes, "content": content_digits(content)}


def why_filtered(tables: VersionTables, text: str | bytes | None, form: DocumentForm) -> str:
    """Return which document rule leaves out a text, "" if none does; the text is that after the transform."""
    if text is None:
        return "documents.transform leaves it out" if tables.rules.transform else "it has no text"
    minimum, maximum = tables.rules.min_chars, tables.rules.max_chars
    num_chars = form.num_chars(pa.array([text], form.type))[0].as_py()
    if num_chars < minimum:
        return f"it has {counted(num_chars, 'character')}, and documents.min_chars is {minimum:,}"
    if maximum is not None and num_chars > maximum:
        return f"it has {counted(num_chars, 'character')}, and documents.max_chars is {maximum:,}"
    return ""


def why_not_rendered(tables: VersionTables, text: str | bytes | None, form: DocumentForm) -> str:
    """Return why a conversation is not a document of a version, "" if its template renders it with a target."""
    if form is not CONVERSATION or text is None:
        return ""
    chat = version_chat(tables.store, tables.manifest)
    if chat is None:
        return "the version has no conversations"
    tokenizer = _tokenizer_of(tables)
    rows = Rows(pa.array([text], pa.large_string()), np.zeros(1, np.uint64))
    encoder = document_encoder(tokenizer, chat)
    rule = tables.rules.without_target
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
        with tables.open(entry) as table:
            for columns in table.batches():
                for i in np.flatnonzero(matches(columns)).tolist():
                    found += tables.documents(entry, columns.slice(i, i + 1))
                progress.report(progress.Advanced(num_documents=columns.num_rows, done=columns.num_rows))
        return found

    with ThreadPoolExecutor(_READERS) as readers:
        return [found for each in readers.map(of_shard, entries) for found in each]


def _find_contents(tables: VersionTables, contents: Sequence[UInt64s]) -> list[FoundDocument]:
    """Return the documents of contents, (2,) each: by binary search, or with all copies by reading all tables."""
    if tables.rules.deduplicate:
        return [document for content in contents for document in tables.find(content)]

    def matches(columns: DocumentColumns) -> NDArray[np.bool_]:
        found = np.zeros(columns.num_rows, dtype=bool)
        for content in contents:
            found |= (columns.content == content).all(axis=1)
        return found

    splits = {tables.split_of(content) for content in contents}
    return scan(tables, matches, sorted(splits), "reading document tables, because duplicates were kept")


def _read(path: str) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert the text to UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error


def _variants(text: str) -> dict[str, str]:
    """Return the texts that a file may hold, each once, with what part of it they are; the whole file first."""
    whole, plain = "the whole file", text.removeprefix(_BYTE_ORDER_MARK)
    found = {
        whole: text,
        f"{whole}, without its byte order mark": plain,
        f"{whole}, without its last line end": plain.removesuffix("\n").removesuffix("\r"),
        f"{whole}, without blanks at both ends": plain.strip(),
    }
    names: dict[str, str] = {}
    for what, each in found.items():
        names.setdefault(each, what)
    for what, each in found.items():
        names.setdefault(each.replace("\r\n", "\n"), f"{what}, with \\n for \\r\\n")
    return names


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
