"""Why a command failed: a message on stderr, an object on stdout with --json, an exit code."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from typing import NoReturn

from tokenloom.cli.output import printable
from tokenloom.errors import FormatError, SpecError, TokenloomError, one_line

_INTERRUPTED = 130
_USAGE = 2
_FAILED = 1


class UsageError(Exception):
    """The arguments of the command line are wrong.

    Args:
        message: which argument, and why.
        usage: of the command, as argparse prints it; with the program's name.
    """

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, where argparse's own prints it and ends the program."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message, f"{self.format_usage()}{self.prog}: error: ")


def report(error: BaseException, *, as_json: bool = False, debug: bool = False, goes_on: bool = False) -> int:
    """Say why a command failed, without secrets, and return its exit code.

    Args:
        error: what the command raised.
        as_json: print `{"error": {"type", "message", "exit_code"}}` on stdout too.
        debug: print the traceback on stderr first.
        goes_on: an interrupted command continues where it stopped when it runs again.
    """
    if debug and not isinstance(error, KeyboardInterrupt):
        traceback.print_exception(error)
    message, code = _message(error, goes_on), _exit_code(error)
    sys.stderr.write(f"{_prefix(error)}{message}{_suffix(error)}\n")
    if as_json:
        value = {"type": type(error).__name__, "message": message, "exit_code": code}
        sys.stdout.write(json.dumps({"error": value}, ensure_ascii=False) + "\n")
        sys.stdout.flush()
    return code


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, UsageError):
        return _USAGE
    return error.exit_code if isinstance(error, TokenloomError) else _FAILED


def _prefix(error: BaseException) -> str:
    if isinstance(error, UsageError):
        return error.usage
    if isinstance(error, KeyboardInterrupt):
        return ""
    return "tokenloom: " if _is_plain(error) else f"tokenloom: {type(error).__name__}: "


def _suffix(error: BaseException) -> str:
    return "" if _is_plain(error) or isinstance(error, UsageError | KeyboardInterrupt) else " (--debug shows where)"


def _is_plain(error: BaseException) -> bool:
    """Return whether the message says all that a user needs: one of ours, or one of the system."""
    return isinstance(error, TokenloomError) or _of_system(error) is not None


def _of_system(error: BaseException) -> str | None:
    """Return what the operating system says, after the path that it is about; None for any other error."""
    if isinstance(error, TokenloomError) or not isinstance(error, OSError) or not error.strerror:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


def _message(error: BaseException, goes_on: bool) -> str:
    """Return what happened in one line, or in a line for each error of a spec."""
    from tokenloom.storage.stores.remote_errors import redacted

    if isinstance(error, KeyboardInterrupt):
        next_step = ". Only a complete version is ever visible; run the same command to go on where it stopped"
        return f"interrupted{next_step if goes_on else ''}"
    problems = str(error).splitlines() if isinstance(error, SpecError) else [_of_system(error) or str(error)]
    text = redacted("\n".join(printable(one_line(problem)) for problem in problems))
    if isinstance(error, FormatError) and "tokenloom verify" not in text:
        text += "; `tokenloom verify` names all that is damaged in a version, and what to do"
    return text
