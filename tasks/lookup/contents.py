"""Find the documents of a content, or of a text in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tokenloom.errors import InputError, SpecError
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.keys import content_digits, content_hashes, words_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tasks.lookup.known_spec import KnownSpec
from tokenloom.tasks.lookup.outcomes import FoundDocument, HashedText, Lookup
from tokenloom.tasks.lookup.tables import VersionTables, is_any_of
from tokenloom.tasks.rows.exclusion import is_excluded, read_exclusions
from tokenloom.tasks.rows.rules import transformed
from tokenloom.wording import counted

_BYTE_ORDER_MARK = "\ufeff"


def look_up_content(tables: VersionTables, content: str, known: KnownSpec) -> Lookup:
    """Return the documents of a content.

    Args:
        tables: those of the version.
        content: 32 hexadecimal digits.
        known: the version's spec, to see whether the content is excluded.
    """
    words = words_of(bytes.fromhex(content))
    found = find_contents(tables, [words])
    if found:
        return Lookup("found", "", found, [])
    split = tables.split_of(words)
    excluded = why_excluded(tables, words, known)
    reason = excluded or f"no document has the content {content}; it would be in the split {split}{hint(tables)}"
    return Lookup("excluded" if excluded else "not_found", reason, [], [])


def look_up_text(tables: VersionTables, path: str, known: KnownSpec) -> Lookup:
    """Return the documents with the text of a file: exactly, or without a line end or mark that an editor added.

    Args:
        tables: those of the version.
        path: a local file in UTF-8.
        known: the version's spec; if it has a transform, the user must give it, and it is applied.

    Raises:
        InputError: the file can't be read, or is not UTF-8.
        SpecError: the version has a transform, and there is no spec.
    """
    texts = {what: _transformed(tables, text, known, path) for what, text in _variants(_read(path)).items()}
    hashed: list[HashedText] = []
    contents: list[UInt64s] = []
    for what, text in texts.items():
        if text is not None:
            words = hash_of(text)
            contents.append(words)
            hashed.append({"what": what, "bytes": len(text.encode()), "content": content_digits(words)})
    found = find_contents(tables, contents)
    for each in hashed:
        if documents := [document for document in found if document["content"] == each["content"]]:
            return Lookup("found", f"the text is {each['what']}", documents, hashed)
    for words in contents:
        if excluded := why_excluded(tables, words, known):
            return Lookup("excluded", excluded, [], hashed)
    for what, text in texts.items():
        if why := why_filtered(tables, text):
            return Lookup("filtered", f"{what}: {why}" if len(texts) > 1 else why, [], hashed)
    sought = "this text, which was" if len(hashed) == 1 else f"one of these {len(hashed)} texts, which were"
    reason = f"no document has {sought} hashed{hint(tables)}"
    return Lookup("not_found", reason, [], hashed)


def find_contents(tables: VersionTables, contents: Sequence[UInt64s]) -> list[FoundDocument]:
    """Return the documents of contents, (2,) each: by binary search, or with all copies by reading all tables."""
    if tables.rules.deduplicate:
        return [document for content in contents for document in tables.find(content)]
    splits = sorted({tables.split_of(content) for content in contents})
    return tables.scan(is_any_of(contents), splits, "reading document tables, because duplicates were kept")


def hash_of(text: str) -> UInt64s:
    """Return the content of a text, (2,)."""
    data = text.encode()
    words: UInt64s = content_hashes(data, np.array([0, len(data)]))[0]
    return words


def why_excluded(tables: VersionTables, content: UInt64s, known: KnownSpec) -> str:
    """Return why a content was excluded, "" if it was not, or if the list can't be read."""
    listed = tables.rules.exclude
    if not listed or known.spec is None or not known.spec.documents.exclude:
        return ""
    url = known.spec.documents.exclude
    try:
        excluded = read_exclusions(url)
    except InputError:
        return ""
    is_same = hashlib.sha256(np.ascontiguousarray(excluded, "<u8").tobytes()).hexdigest() == listed
    if not is_excluded(excluded, content[:1], content[1:])[0]:
        return ""
    return f"documents.exclude lists it: {url}{'' if is_same else ', which has changed since the build'}"


def hint(tables: VersionTables) -> str:
    """Return what else can keep a text out of a version, for the end of a message."""
    found, limit = [], tables.spec.limit
    if limit is not None:
        found.append(f"the version is a try-out of at most {counted(limit, 'document')} of each source")
    if tables.rules.exclude:
        found.append("documents.exclude may have listed it: its file can't be read, or does not list it now")
    return "".join(f"; {each}" for each in found)


def why_filtered(tables: VersionTables, text: str | None) -> str:
    """Return which document rule leaves out a text, "" if none does; the text is that after the transform."""
    if text is None:
        return "documents.transform leaves it out"
    minimum, maximum = tables.rules.min_chars, tables.rules.max_chars
    if len(text) < minimum:
        return f"it has {counted(len(text), 'character')}, and documents.min_chars is {minimum:,}"
    if maximum is not None and len(text) > maximum:
        return f"it has {counted(len(text), 'character')}, and documents.max_chars is {maximum:,}"
    return ""


def _read(path: str) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert the text to UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}; check the file") from error


def _variants(text: str) -> dict[str, str]:
    """Return the texts that a file may stand for, by what they are of it; each once, the whole file first."""
    found = {"the whole file": text}
    found["the file without its byte order mark"] = text.removeprefix(_BYTE_ORDER_MARK)
    for what, base in list(found.items()):
        found[f"{what}, without its last line end"] = base.removesuffix("\n").removesuffix("\r")
        found[f"{what}, without blanks at both ends"] = base.strip()
    for what, base in list(found.items()):
        found[f"{what}, with \\n for \\r\\n"] = base.replace("\r\n", "\n")
    first: dict[str, str] = {}  # text -> what
    for what, base in found.items():
        first.setdefault(base, what)
    return {what: base for base, what in first.items()}


def _transformed(tables: VersionTables, text: str, known: KnownSpec, path: str) -> str | None:
    """Return the text of a file after the transform of the version, None if that leaves it out."""
    if not tables.rules.transform:
        return text
    if known.spec is None or known.spec.documents.transform is None:
        raise SpecError("the version was built with a documents.transform, which is code: give --spec, so that it runs")
    function = known.spec.documents.transform.function
    texts = transformed(pa.array([text], pa.large_string()), np.zeros(1, np.uint64), function, lambda _: path)
    found: str | None = texts[0].as_py()
    return found
