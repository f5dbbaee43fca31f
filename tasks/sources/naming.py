"""What the error of an input names beside its row: the source, the line in JSON, the URL of a file that was copied.

Rows of JSON have the numbers of their bytes or values. Only a message needs the line, since it reads the file up to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.errors import InputError
from tokenloom.tasks.sources.files.compressed import open_decompressed
from tokenloom.tasks.sources.files.downloads import with_urls
from tokenloom.tasks.sources.files.opening import is_local

_JSON_PLACE = re.compile(r"((?:(?!: |, line \d).)+), (?:line at byte (\d+)|value (\d+) of its JSON array)")
_MAX_COUNTED_BYTES, _MAX_FETCHED_BYTES = 2**32, 2**26  # read again to count lines, of a local file and another one
_READ_BYTES = 2**20


@contextmanager
def naming_source(name: str | None) -> Iterator[None]:
    """Set the source of an InputError raised in the block, unless an inner block has set it, and complete its place.

    `name` is None for files that no spec names yet.
    """
    try:
        yield
    except InputError as error:
        error.source = error.source or name
        error.args = (with_line(error.args[0]), *error.args[1:])
        raise


def with_line(message: str) -> str:
    """Return a message that begins with the place of a row, with the row's line in JSON and the URL of its file."""
    if found := _JSON_PLACE.match(message):
        url, at, number = found.groups()
        line = _line_at(url, int(at)) if at else _line_of_value(url, int(number))
        if line is not None:
            place = f"line {line} at byte {at}" if at else f"line {line}, value {number} of its JSON array"
            message = f"{url}, {place}{message[found.end() :]}"
    return with_urls(message)


def _line_of_value(url: str, number: int) -> int | None:
    from tokenloom.tasks.sources.rows.json_values import array_values  # most builds read no JSON

    with open_decompressed(url) as file:
        return next((line for i, (_, _, line) in enumerate(array_values(file, url, 2**62)) if i == number), None)


def _line_at(url: str, row: int) -> int | None:
    """Return the line that begins at a byte, from 1; None if it is too far into the file to count."""
    if row > (_MAX_COUNTED_BYTES if is_local(url) else _MAX_FETCHED_BYTES):
        return None
    with open_decompressed(url) as file:
        num_newlines = at = 0
        while data := file.read(min(_READ_BYTES, row - at)):
            num_newlines, at = num_newlines + data.count(b"\n"), at + len(data)
        return num_newlines + 1
