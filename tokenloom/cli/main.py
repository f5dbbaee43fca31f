"""The command line `tokenloom`: run one command, print its result or its error, return the exit code."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Sequence

from tokenloom.cli.arguments import call
from tokenloom.cli.commands import function_of
from tokenloom.cli.failures import naming_missing_packages, raise_terminated, report
from tokenloom.cli.output import (
    READER_ENDED,
    REQUEUE,
    Output,
    Terminated,
    drop_output,
    showing_plain_warnings,
    write_output,
)
from tokenloom.cli.parser import make_parser

#: Run again after an interruption, these continue where they stopped.
_RESUMABLE = ("build", "demo", "export", "gc")
_WITHOUT_PANDAS = ("build", "demo", "plan", "report", "verify", "trace", "where")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code, one of EXIT_CODES."""
    if argv is None:
        _collect_less_often()
        signal.signal(signal.SIGTERM, raise_terminated)
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape the characters that the terminal can't show
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run_reporting_errors(sys.argv[1:] if argv is None else argv, is_program=argv is None)
    except BrokenPipeError:  # the process that reads our output ended: `tokenloom ls | head`
        drop_output()
        return READER_ENDED


def _replace_closed_streams() -> None:
    """Open a null device for a stream that the caller closed (`>&-`), else a shard would get its descriptor."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  (open until exit)


def _collect_less_often() -> None:
    """Spare this program the garbage collections that find nothing; a small command takes a tenth less time."""
    gc.set_threshold(200_000)  # more objects than the imports of a build make; the default is 700
    atexit.register(gc.freeze)  # the interpreter's last ones would visit every object of every module


def _run_reporting_errors(argv: Sequence[str], *, is_program: bool) -> int:
    as_json, debug, is_resumable = "--json" in argv, False, False
    try:
        with naming_missing_packages():
            arguments = make_parser().parse_args(argv)
            as_json, debug, is_resumable = arguments.json, arguments.debug, arguments.command in _RESUMABLE
            if is_program and arguments.command in _WITHOUT_PANDAS:
                _prepare(arguments)
            return _run(arguments)
    except (BrokenPipeError, SystemExit):  # SystemExit: --help
        raise
    except BaseException as error:  # noqa: BLE001  (reported, with its traceback if asked for)
        if isinstance(error, Terminated) and any(argument.startswith("--share") for argument in argv):
            error.exit_code = REQUEUE
        return report(error, as_json=as_json, debug=debug, is_resumable=is_resumable)


def _prepare(arguments: argparse.Namespace) -> None:
    if arguments.command == "build" and arguments.workers != 0:
        from tokenloom.tasks.building import import_steps
        from tokenloom.tasks.running.workers import start_early

        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads take time to start
        start_early(import_steps)
    from tokenloom.process import keep_pandas_out

    keep_pandas_out()


def _run(arguments: argparse.Namespace) -> int:
    """Run the command, print its result with --json, and return the exit code."""
    # What a user's transform prints must not mix with the JSON.
    stdout = contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()
    with stdout, showing_plain_warnings():
        result = call(function_of(arguments.command), arguments, out=Output(quiet=arguments.json))
    write_output(json.dumps(result.value) + "\n" if arguments.json else "", flush=True)
    return int(result.exit_code)


if __name__ == "__main__":
    sys.exit(main())
