"""Report why a command failed: a message on stderr, an object on stdout with --json, and an exit code."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tokenloom.cli.output import FAILED, INTERRUPTED, Terminated
from tokenloom.cli.parser import UsageError
from tokenloom.errors import FormatError, GateFailed, SpecError, TokenloomError, message_of, named_message_of, one_line
from tokenloom.wording import printable, redacted

_EXPECTED = (TokenloomError, UsageError, KeyboardInterrupt)  # their messages need neither a class nor a traceback


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
    was_ended = isinstance(error, KeyboardInterrupt)
    if debug and not was_ended:
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
    message = _message(error, is_resumable)
    code = getattr(error, "exit_code", INTERRUPTED if was_ended else FAILED)
    prefix = getattr(error, "usage", "" if was_ended else "tokenloom: ")
    suffix = "" if isinstance(error, _EXPECTED) or getattr(error, "strerror", None) else " (--debug shows where)"
    sys.stderr.write(f"{prefix}{message}{suffix}\n")
    if as_json:
        value: dict[str, object] = {"type": type(error).__name__, "message": message, "exit_code": code}
        if isinstance(error, GateFailed):
            value |= {"version": error.version, "gates": error.gates}
        sys.stdout.write(json.dumps({"error": value}) + "\n")
        sys.stdout.flush()
    return code


def _message(error: BaseException, is_resumable: bool) -> str:
    """Describe an error in one line; errors of a spec in one line each."""
    if isinstance(error, KeyboardInterrupt):
        next_step = ". Only complete versions are visible; run the same command again to continue where it stopped"
        what = "terminated (SIGTERM)" if isinstance(error, Terminated) else "interrupted"
        return f"{what}{next_step if is_resumable else ''}"
    problems = [message_of(error) if isinstance(error, _EXPECTED) else named_message_of(error)]
    if isinstance(error, SpecError):
        problems = str(error).strip().splitlines() or problems
    elif isinstance(error, OSError) and error.strerror and not isinstance(error, TokenloomError):
        problems = [error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"]
    text = redacted("\n".join(printable(one_line(problem)) for problem in problems))
    return f"{text}; {error.advice}" if isinstance(error, FormatError) else text
