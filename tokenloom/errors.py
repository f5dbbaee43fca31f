"""Every error that tokenloom raises for its users. Any module may import this one; it imports none of ours.

    TokenloomError
    ├── SpecError       (ValueError)    the spec or an option is wrong                    exit code 2
    ├── InputError      (ValueError)    an input file is missing, damaged or of the wrong kind
    │   ├── BadRow                      a row is damaged: `on_error: skip` leaves it out and lists it
    │   └── BadConversation             a row is not a conversation, or can't be rendered; a BadRow names it
    ├── TokenizerError  (ValueError)    a tokenizer can't be made, or returns invalid ids
    │   └── EncoderMismatch             a fast encoder does not give the ids of the reference library
    ├── StoreError      (OSError)       the store can't be read or written
    │   └── VersionDeleted              `tokenloom gc` has deleted the version, or is deleting it
    ├── FormatError     (ValueError)    a file of the store is damaged, or newer than this reader
    ├── WorkError       (RuntimeError)  a file in work/ is missing or damaged: it is deleted, the next run writes it
    ├── CheckError      (RuntimeError)  a finished build must not be published             exit code 3
    │   └── GateFailed                  a check of the spec failed
    └── WorkerLost      (RuntimeError)  a worker process died; finished work is kept

A message contains the place (file, row group or shard), the rule, the value and the next step. Checks of arguments,
which raise Python's own errors, stand at the end.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any, SupportsIndex


class TokenloomError(Exception):
    """The base class of all errors that tokenloom raises deliberately; errors of no other class have this one.

    A wrong argument of a Python function is a ValueError or a TypeError, as everywhere in Python.

    What to do:
        Read the end of the message, which names the next step. To handle every error of tokenloom, catch this class.
    """

    exit_code = 1

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SpecError(TokenloomError, ValueError):
    """The spec or an option is wrong. The message names the key, the value, what is allowed, and the line.

    What to do:
        Correct the line or the option that the message names, and run the command again.
    """

    exit_code = 2


class InputError(TokenloomError, ValueError):
    """An input file is missing, damaged, or not what its source describes. The message names the file and the place.

    What to do:
        Repair the file, correct its source in the spec, or keep the file out with `leave_out`. Then run the build
        again: it keeps what it has encoded.
    """

    source: str | None = None  # the name of the source in the spec, set by naming_source


class BadRow(InputError):
    """One row of an input, or several rows from it on, can't be used.

    What to do:
        Correct the row, or set `documents.on_error: skip`: the build then leaves out such rows, counts them and lists
        them in quarantine.jsonl. The message names another option if one helps.

    Args:
        message: names the file, the row, the rule and the next step.
        row: its number in the file; in a file of lines, its byte offset.
        reason: what is wrong, in a word, as quarantine.jsonl says it; docs/guides/rows.md lists the words.
        num_rows: how many rows are affected.
        option: what to set instead if only some rows are like this one; "" if nothing helps.
    """

    def __init__(self, message: str, row: int, reason: str, num_rows: int = 1, option: str = "") -> None:
        super().__init__(message, row, reason, num_rows, option)
        self.row, self.reason, self.num_rows, self.option = row, reason, num_rows, option

    def changed(self, **arguments: Any) -> BadRow:
        """Return a copy with other arguments; it has no traceback and no cause, which keep the row's data in memory."""
        names = ("message", "row", "reason", "num_rows", "option")
        copy = BadRow(**dict(zip(names, self.args, strict=True)) | arguments)
        copy.source = self.source
        return copy

    def __str__(self) -> str:
        return f"{self.args[0]}, or {self.option}" if self.option else str(self.args[0])


class BadConversation(InputError):
    """A value is not a conversation, or the chat template can't render it. In a build, a BadRow names the row.

    What to do:
        Correct the conversation, name its `layout` in the spec, or change the template. A build can skip such rows,
        like any BadRow.

    Args:
        problem: what is wrong and the next step, without the place.
        reason: what is wrong, in a word, as quarantine.jsonl says it; docs/guides/rows.md lists the words.
    """

    def __init__(self, problem: str, reason: str) -> None:
        super().__init__(problem, reason)
        self.reason = reason


class TokenizerError(TokenloomError, ValueError):
    """A tokenizer can't be loaded, can't encode a text, or returns invalid ids; or ids can't be decoded.

    What to do:
        Correct the `tokenizer` block of the spec, or the file that the message names. `tokenloom tokenizer SPEC` tries
        a tokenizer without a build.
    """


class EncoderMismatch(TokenizerError):
    """A fast encoder gave other ids than the tokenizer's library, or failed. Nothing was published.

    What to do:
        Set `backend: reference` in the `tokenizer` block and build again. Verify the versions that the message lists
        with `tokenloom verify --deep`, and report the message.

    Args:
        message: what differs.
        encoders: names and versions of the fast encoders that may have given the ids.
    """

    def __init__(self, message: str, encoders: tuple[str, ...]) -> None:
        super().__init__(message, encoders)
        self.encoders = encoders


class StoreError(TokenloomError, OSError):
    """The store can't be read or written, or has no such dataset, version, tag or split. The message names the path.

    What to do:
        If something does not exist, list what does with `tokenloom ls STORE`. Else check the path or URL, the
        credentials and the free space, and run the same command again.
    """


class VersionDeleted(StoreError):
    """The version was deleted while it was read or tagged, as `tokenloom gc` does with old versions without a tag.

    What to do:
        Read another version, or build again from the same inputs and spec, which makes the same bytes. Next time, tag
        what you train on: `tokenloom tag REF NAME`.
    """


class FormatError(TokenloomError, ValueError):
    """A file of the store is damaged or incomplete, or this release does not know its format.

    What to do:
        Run `tokenloom verify REF`: it lists every damaged file, and what to do. If the file is newer than this release,
        upgrade tokenloom.

    Attributes:
        advice: what the command line says after the message.
    """

    advice = "`tokenloom verify` lists everything that is damaged in a version, and what to do"


class WorkError(TokenloomError, RuntimeError):
    """A file in the folder work/ of a dataset is missing or damaged. It is deleted, and the build ends.

    What to do:
        Run the same command again: it writes the file again, and keeps all other work. If it fails in the same way,
        check the disk, and that no other program changes the folder.

    Args:
        place: the path or URL of the file.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)

    def __str__(self) -> str:
        return f"work file damaged: {self.args[0]}; run the same command again, finished work is kept"


class CheckError(TokenloomError, RuntimeError):
    """A check before publication failed, so nothing was published.

    What to do:
        The message says what was expected and what was found. Correct the inputs or the spec, and build again.
    """

    exit_code = 3


class GateFailed(CheckError):
    """A version did not pass the `checks` of its spec. It is not published, and no tag moves to it.

    What to do:
        Look at what the message lists. Correct the inputs or the limits and build again; finished work is kept.

    Args:
        message: names each check that failed, what it expected and found, and the next step.
        version: the name of the version.
        gates: the result of every check: its `name`, what it `expected` and `found`, whether it `passed`, and
            whether there was anything for it to be `compared` with.
    """

    def __init__(self, message: str, version: str, gates: list[dict[str, str | bool]]) -> None:
        super().__init__(message, version, gates)
        self.version, self.gates = version, gates


class WorkerLost(TokenloomError, RuntimeError):
    """A worker process died during its work: it was killed, or crashed. The message names the input that it had.

    What to do:
        Run the same command again, with fewer `--workers` if memory ran out: it continues where it stopped.
    """


_MEANINGS = {  # messages for errors that are often raised without one
    MemoryError: "out of memory",
    RecursionError: "nested too deeply",
    TimeoutError: "no answer in time",
    EOFError: "the data ends too early",
    KeyboardInterrupt: "interrupted",
}


def one_line(text: str) -> str:
    """Return a text on one line, its words separated by single spaces."""
    return " ".join(text.split())


def text_of(error: BaseException) -> str:
    """Return the text of an error; "" if its class, of a library or of a user's code, raises when it is asked."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (whatever it raises, the error that is reported is this one)
        return ""


def message_of(error: BaseException) -> str:
    """Return the message of a library's error on one line, without a full stop, to quote it in a message of ours.

    The name of its class alone is never the message.
    """
    if isinstance(error, FileNotFoundError) and error.strerror is None and error.__cause__ is not None:
        error = error.__cause__  # fsspec's error for whatever fails over HTTP says only the URL
    if text := _own_message(error):
        return text
    meant = next((meaning for kind, meaning in _MEANINGS.items() if isinstance(error, kind)), None)
    return meant or f"{type(error).__name__} without a message"


def named_message_of(error: BaseException) -> str:
    """Return the class and the message of a library's error: "ValueError: not a number"; the message if it has none."""
    text = _own_message(error)
    return f"{type(error).__name__}: {text}" if text else message_of(error)


def _own_message(error: BaseException) -> str:
    """Return the text of an error on one line; "" if it has none, only punctuation, or the name of its class."""
    text = one_line(text_of(error)).rstrip(". ")
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        text = text.replace("Connect call failed", os.strerror(error.errno))  # asyncio's words for any reason
    return text if any(map(str.isalnum, text)) and text != type(error).__name__ else ""


def checked_int(name: str, value: SupportsIndex, minimum: int = 0, end: int = 2**63) -> int:
    """Return an integer of Python, numpy or torch as an int.

    Raises:
        TypeError: the value is not an integer.
        ValueError: the value is not in [minimum, end).
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, not {value!r}") from error
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")
    if number >= end:
        raise ValueError(f"{name} must be below {end:,}, not {value}")
    return number


def checked_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return `value`; raise ValueError if it is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)
