"""Find how to read a file from its name and first rows: kind, text or conversations, id, separator.

What is found is tried with the reader of the kind, and layouts are recognized as a plan does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from tokenloom.chat.layouts import PAIR_KEYS, PAIRS
from tokenloom.errors import BadRow, InputError
from tokenloom.spec.documents import DocumentRules
from tokenloom.spec.sources import Source
from tokenloom.spec.values import WHOLE_ROW
from tokenloom.tasks.planning.layouts import first_rows, recognized_layout
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.base import Rows
from tokenloom.tasks.sources.files.compressed import compression, open_decompressed
from tokenloom.tasks.sources.files.opening import input_bytes
from tokenloom.tasks.sources.naming import naming_source
from tokenloom.tasks.sources.rows.records import RecordReader
from tokenloom.tasks.sources.rows.shown_names import shown_names

KINDS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
KINDS |= {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv"}
KINDS |= {".array_record": "arrayrecord", ".arrayrecord": "arrayrecord"}
KINDS |= dict.fromkeys((".txt", ".text", ".md", ".rst", ".html", ".tex"), "text")
_OF_TOKENS = (".bin", ".idx", ".npy", ".ds")
_TEXTS = ("text", "content", "document", "body", "raw_content", "article", "story", "code", "passage")
_IDS = ("id", "_id", "doc_id", "document_id", "uuid", "url")
_CONVERSATIONS = ("messages", "conversations", WHOLE_ROW)
_SEPARATOR = "<|endoftext|>"
_SEPARATOR_BYTES = 2**20  # a file without a separator in so many bytes has none
_MAX_ROWS = 100

Options = dict[str, Any]


def suffix_of(url: str) -> str:
    """Return the end of a name that decides how a file is read, such as ".jsonl.gz"."""
    name = PurePosixPath(url)
    packed = name.suffix if compression(name.name) else ""
    return PurePosixPath(name.name.removesuffix(packed)).suffix.lower() + packed


def kind_of(url: str) -> str | None:
    """Return the kind that the name of a file implies; None if it implies none."""
    with suppress(InputError):  # an archive, or a compression that is not supported
        return KINDS.get(f".{suffix_of(url).split('.')[1]}") if suffix_of(url) else None
    return None


@naming_source(None)
def reading_options(url: str) -> tuple[Options, str]:
    """Return the fields of a source that reads a file, without its path; and a note on the choice, "" for none.

    Raises InputError if the file is empty, can't be read, or has neither text nor conversations.
    """
    if url.endswith(_OF_TOKENS):
        raise InputError(f"{url}: a file of tokens; docs/guides/imports.md says how to read each format of them")
    kind = kind_of(url) or "text"
    if kind == "text":
        return {"kind": kind} | ({"separator": _SEPARATOR} if _has_separator(url) else {}), ""
    base = {"kind": kind} | ({"delimiter": mark} if kind == "csv" and (mark := _delimiter(url)) != "," else {})
    names, paths = _names(url, base)
    if found := _conversations(url, base, names):
        return base | found, ""
    if set(PAIR_KEYS) <= set(names):
        raise InputError(f"{url}: {PAIRS}")
    text, note = _text(url, base, names, paths)
    known = (name for name in _IDS if text and name in names and name != text)
    identifier = next((name for name in known if _rows(url, base | {"text": text, "id": name})[0]), None)
    return base | ({"text": text} if text else {}) | ({"id": identifier} if identifier else {}), note


def _read_with(source: Options, **changes: Any) -> Options:
    """Return the options with which the reader of a source reads a file."""
    options = TypeAdapter[Any](Source).validate_python(source | {"path": "any"}).reading_options()
    return {**options, "max_bytes": DocumentRules().max_bytes, "encoding_errors": "fail", "on_error": "skip"} | changes


def _rows(url: str, source: Options) -> tuple[Rows | None, Sequence[BadRow]]:
    """Return the first rows of a file, None if a source can't read them; and those that are bad."""
    with suppress(InputError):
        for batch in first_rows(url, _read_with(source)):
            return batch if len(batch.texts.drop_null()) > len(batch.bad) else None, batch.bad
    return None, ()


def _delimiter(url: str) -> str:
    """Return what is most often in the first line of a CSV file: a comma, semicolon or tab."""
    with open_decompressed(url) as file:
        line = file.readline(_SEPARATOR_BYTES)
    return max(",;\t", key=lambda mark: line.count(mark.encode()))


def _has_separator(url: str) -> bool:
    """Return whether the first document of a text file ends with a separator; raise InputError if it is not text."""
    size = input_bytes(url)
    options = _read_with({"kind": "text", "separator": _SEPARATOR}, max_bytes=_SEPARATOR_BYTES, on_error="fail")
    reader = make_reader(options)
    assert isinstance(reader, RecordReader)
    first = next(reader.raw_rows(url, 0, size), None)
    if first is None:
        raise InputError(f"{url}: no text in it; leave it out")
    if isinstance(first.value, BadRow):
        if first.value.reason != "too_large":
            raise first.value
        return False
    reader.parse(url, 0, first.value)
    return first.num_bytes + len(_SEPARATOR) <= size and compression(url) is None


def _names(url: str, base: Options) -> tuple[list[str], list[str]]:
    """Return the columns or keys of a file, WHOLE_ROW for texts and lists; and the same with keys in objects."""
    reader = make_reader(_read_with(base, text=None))
    if not isinstance(reader, RecordReader):
        names = list(reader.schema(url).names)  # type: ignore[attr-defined]  # those of columns have it
        return names, names
    keys, paths, problem = dict[str, None](), dict[str, None](), InputError(f"{url}: no row in it; leave it out")
    for raw in islice(reader.raw_rows(url, 0, input_bytes(url)), _MAX_ROWS):
        try:
            if isinstance(raw.value, BadRow):
                raise raw.value
            value = reader.parse(reader.place(url, raw.row), raw.row, raw.value)
        except BadRow as error:
            problem = error
            continue
        keys |= dict.fromkeys(value if isinstance(value, Mapping) else [WHOLE_ROW])
        paths |= dict.fromkeys(_paths(value) if isinstance(value, Mapping) else [WHOLE_ROW])
    if not keys:
        raise problem
    return list(keys), list(paths)


def _paths(value: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of a JSON object and of those in it, dotted."""
    for key, inner in value.items():
        yield before + key
        yield from _paths(inner, f"{before}{key}.") if isinstance(inner, Mapping) else ()


def _conversations(url: str, base: Options, names: list[str]) -> Options | None:
    """Return how to read a file whose rows hold conversations, None if they don't."""
    known = [name for name in _CONVERSATIONS if name in names or name == WHOLE_ROW]
    for name in (*known, *(name for name in names if name not in known and not set(_TEXTS) & set(names))):
        if rows := _rows(url, base | {"messages": name})[0]:
            with suppress(InputError):
                return {"messages": name, "layout": recognized_layout(rows, url)}
    return None


def _text(url: str, base: Options, names: list[str], paths: list[str]) -> tuple[str | None, str]:
    """Return the column of the texts, and a note if it was chosen among several; None if records are texts.

    It is one of `names`, or else of the other `paths`, into objects.
    """
    lengths: dict[str, float] = {}
    problems: list[BadRow] = []
    leaves = {name: name.rpartition(".")[2] for name in paths}
    for name in sorted(paths, key=lambda name: (name not in names, (*_TEXTS, leaves[name]).index(leaves[name]))):
        if lengths and name not in names:
            break
        rows, bad = _rows(url, base | {"text": name})
        problems += (row for row in bad if row.reason not in ("missing_key", "not_text"))
        if rows:
            texts = rows.texts.drop_null().slice(0, _MAX_ROWS).to_pylist()
            lengths[name] = sum(map(len, texts)) / len(texts)
            if leaves[name] in _TEXTS:
                return name, ""
    if not lengths and base["kind"] == "arrayrecord":
        return None, ""
    if not lengths and problems:
        raise problems[0]
    if not lengths:
        shown = shown_names(paths)
        raise InputError(f"{url}: no column or key has text; they are: {shown}. Write the spec with their `text`")
    longest = max(lengths, key=lambda name: lengths[name])
    others = [name for name in lengths if name != longest]
    return longest, f"the longest; others with text: {shown_names(others)}" if others else ""
