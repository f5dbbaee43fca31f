"""The first row of a CSV file: whether it is a header, and the error to report if it lacks a column."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence

from tokenloom.errors import InputError
from tokenloom.tasks.sources.files.named_kind import name_hint
from tokenloom.tasks.sources.rows.shown_names import change_option, shown_names, wanted_column

_MAX_ROWS = 100  # compared with the header
_MAX_CHARS = 1_000_000  # in those rows
_DELIMITERS = "\t;|,"
USED_AS_NAMES = "its first row is used as names of columns; if it is data, set header: false"
_LIKE_DATA = (
    "They look like a row of data: if the file has no header, set header: false, with columns: [name, ...] or text: 2, "
    "a position counted from 0. Else "
)


def skip_blank(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Return the rows without blank lines at the start."""
    for row in rows:
        if len(row) > 1 or row[0].strip():
            yield row
            break
    yield from rows


def first_rows(rows: Iterator[list[str]]) -> list[list[str]]:
    """Return about the first hundred rows, or those before a row that can't be read, which a later read reports."""
    found: list[list[str]] = []
    num_chars = 0
    try:
        for row in rows:
            found.append(row)
            num_chars += sum(map(len, row))
            if len(found) == _MAX_ROWS or num_chars > _MAX_CHARS:
                break
    except (csv.Error, InputError):
        return found
    return found


def may_be_data(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a header may be a row of data, since one of its cells looks like a value.

    Args:
        names: the cells of the header.
        rows: some of the rows after it.
    """
    return any(_is_number(name) or _has_words(name) for name in names) or is_likely_data(names, rows)


def is_likely_data(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a header is probably a row of data.

    It is if a cell is a number, all cells are texts of several words ("Review Text" alone may be a name), two cells are
    equal, or a cell is also a value in its own column. Rows that repeat the header don't count: joined files have them.

    Args:
        names: the cells of the header.
        rows: some of the rows after it.
    """
    if len(set(names)) < len(names) or any(map(_is_number, names)) or all(map(_has_words, names)):
        return True
    pairs = (pair for row in rows if list(row) != list(names) for pair in zip(names, row, strict=False))
    return any(name == value and name.strip() for name, value in pairs)


def _has_words(name: str) -> bool:
    return " " in name.strip()


def _is_number(name: str) -> bool:
    return name.strip().isdecimal()


def missing_column(
    url: str,
    key: str,
    column: str,
    first: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    delimiter: str,
    has_header: bool,
) -> InputError:
    """Return the error for a column that a file does not have exactly once.

    Args:
        url: the file's path or URL.
        key: the key of the spec that names the column: text, id or filter.
        column: its name or position.
        first: the first row.
        rows: some of the rows after it.
        delimiter: between the fields.
        has_header: whether the first row names the columns.
    """
    wanted, change = wanted_column(key, column), change_option(key)
    if not first:
        return InputError(f"{url}: the file is empty, so it has no column {wanted}; repair it or leave it out")
    names = list(first) if has_header else [str(position) for position in range(len(first))]
    shown = f"its columns are: {shown_names(names)}"
    if names.count(column) > 1:
        return InputError(
            f"{url}: two columns {wanted}; {shown}. Rename one in the file, or {change} another. If this row is data, "
            "set header: false"
        )
    if other := name_hint(url, "csv", "text"):  # a .txt may hold CSV
        return InputError(f"{url}: no column {wanted}{other}")
    hint = _delimiter_hint(first, delimiter) or (_header_hint(column, first, rows) if has_header else "")
    change = change if hint.endswith("Else ") else change.capitalize()
    return InputError(f"{url}: no column {wanted}; {shown}. {hint}{change} one of them")


def _delimiter_hint(first: Sequence[str], delimiter: str) -> str:
    """Return a hint at another delimiter, "" if the first row has none or has several fields."""
    found = max(_DELIMITERS.replace(delimiter, ""), key=first[0].count)
    if len(first) > 1 or found not in first[0]:
        return ""
    return f"If {json.dumps(found)} separates the fields, set delimiter: {json.dumps(found)}. Else "


def _header_hint(column: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if may_be_data(names, rows):
        return _LIKE_DATA
    return f"{column} is a position only with header: false. " if column.isdecimal() else ""
