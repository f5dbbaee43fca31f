"""Every error that tokenloom raises for its users; a leaf of the house that all may import.

    TokenloomError
    ├── SpecError       (ValueError)    the spec or an option is wrong                    exit code 2
    ├── InputError      (ValueError)    an input file is missing, damaged or of another kind
    │   └── BadRow                      one row is, by its bytes: `on_error: skip` leaves it out and lists it
    ├── TokenizerError  (ValueError)    a tokenizer can't be made, or gives ids it must not
    ├── StoreError      (OSError)       the store can't be read or written
    ├── FormatError     (ValueError)    a file of the store is damaged, or newer than this reader
    │   └── WorkError                   a file in work/ is: the build makes it again
    ├── CheckError      (RuntimeError)  a build is complete but must not be published     exit code 3
    └── WorkerLost      (RuntimeError)  a worker process died; the same work may succeed again

A message says the place (file, row group or shard), the rule, the value and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TokenloomError(Exception):
    """The root of all errors that tokenloom raises on purpose."""

    exit_code = 1


class SpecError(TokenloomError, ValueError):
    """The spec or an option is wrong; the message names the key, the value, what is allowed, the line."""

    exit_code = 2


class InputError(TokenloomError, ValueError):
    """An input can't be read as its source says; the message names the file and the row group or byte."""

    source: str | None = None  # the name of the source in the spec, noted by of_source


@contextmanager
def of_source(name: str) -> Iterator[None]:
    """Note in an InputError of the block which source of the spec it is about; it keeps that on its way."""
    try:
        yield
    except InputError as error:
        error.source = error.source or name
        raise


class BadRow(InputError):
    """A row, or `num_rows` from it on, is bad by its bytes; with `on_error: skip` it is left out and listed.

    Args:
        message: file, row, rule and next step.
        row: its number in the file; of a line file the byte offset.
        reason: a code, one of tasks.sources.base.REASONS.
        num_rows: how many rows.
    """

    def __init__(self, message: str, row: int, reason: str, num_rows: int = 1) -> None:
        super().__init__(message, row, reason, num_rows)
        self.row, self.reason, self.num_rows = row, reason, num_rows

    def bare(self) -> BadRow:
        """Return the same without its traceback and cause, which hold the row and more."""
        return BadRow(str(self), self.row, self.reason, self.num_rows)

    def __str__(self) -> str:
        return str(self.args[0])


class TokenizerError(TokenloomError, ValueError):
    """A tokenizer can't be made from its definition, or a text can't be encoded."""


class StoreError(TokenloomError, OSError):
    """The store can't be read or written; the message names the path and the reason of the system."""


class FormatError(TokenloomError, ValueError):
    """A file of the store is damaged, incomplete or of a format that this release does not know."""


class WorkError(FormatError):
    """A file in work/ is missing or damaged; the build makes it again.

    Args:
        message: what is wrong with which file.
        spill: name of the spills to make again; None where no spill is to blame.
    """

    def __init__(self, message: str, spill: str | None = None) -> None:
        super().__init__(message, spill)
        self.spill = spill

    def __str__(self) -> str:
        return str(self.args[0])


class CheckError(TokenloomError, RuntimeError):
    """What must hold before a version becomes visible does not hold; nothing was published."""

    exit_code = 3


class WorkerLost(TokenloomError, RuntimeError):
    """A worker process ended in the middle of its work (killed, out of memory); a retry may succeed."""

    is_transient = True  # see storage/stores/remote_errors.py


def one_line(text: str) -> str:
    """Return a text in one line, its words separated by single spaces."""
    return " ".join(text.split())


def said(error: BaseException) -> str:
    """Return what an error of a library says, in one line without a full stop: to stand inside a message of ours."""
    return one_line(str(error)).rstrip(". ") or type(error).__name__
