"""Results and output of commands: lines and tables for people, or the JSON of the result; and the exit codes.

Any text may come from a file of a store, so control characters are escaped here, for every command.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import TokenloomError, one_line
from tokenloom.wording import print_status, printable_line

Json = dict[str, Any]

FAILED = 1
NO = 3  # Command.no has its meaning for each command
REQUEUE = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130
READER_ENDED = 141  # 128 + SIGPIPE, as shells show for `ls | head`; the work of a build is done by then
TERMINATED = 143

EXIT_CODES = {
    0: "The command did what it was asked to.",
    FAILED: "It failed: a store or an input can't be read or written, there is no such version, or a file is damaged.",
    2: "An argument or the spec is wrong.",
    NO: "The command completed, and the answer is no. Each command that uses this code says what it means.",
    REQUEUE: "SIGTERM ended a share of a build (`build --share`): what is finished stays, so let it run again.",
    INTERRUPTED: "Ctrl-C interrupted it.",
    READER_ENDED: "The program that reads the output ended first, as in `tokenloom ls STORE | head -1`. "
    "A build prints only after it has published.",
    TERMINATED: "SIGTERM ended it.",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM ended the command, which cleans up as after Ctrl-C."""

    exit_code = TERMINATED


@dataclass(frozen=True)
class Result:
    """The result of a command: the object that `--json` prints, and the exit code."""

    value: Json
    exit_code: int = 0


class Output:
    """Prints lines and tables for people.

    Args:
        quiet: print nothing, because `--json` prints the result instead.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.is_quiet = quiet

    def line(self, text: str = "") -> None:
        """Print a line; control characters and line ends in it are escaped."""
        if not self.is_quiet:
            write_output(printable_line(text) + "\n")

    def lines(self, text: str) -> None:
        """Print a text that may have several lines."""
        for line in text.split("\n"):
            self.line(line)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows under a header. Columns of integers are right-aligned, with a separator for thousands."""
        columns = []
        for column in zip(header, *rows, strict=True):
            cells = list(map(_cell, column))
            width = max(map(len, cells))
            is_right = all(isinstance(value, int) for value in column[1:])
            columns.append([cell.rjust(width) if is_right else cell.ljust(width) for cell in cells])
        for row in zip(*columns, strict=True):
            self.line("  " + "  ".join(row).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable_line(str(value)).replace("\t", "\\t")


def shown_origin(document: Mapping[str, Any]) -> str:
    """Return where a document comes from: "news: a.parquet, row 5, id x, copy 1, quality = 4"; see Origin."""
    identifier = f", id {document['id']}" if document.get("id") is not None else ""
    copy = f", copy {document['copy']}" if document.get("copy") else ""
    marks = "".join(f", {name} = {value}" for name, value in document.get("marks", {}).items())
    return f"{document['source']}: {document['path']}, row {document['row']}{identifier}{copy}{marks}"


def write_output(text: str, *, flush: bool = False) -> None:
    """Write to stdout.

    Raises:
        BrokenPipeError: the process that reads stdout ended.
        TokenloomError: stdout can't be written, for example because the disk is full.
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
    """Discard the buffer of stdout, which the interpreter would fail to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def showing_plain_warnings() -> Iterator[None]:
    """Print a warning raised in the block as one line on stderr, without its file and source line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print_status(f"tokenloom: warning: {one_line(str(message))}")
        yield
