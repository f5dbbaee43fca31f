"""The command line `tokenloom`: arguments in, exit codes out; the work is in commands.py, imported when needed."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenloom import __version__
from tokenloom.cli.failures import Parser, UsageError, report
from tokenloom.cli.output import Json, drop_output, showing_plain_warnings, write_output
from tokenloom.errors import TokenloomError

_DAMAGED = 3
_GO_ON = ("build", "demo")  # where they stopped
_MODULES = {
    "bench_read": "tokenloom.cli.bench.read",
    "deploy": "tokenloom.cli.commands.up",
    "pack": "tokenloom.cli.commands.pack",
    "peek": "tokenloom.cli.commands.peek",
    "up": "tokenloom.cli.commands.up",
    "verify": "tokenloom.cli.commands.verify",
}  # of commands that are not in commands.py


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="tokenloom", description="Raw text to versioned, checksummed, globally shuffled token shards.")
    parser.add_argument("--version", action="version", version=f"tokenloom {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else there")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    for add in (
        _add_spec_commands,
        _add_looking_commands,
        _add_server_commands,
        _add_verify,
        _add_pack,
        _add_bench,
        _add_demo,
    ):
        add(commands, common)
    return parser


def _add_spec_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add what writes a spec or does what one says: init, plan, build."""
    init = commands.add_parser("init", parents=[common], help="write a commented starter spec")
    init.add_argument("path", nargs="?", default="tokenloom.yaml", metavar="SPEC")
    spec = argparse.ArgumentParser(add_help=False)
    spec.add_argument("spec", metavar="SPEC", help="the YAML file that says what to build")
    spec.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key, may be repeated: documents.min_chars=5",
    )
    spec.add_argument(
        "--limit",
        type=_positive,
        metavar="N",
        help="a try-out: only the first N documents of each source; tagged tryout, never latest",
    )
    commands.add_parser(
        "plan", parents=[common, spec], help="show what a build would read and make, and what is cached"
    )
    build = commands.add_parser("build", parents=[common, spec], help="build and publish a version")
    _add_build_options(build)


def _add_looking_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add what shows a store: ls, inspect, peek."""
    ls = commands.add_parser("ls", parents=[common], help="list the datasets of a store, or a dataset's versions")
    ls.add_argument("store", metavar="STORE[/DATASET]")
    inspect = commands.add_parser("inspect", parents=[common], help="show what a version holds")
    inspect.add_argument("reference", metavar="REF", help="STORE/DATASET@TAG_OR_VERSION; @latest if left out")
    peek = commands.add_parser("peek", parents=[common], help="show decoded documents and where they come from")
    peek.add_argument("reference", metavar="REF", help="STORE/DATASET@TAG_OR_VERSION; @latest if left out")
    peek.add_argument("--split", default="train", help="default: train")
    peek.add_argument("--count", type=_positive, default=3, metavar="N", help="documents to show (default: 3)")
    peek.add_argument("--chars", type=_positive, default=300, metavar="N", help="characters of each (default: 300)")


def _add_server_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add what runs a Prefect server or talks to one: up, deploy."""
    up = commands.add_parser("up", parents=[common], help="start a Prefect server with the deployments and a worker")
    up.add_argument("--folder", metavar="DIR", help="of database, storage and logs (default: ~/.tokenloom)")
    up.add_argument("--port", type=_count_to(65_535), default=4200, help="of 127.0.0.1; 0: a free one (default: 4200)")
    up.add_argument("--runs", type=_positive, default=2, metavar="N", help="flow runs at a time (default: 2)")
    commands.add_parser("deploy", parents=[common], help="put the deployments on a running Prefect server")


def _add_verify(commands: Any, common: argparse.ArgumentParser) -> None:
    verify = commands.add_parser(
        "verify", parents=[common], help="read every byte of a version, name every damaged file; exit code 3 if any is"
    )
    verify.add_argument("reference", metavar="REF", help="STORE/DATASET@TAG_OR_VERSION; @latest if left out")
    verify.add_argument("--deep", action="store_true", help="encode 1,000 documents again from their sources")
    verify.add_argument("--spec", metavar="SPEC", help="where the sources are now (default: what build.json says)")
    verify.add_argument("--workers", type=_count, metavar="N", help="worker processes (default: one a core)")


def _add_pack(commands: Any, common: argparse.ArgumentParser) -> None:
    pack = commands.add_parser(
        "pack", parents=[common], help="count a version's samples ahead of its readers, show what each packing costs"
    )
    pack.add_argument("reference", metavar="REF", help="STORE/DATASET@TAG_OR_VERSION; @latest if left out")
    pack.add_argument("--seq-len", type=_positive, required=True, metavar="T", help="tokens a sample")
    pack.add_argument(
        "--packing",
        action="append",
        default=[],
        metavar="NAME",
        help="concat, document, document_padded or best_fit, may be repeated (default: all)",
    )
    pack.add_argument("--split", action="append", default=[], help="may be repeated (default: all)")


def _add_bench(commands: Any, common: argparse.ArgumentParser) -> None:
    bench = commands.add_parser("bench", help="measure")
    measures = bench.add_subparsers(required=True, metavar="WHAT")
    read = measures.add_parser("read", parents=[common], help="how simulated training processes get their batches")
    read.set_defaults(command="bench_read")
    read.add_argument("reference", metavar="REF", help="STORE/DATASET@TAG_OR_VERSION; @latest if left out")
    read.add_argument("--split", default="train", help="default: train")
    read.add_argument("--seq-len", type=_positive, default=2048, metavar="T", help="tokens a sample (default: 2048)")
    read.add_argument("--packing", default="concat", metavar="NAME", help="as in TokenDataset (default: concat)")
    read.add_argument("--order", default="block", metavar="NAME", help="as in TokenLoader (default: block)")
    read.add_argument("--batch-size", type=_positive, default=8, metavar="B", help="of one process (default: 8)")
    read.add_argument(
        "--step-ms", type=_milliseconds, default=100.0, metavar="MS", help="how long a step computes (default: 100)"
    )
    read.add_argument("--steps", type=_positive, metavar="N", help="steps to measure (default: what 3 seconds take)")
    read.add_argument(
        "--workers",
        type=_counts,
        default=[0, 2],
        metavar="N,...",
        help="workers of torch DataLoaders to compare with (default: 0,2)",
    )
    read.add_argument("--processes", type=_positive, default=4, metavar="P", help="training processes (default: 4)")
    read.add_argument(
        "--nodes", type=_positives, default=[1], metavar="N,...", help="nodes that they are cut into (default: 1)"
    )
    read.add_argument("--plot", metavar="FILE.svg", help="draw idle ratios, rates, steps and memory")


def _add_demo(commands: Any, common: argparse.ArgumentParser) -> None:
    demo = commands.add_parser("demo", parents=[common], help="build a dataset from Python's own sources, train on it")
    demo.add_argument("--dir", default="tokenloom-demo", help="where all of it goes (default: tokenloom-demo)")
    demo.add_argument("--updates", type=_positive, default=3000, help="training steps (default: 3000)")
    _add_build_options(demo)


def _add_build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help="worker processes (default: one a core; 0: this process alone)",
    )
    parser.add_argument("--direct", action="store_true", help="run the same steps without a Prefect server")


def _count_to(largest: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        value = _number(text)
        if not 0 <= value <= largest:
            raise argparse.ArgumentTypeError(f"{value} is not in [0, {largest}]")
        return value

    return count


_count = _count_to(512)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from error


def _positive(text: str) -> int:
    value = _number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _counts(text: str) -> list[int]:
    return [_count(item) for item in text.split(",") if item.strip()]


def _positives(text: str) -> list[int]:
    return [_positive(item) for item in text.split(",")]


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1000000]")
    return value


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    options = {k: v for k, v in vars(arguments).items() if k not in ("command", "json", "debug")}
    try:
        module = importlib.import_module(_MODULES.get(arguments.command, "tokenloom.cli.commands.ls"))
        result: dict[str, Any] = getattr(module, arguments.command)(**options, quiet=arguments.json)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("tokenloom"):
            raise
        package = "torch" if error.name == "torch" else "'tokenloom[build]'"
        raise TokenloomError(f"this command needs the package {error.name!r}: pip install {package}") from error
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed, 2 usage, 3 a validation failed, 130 interrupted."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that can't show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    try:
        return _outcome(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # the reader of our output went away: `tokenloom ls | head`
        drop_output()
        return 1


def _open_closed_streams() -> None:
    """Write to nowhere where the caller closed stdout or stderr: `tokenloom build SPEC >&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (open to the end)


def _outcome(argv: Sequence[str]) -> int:
    """Run the command, report why it failed if it did, and return the exit code."""
    try:
        arguments = _parser().parse_args(argv)
    except UsageError as error:
        return report(error, as_json="--json" in argv)
    try:
        return _answered(arguments)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (reported, with its traceback if asked)
        goes_on = arguments.command in _GO_ON
        return report(error, as_json=arguments.json, debug=arguments.debug, goes_on=goes_on)


def _answered(arguments: argparse.Namespace) -> int:
    """Run the command, print what it returns with --json, and return the exit code."""
    output = contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()
    with output, showing_plain_warnings():
        result = _run(arguments)  # a transform's prints must not mix with the JSON
    write_output(json.dumps(result, ensure_ascii=False) + "\n" if arguments.json else "", flush=True)
    return _verified(result, arguments.deep) if arguments.command == "verify" else 0


def _verified(result: Json, deep: bool) -> int:
    """Return the exit code of `verify`; one that was to encode documents again and could not has failed."""
    if result["damages"]:
        return _DAMAGED
    return 1 if deep and not result["documents_encoded_again"] else 0


if __name__ == "__main__":
    sys.exit(main())
