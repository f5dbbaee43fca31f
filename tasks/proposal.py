"""Propose the sources of a spec for files, folders and patterns: `tokenloom init FILES` writes them.

How to read a file follows from its name and first rows: kind, text or conversations, id, separator. The reader of the
kind tries it, and layouts are recognized as a plan does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from os.path import commonpath, commonprefix
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from tokenloom.chat.layouts import PAIR_KEYS, PAIRS
from tokenloom.errors import InputError, SpecError, message_of
from tokenloom.spec.base import checked_location
from tokenloom.spec.blocks import DocumentRules
from tokenloom.spec.sources import Source
from tokenloom.spec.syntax import WHOLE_ROW, escaped
from tokenloom.tasks.building.inputs import first_rows, recognized_layout
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.base import BadValue, Rows
from tokenloom.tasks.sources.files import compression, input_bytes, is_local, open_decompressed
from tokenloom.tasks.sources.listing import find_files, match
from tokenloom.tasks.sources.reader import RecordReader, naming_source
from tokenloom.tasks.sources.values import shown_names
from tokenloom.wording import counted, first_of, shown_bytes

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
    names = _names(url, base)
    if found := _conversations(url, base, names):
        return base | found, ""
    if set(PAIR_KEYS) <= set(names):
        raise InputError(f"{url}: {PAIRS}")
    text, note = _text(url, base, names)
    if not text:
        return base, note
    base["text"] = text
    for name in _IDS:
        if name in names and name != text and _rows(url, base | {"id": name}):
            return base | {"id": name}, note
    return base, note


def _read_with(source: Options, **changes: Any) -> Options:
    """Return the options with which the reader of a source reads a file."""
    options = TypeAdapter[Any](Source).validate_python(source | {"path": "any"}).reading_options()
    return {**options, "max_bytes": DocumentRules().max_bytes, "encoding_errors": "fail", "on_error": "skip"} | changes


def _rows(url: str, source: Options) -> Rows | None:
    """Return the first rows of a file, None if a source can't read most of them."""
    with suppress(InputError):
        for batch in first_rows(url, _read_with(source)):
            return batch if len(batch.texts.drop_null()) > len(batch.bad) else None
    return None


def _delimiter(url: str) -> str:
    """Return the most frequent of comma, semicolon and tab in the first line of a CSV file."""
    with open_decompressed(url) as file:
        line = file.readline(_SEPARATOR_BYTES)
    return max(",;\t", key=lambda mark: line.count(mark.encode()))


def _has_separator(url: str) -> bool:
    """Return whether a text file has a separator near its start."""
    with open_decompressed(url) as file:
        return _SEPARATOR.encode() in file.read(_SEPARATOR_BYTES)


def _names(url: str, base: Options) -> list[str]:
    """Return the columns or keys of a file, and dotted those in objects; WHOLE_ROW for texts and lists."""
    reader = make_reader(_read_with(base, text=None))
    if not isinstance(reader, RecordReader):
        return list(reader.schema(url).names)  # type: ignore[attr-defined]  # those of columns have it
    names = dict[str, None]()
    for raw in islice(reader.raw_rows(url, 0, input_bytes(url)), _MAX_ROWS):
        try:
            if isinstance(raw.value, BadValue):
                raise raw.value
            value = reader.parse(raw.value)
        except BadValue as error:
            raise error.at(reader.place(url, raw.row), raw.row) from error
        names |= dict.fromkeys(_paths(value) if isinstance(value, Mapping) else [WHOLE_ROW])
    if not names:
        raise InputError(f"{url}: no row in it; leave it out")
    return list(names)


def _paths(value: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of a JSON object and of those in it, dotted."""
    for key, inner in value.items():
        yield before + key
        yield from _paths(inner, f"{before}{key}.") if isinstance(inner, Mapping) else ()


def _conversations(url: str, base: Options, names: list[str]) -> Options | None:
    """Return how to read a file whose rows hold conversations, None if they don't."""
    known = [name for name in _CONVERSATIONS if name in names or name == WHOLE_ROW]
    for name in (*known, *(name for name in names if name not in known and not set(_TEXTS) & set(names))):
        if rows := _rows(url, base | {"messages": name}):
            with suppress(InputError):
                return {"messages": name, "layout": recognized_layout(rows, url)}
    return None


def _text(url: str, base: Options, names: list[str]) -> tuple[str | None, str]:
    """Return the column of the texts, one in an object only if there is no other; None if records are texts.

    With it comes a note if it was chosen among several.
    """
    lengths: dict[str, float] = {}
    leaves = {name: name.rpartition(".")[2] or name for name in names}
    for name in sorted(names, key=lambda name: (name != leaves[name], (*_TEXTS, leaves[name]).index(leaves[name]))):
        if lengths and name != leaves[name]:
            break
        if rows := _rows(url, base | {"text": name}):
            texts = rows.texts.drop_null().slice(0, _MAX_ROWS).to_pylist()
            lengths[name] = sum(map(len, texts)) / len(texts)
            if leaves[name] in _TEXTS:
                return name, ""
    if not lengths and base["kind"] == "arrayrecord":
        return None, ""
    if not lengths:
        shown = shown_names(names)
        raise InputError(f"{url}: no column or key has text; they are: {shown}. Write the spec with their `text`")
    longest = max(lengths, key=lambda name: lengths[name])
    others = [name for name in lengths if name != longest]
    return longest, f"the longest; others with text: {shown_names(others)}" if others else ""


_NO_DATA = ("readme", "license", "notice", "dataset_info", "dataset_infos", "dataset_dict", "state", "requirements")
_MAX_LOOKED, _MAX_SOURCES = 20, 20  # files that are looked at one by one; sources of a single file


@dataclass(frozen=True)
class Proposal:
    """A source as a spec has it, with an absolute path; its files in words; and a note on a choice, "" for none."""

    source: dict[str, Any]
    files: str
    note: str


def propose(arguments: Sequence[str]) -> tuple[list[Proposal], list[str]]:
    """Return sources that read some files, and sentences on files that they leave out.

    Args:
        arguments: files, folders that are searched, patterns, and URLs.

    Raises:
        InputError: nothing matches, or a file has neither text nor conversations.
        SpecError: a URL has a password.
    """
    files: dict[str, int] = {}
    patterns: list[str] = []
    left_out: list[str] = []
    for argument in arguments:
        try:
            checked_location(argument)
        except ValueError as error:
            raise SpecError(f"{argument}: {message_of(error)}") from None
        pattern, found, others = _files_of(argument)
        files |= found
        patterns += [pattern] * bool(pattern)
        left_out += others
    notes = [f"left out {counted(len(left_out), 'file')} of other kinds: {first_of(left_out, 3)}"] if left_out else []
    proposals = [
        Proposal(
            {**options, "path": pattern},
            f"{counted(len(urls), 'file')}, {shown_bytes(sum(files[url] for url in urls))}",
            note,
        )
        for options, note, group in _groups(list(files))
        for pattern, urls in _cut(group, patterns)
    ]
    return proposals, notes


def _files_of(argument: str) -> tuple[str, dict[str, int], list[str]]:
    """Return the pattern of an argument, "" for a folder; its files and their bytes; its other files."""
    path = str(Path(argument).absolute()) if is_local(argument) else argument
    if not (is_local(path) and Path(path).is_dir()):
        pattern = escaped(path) if is_local(path) and Path(path).exists() else path
        return pattern, {file.url: file.num_bytes for file in find_files(pattern)}, []
    files = [name for name, info in match(f"{escaped(path)}/**/*")[1] if info["type"] == "file"]
    found = [name for name in files if PurePosixPath(name).name.split(".")[0].lower() not in _NO_DATA]
    data = {name: input_bytes(name) for name in found if kind_of(name)}
    if not data:
        raise InputError(f"{path}: no file in it ends in {', '.join(KINDS)}; name the files to read")
    return "", data, ["/".join(name.split("/")[-2:]) for name in found if name not in data]


def _groups(files: Sequence[str]) -> Iterator[tuple[Options, str, list[str]]]:
    """Yield the fields of each source but its path, a note, and its files, which have names of one end."""
    groups: dict[str, tuple[Options, str, list[str]]] = {}
    known: dict[str, tuple[Options, str]] = {}
    for url in files:
        look = url if len(files) <= _MAX_LOOKED else suffix_of(url)
        known[look] = known.get(look) or reading_options(url)
        options, note = known[look]
        groups.setdefault(json.dumps([suffix_of(url), options]), (options, note, []))[2].append(url)
    yield from groups.values()


def _cut(files: list[str], patterns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield patterns with the files that each matches: one pattern for all of them, or one for each file."""
    wanted = set(files)
    end = suffix_of(files[0])
    folder = commonpath([url.rpartition("/")[0] for url in files]) if is_local(files[0]) else ""
    start = re.sub(r"\d+$", "", commonprefix([PurePosixPath(url).name for url in files]).removesuffix(end))  # noqa: RUF071  (of names, not of paths)
    names = [f"*{end}", f"{escaped(start)}*{end}", f"**/*{end}", f"**/{escaped(start)}*{end}"]
    tried = [*patterns, *(f"{escaped(folder)}/{name}" for name in names if folder)] if len(files) > 1 else []
    for pattern in tried:
        with suppress(InputError):  # no file matches
            if {file.url for file in find_files(pattern)} == wanted:
                yield pattern, files
                return
    if len(files) > _MAX_SOURCES:
        raise InputError(f"{folder}: no pattern matches just its {len(files):,} {end} files; give one, in quotes")
    yield from ((escaped(url), [url]) for url in files)
