"""Report why a command failed: a message on stderr, an object on stdout with --json, and an exit code.

A message is one line, "PLACE: RULE; NEXT STEP" or "PLACE: RULE. Next step", as logs and pipes get it. A terminal shows
"error:" in red, then the parts on lines of their own; those that can't be distinguished stay together:

error: news.yaml:5: source csv-1: /data/b.csv
  no column 'body'; its columns are: text, n
  -> set text: to one of them
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeGuard

from tokenloom.cli.output import FAILED, INTERRUPTED, TERMINATED, json_text
from tokenloom.cli.parser import UsageError
from tokenloom.errors import FormatError, GateFailed, SpecError, TokenloomError, message_of, named_message_of, one_line
from tokenloom.wording import printable

_EXPECTED = (TokenloomError, UsageError, KeyboardInterrupt)  # their messages need neither a class nor a traceback
# A path or URL, which may hold spaces; or a word such as spec.yaml:5 or documents.min_chars; and where in it.
_PLACE = re.compile(
    r"(?:(?:/|[a-z0-9]+://).*?|[^:'\"]+:\d+|(?:(?:source|store|argument|tokenizer(?: file)?|--[a-z-]+) )?[^\s'\"]+)"
    r"(?: with --set .*?)?(?:, (?:row|line|record|document|position|split|after row|each row)\b.*?)?: "
)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|\([^()]*\)")
_NEXT = re.compile(r"(?:; |\. (?=[A-Z`]))(?!got |its |Allowed)")
_GOT = re.compile(r"; got (?!.*; ).*\Z")  # the value that broke the rule


class Terminated(KeyboardInterrupt):
    """SIGTERM ended the command, which cleans up as after Ctrl-C."""

    exit_code = TERMINATED


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
    message = _message(error, is_resumable)
    code = getattr(error, "exit_code", INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED)
    prefix = getattr(error, "usage", "" if isinstance(error, KeyboardInterrupt) else "tokenloom: ")
    suffix = "" if isinstance(error, _EXPECTED) or _is_of_system(error) else "--debug shows where"
    if sys.stderr.isatty() and not isinstance(error, KeyboardInterrupt):
        usage = prefix.rpartition("\n")[0]
        sys.stderr.write(f"{usage}\n" if usage else "")
        _write_error(message, suffix)
    else:
        sys.stderr.write(f"{prefix}{message}{suffix and f' ({suffix})'}\n")
    if as_json:
        value: dict[str, object] = {"type": type(error).__name__, "message": message, "exit_code": code}
        if isinstance(error, GateFailed):
            value |= {"version": error.version, "gates": error.gates}
        sys.stdout.write(json_text({"error": value}) + "\n")
        sys.stdout.flush()
    return code


def _is_of_system(error: BaseException) -> TypeGuard[OSError]:
    """Return whether the operating system refused something, and says what."""
    return isinstance(error, OSError) and not isinstance(error, TokenloomError) and bool(error.strerror)


def _message(error: BaseException, is_resumable: bool) -> str:
    """Describe an error in one line; errors of a spec in one line each."""
    from tokenloom.storage.stores.remote_errors import redacted

    if isinstance(error, KeyboardInterrupt):
        next_step = ". Only complete versions are visible; run the same command again to continue where it stopped"
        what = "terminated (SIGTERM)" if isinstance(error, Terminated) else "interrupted"
        return f"{what}{next_step if is_resumable else ''}"
    problems = [message_of(error) if isinstance(error, _EXPECTED) else named_message_of(error)]
    if isinstance(error, SpecError):
        problems = str(error).strip().splitlines() or problems
    elif _is_of_system(error):
        problems = [f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)]
    text = redacted("\n".join(printable(one_line(problem)) for problem in problems))
    return f"{text}; {error.advice}" if isinstance(error, FormatError) else text


def parts_of(message: str) -> tuple[str, str, str]:
    """Divide a message of one line into place, rule and next step; "" for a part that it does not have."""
    start = 0
    while found := _PLACE.match(message, start):
        start = found.end()
    hidden = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), message)
    got = _GOT.search(hidden, start)
    last = got.start() if got else len(message)
    ends = [found.span() for found in _NEXT.finditer(hidden, start, last)]
    end, following = ends[-1] if ends else (last, last)
    return message[:start].removesuffix(": "), message[start:end] + message[last:], message[following:last]


def _write_error(message: str, hint: str) -> None:
    """Write an error to a terminal, which wraps long lines itself, so that a command in one can be copied whole.

    Args:
        message: one line for each problem.
        hint: a next step for all of them.
    """
    for problem in message.split("\n"):
        place, rule, next_step = parts_of(problem)
        _write_label()
        lines = [place or rule or problem, *([f"  {rule}"] if place and rule else [])]
        lines += [f"  -> {text}" for text in (next_step, hint) if text]
        sys.stderr.write("\n".join(lines) + "\n")


def _write_label() -> None:
    """Write "error: ", in red where the package rich is, which obeys NO_COLOR."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # an installation that only reads
        sys.stderr.write("error: ")
    else:
        Console(stderr=True).print("error:", style="bold red", end=" ")
