"""What commands print on stdout, for people: lines, tables, and texts of others made harmless."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tokenloom.errors import TokenloomError, one_line

Json = dict[str, Any]  # what `--json` prints instead


def print_line(quiet: bool, text: str = "") -> None:
    """Print a line, unless quiet."""
    if not quiet:
        write_output(text + "\n")


def write_output(text: str, *, flush: bool = False) -> None:
    """Write to stdout.

    Raises:
        BrokenPipeError: its reader went away.
        TokenloomError: it can't be written, for example because the disk is full.
    """
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise TokenloomError(f"the output can't be written: {error.strerror}") from error


def drop_output() -> None:
    """Let what is still to be written to stdout go nowhere, so that the end of the program does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(quiet: bool, header: list[str], rows: list[list[Any]]) -> None:
    """Print rows under a header; numbers to the right, with thousands separated."""
    cells = [header, *[[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    for row in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        print_line(quiet, "  " + "  ".join(aligned).rstrip())


def printable(text: str) -> str:
    """Return text without what a terminal would obey: control characters other than line ends and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


@contextmanager
def showing_plain_warnings() -> Iterator[None]:
    """Print a warning of the block as one line on stderr, without the file and the line of source that raised it."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        yield


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    sys.stderr.write(f"tokenloom: warning: {printable(one_line(str(message)))}\n")
