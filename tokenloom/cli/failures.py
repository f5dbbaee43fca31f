"""Report why a command failed: a message on stderr, an object on stdout with --json, and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tokenloom.cli.output import json_text
from tokenloom.cli.parser import UsageError
from tokenloom.console import printable
from tokenloom.errors import FormatError, GateFailed, SpecError, TokenloomError, message_of, named_message_of, one_line

_INTERRUPTED = 130
_TERMINATED = 143
_USAGE = 2
_FAILED = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM ended the command, which cleans up as after Ctrl-C."""


def raise_terminated(number: int, frame: object) -> NoReturn:
    """Raise Terminated: the handler of SIGTERM."""
    raise Terminated


@contextmanager
def naming_missing_packages() -> Iterator[None]:
    """Raise TokenloomError with the `pip install` to run if the block imports a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("tokenloom"):
            raise
        package = "torch" if error.name == "torch" else "'tokenloom[build]'"
        raise TokenloomError(f"this command needs the package {error.name!r}: pip install {package}") from error


def report(error: BaseException, *, as_json: bool = False, debug: bool = False, is_resumable: bool = False) -> int:
    """Print why a command failed, without secrets, and return its exit code.

    Args:
        error: what the command raised.
        as_json: print `{"error": {"type", "message", "exit_code"}}` on stdout too, with the checks if one failed.
        debug: print the traceback on stderr first.
        is_resumable: whether the command, run again after an interruption, continues where it stopped.
    """
    if debug and not isinstance(error, KeyboardInterrupt):
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
    message, code = _message(error, is_resumable), _exit_code(error)
    sys.stderr.write(f"{_prefix(error)}{message}{_suffix(error)}\n")
    if as_json:
        value: dict[str, object] = {"type": type(error).__name__, "message": message, "exit_code": code}
        if isinstance(error, GateFailed):
            value |= {"version": error.version, "gates": error.gates}
        sys.stdout.write(json_text({"error": value}) + "\n")
        sys.stdout.flush()
    return code


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _TERMINATED if isinstance(error, Terminated) else _INTERRUPTED
    if isinstance(error, UsageError):
        return _USAGE
    return error.exit_code if isinstance(error, TokenloomError) else _FAILED


def _prefix(error: BaseException) -> str:
    if isinstance(error, UsageError):
        return error.usage
    if isinstance(error, KeyboardInterrupt):
        return ""
    is_named = named_message_of(error) != message_of(error)
    return f"tokenloom: {type(error).__name__}: " if is_named and not _is_plain(error) else "tokenloom: "


def _suffix(error: BaseException) -> str:
    return "" if _is_plain(error) or isinstance(error, UsageError | KeyboardInterrupt) else " (--debug shows where)"


def _is_plain(error: BaseException) -> bool:
    """Return whether the message needs no traceback: it is one of ours or the operating system's."""
    return isinstance(error, TokenloomError) or _system_message(error) is not None


def _system_message(error: BaseException) -> str | None:
    """Return the operating system's message after the path it is about; None for any other error."""
    if isinstance(error, TokenloomError) or not isinstance(error, OSError) or not error.strerror:
        return None
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


def _message(error: BaseException, is_resumable: bool) -> str:
    """Return what happened in one line; for a spec, in one line per error."""
    from tokenloom.storage.stores.remote_errors import redacted

    if isinstance(error, KeyboardInterrupt):
        next_step = ". Only complete versions are visible; run the same command again to continue where it stopped"
        what = "terminated (SIGTERM)" if isinstance(error, Terminated) else "interrupted"
        return f"{what}{next_step if is_resumable else ''}"
    problems = str(error).strip().splitlines() if isinstance(error, SpecError) else []
    problems = problems or [_system_message(error) or message_of(error)]
    text = redacted("\n".join(printable(one_line(problem)) for problem in problems))
    return f"{text}; {error.advice}" if isinstance(error, FormatError) else text
