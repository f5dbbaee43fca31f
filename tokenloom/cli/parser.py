"""The parser of the command line: the list of commands, and the options that they all share.

A command's module adds its own arguments and runs it. The module is imported only if the command is given, so
`tokenloom --help` imports none.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from tokenloom import __version__
from tokenloom.wording import did_you_mean, near_miss


class _Command(NamedTuple):
    name: str
    help: str
    module: str  # has add_arguments(parser) and run(**arguments, out)


_COMMANDS = (
    _Command("init", "write a commented starter spec", "tokenloom.cli.commands.init"),
    _Command("plan", "show what a build would read, make and reuse", "tokenloom.cli.commands.plan"),
    _Command("build", "build and publish a version", "tokenloom.cli.commands.build"),
    _Command(
        "tokenizer", "show a spec's tokenizer, what encodes with it and how fast", "tokenloom.cli.commands.tokenizer"
    ),
    _Command("publish", "publish a version whose checks failed, with a reason", "tokenloom.cli.commands.publish"),
    _Command("ls", "list the datasets of a store, or the versions of a dataset", "tokenloom.cli.commands.ls"),
    _Command("inspect", "show what a version contains", "tokenloom.cli.commands.inspect_version"),
    _Command("peek", "show decoded documents and where they come from", "tokenloom.cli.commands.peek"),
    _Command("report", "write a page with the figures of a version", "tokenloom.cli.commands.report"),
    _Command("trace", "show the documents in a batch or a sample", "tokenloom.cli.commands.trace"),
    _Command("where", "find a document, and the training steps that see it", "tokenloom.cli.commands.where"),
    _Command("diff", "compare two versions document by document", "tokenloom.cli.commands.diff"),
    _Command("tag", "let a tag name a version", "tokenloom.cli.commands.tag"),
    _Command("rollback", "let a tag name the version again that it named before", "tokenloom.cli.commands.rollback"),
    _Command("log", "show which versions a tag named, since when and why", "tokenloom.cli.commands.log"),
    _Command("du", "show what uses the space of a store or a dataset", "tokenloom.cli.commands.du"),
    _Command(
        "gc",
        "retire and delete versions that no rule, tag or lease keeps, and leftovers",
        "tokenloom.cli.commands.collect",
    ),
    _Command("up", "start a Prefect server with the deployments and a worker", "tokenloom.cli.commands.up"),
    _Command("deploy", "create the deployments on a running Prefect server", "tokenloom.cli.commands.deploy"),
    _Command(
        "verify",
        "read every byte of a version and list the damaged files; exit code 3 if there are any",
        "tokenloom.cli.commands.verify",
    ),
    _Command(
        "pack",
        "count a version's samples before its readers do, and show the cost of each packing",
        "tokenloom.cli.commands.pack",
    ),
    _Command(
        "demo", "build a dataset from Python's own sources and train a model on it", "tokenloom.cli.commands.demo"
    ),
)
_BENCHMARKS = (
    _Command("read", "measure how simulated training processes get their batches", "tokenloom.cli.bench.read"),
)


class UsageError(Exception):
    """The arguments of the command line are wrong.

    Args:
        message: which argument is wrong, and why.
        usage: the command's usage, or its help without a command, as argparse prints it; then the program's name.
    """

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
            options = [name for name in self._option_string_actions if name.startswith("--")]
            hint = near_miss(unknown[0].partition("=")[0], options) if unknown[0].startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint and f'. {hint}'}")
        for action in self._actions:
            if action.nargs == argparse.PARSER and getattr(arguments, action.dest) is None:
                missing = f"the following arguments are required: {action.metavar}"
                raise UsageError(missing, f"{self.format_help()}\n{self.prog}: error: ")
        return arguments, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError, with the closest of the choices, for a value that is none of them."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}. {did_you_mean(str(value), choices)}")


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
    for command in _COMMANDS:
        _add_parser(commands, command, shared)
    bench = commands.add_parser("bench", help="run a benchmark")
    benchmarks = bench.add_subparsers(dest="benchmark", metavar="BENCHMARK", parser_class=_CommandParser)
    for benchmark in _BENCHMARKS:
        _add_parser(benchmarks, benchmark, shared)
    return parser


def _add_parser(parsers: Any, command: _Command, shared: argparse.ArgumentParser) -> None:
    description = f"{command.help[0].upper()}{command.help[1:]}."
    parser = parsers.add_parser(command.name, parents=[shared], help=command.help, description=description)
    parser.set_defaults(module=command.module)
