"""The parser of the command line: the list of commands, and the options that they all share.

A command's module adds its own arguments and runs it. The module is imported only if the command is given, so
`tokenloom --help` imports none.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, NoReturn

from tokenloom import __version__

_COMMANDS = {  # each is a module of cli/commands with add_arguments(parser) and run(**arguments, out)
    "init": "write a commented starter spec",
    "plan": "show what a build would read, make and reuse",
    "build": "build and publish a version",
    "tokenizer": "show a spec's tokenizer, what encodes with it and how fast",
    "publish": "publish a version whose checks failed, with a reason",
    "ls": "list the datasets of a store, or the versions of a dataset",
    "inspect": "show what a version contains",
    "peek": "show decoded documents and where they come from",
    "report": "write a page with the figures of a version",
    "trace": "show the documents in a batch or a sample",
    "where": "find a document, and the training steps that see it",
    "diff": "compare two versions document by document",
    "tag": "let a tag name a version",
    "rollback": "let a tag name the version again that it named before",
    "log": "show which versions a tag named, since when and why",
    "du": "show what uses the space of a store or a dataset",
    "gc": "retire and delete versions that no rule, tag or lease keeps, and leftovers",
    "up": "start a Prefect server with the deployments and a worker",
    "deploy": "create the deployments on a running Prefect server",
    "verify": "read every byte of a version and list the damaged files; exit code 3 if there are any",
    "pack": "count a version's samples before its readers do, and show the cost of each packing",
    "export": "write a version as files of another trainer",
    "doctor": "check the installation, this machine, stores and Prefect's server; exit code 3 if a build would fail",
    "demo": "build a dataset from Python's own sources and train a model on it",
}
_BENCHMARKS = {"read": "measure how simulated training processes get their batches"}
_MODULES = {"inspect": "inspect_version", "gc": "collect"}  # inspect and gc are modules of Python


class UsageError(Exception):
    """The arguments of the command line are wrong.

    Args:
        message: which argument is wrong, and why.
        usage: the command's usage, or its help without a command, as argparse prints it; then the program's name.
    """

    exit_code = 2

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError; argparse's own prints the error and ends the program.

    Options can't be shortened: one more option would make a command of a schedule ambiguous.

    It refuses what it does not know itself, because argparse leaves that to the parser of `tokenloom`, which has other
    options. A missing command is refused only after that: `tokenloom --vresion` is a misspelt option.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"{self.format_usage()}{self.prog}: error: ")

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        arguments, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        for action in self._actions:
            if action.nargs == argparse.PARSER and getattr(arguments, action.dest) is None:
                missing = f"the following arguments are required: {action.metavar}"
                raise UsageError(missing, f"{self.format_help()}\n{self.prog}: error: ")
        return arguments, unknown


class _CommandParser(_Parser):
    """The parser of one command. It imports the command's module when it is used."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        if module := self.get_default("module"):
            import_module(module).add_arguments(self)
        return super().parse_known_args(*args, **kwargs)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `tokenloom`.

    The parsed arguments are `command`, the `module` that runs it, `json`, `debug`, and those of the command.
    """
    parser = _Parser(
        prog="tokenloom", description="Raw text to versioned, checksummed, globally shuffled token shards."
    )
    parser.add_argument("--version", action="version", version=f"tokenloom {__version__}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_CommandParser)
    for name, text in _COMMANDS.items():
        _add_parser(commands, name, text, f"tokenloom.cli.commands.{_MODULES.get(name, name)}", shared)
    bench = commands.add_parser("bench", help="run a benchmark")
    benchmarks = bench.add_subparsers(dest="benchmark", metavar="BENCHMARK", parser_class=_CommandParser)
    for name, text in _BENCHMARKS.items():
        _add_parser(benchmarks, name, text, f"tokenloom.cli.bench.{name}", shared)
    return parser


def _add_parser(parsers: Any, name: str, text: str, module: str, shared: argparse.ArgumentParser) -> None:
    parser = parsers.add_parser(name, parents=[shared], help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(module=module)
