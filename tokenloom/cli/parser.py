"""The parser of the command line: the list of commands, and the options that they all share.

The function of a command determines its own arguments. It is imported only if the command is given, so
`tokenloom --help` imports none.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple, NoReturn

import tokenloom
from tokenloom.cli.arguments import add_arguments, sections
from tokenloom.cli.commands import COMMANDS, function_of
from tokenloom.cli.output import NO, write_output

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "FILES", "SPEC")  # metavars
_FOLDERS = ("DESTINATION", "DIR", "REF", "REF|STORE", "REF_A", "REF_B", "STORE/DATASET", "STORE[/DATASET]")


class UsageError(Exception):
    """The arguments of the command line are wrong.

    Args:
        message: which argument is wrong, and why.
        usage: the command's usage as argparse prints it, then the program's name.
    """

    exit_code = 2

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError; argparse's own prints the error and ends the program."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"{self.format_usage()}{self.prog}: error: ")


class _ShowVersion(argparse.Action):
    """Print the version, which is read from the installed package only then: the import for that takes 25 ms."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        write_output(f"tokenloom {tokenloom.__version__}\n")
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Print the script that completes commands and options in a shell."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, option: Any = None) -> None:
        write_output(_completion_script(parser, shell))
        parser.exit()


def _completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Write the script that completes words in a shell; it is static: completing a word starts no Python.

    Args:
        parser: the parser of `tokenloom`, whose commands have no arguments yet.
        shell: bash, zsh or fish.
    """
    import shtab

    for command in command_parsers(parser).values():
        action: Any
        for action in command._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # shtab reads this attribute
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY
    return str(shtab.complete(parser, shell))


class _CommandParser(_Parser):
    """The parser of one command, which is completed when it is used."""

    def complete(self) -> None:
        """Add the texts of the command and its arguments."""
        name = self.prog.rpartition(" ")[2]
        self.description, texts = sections(function_of(name))[""], help_of(name)
        self.epilog = f"example: tokenloom {texts.example}"
        self.epilog += f"\n\nexit code {NO}: {texts.exit_code_3}" if texts.exit_code_3 else ""
        add_arguments(self, function_of(name))

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        self.complete()
        return super().parse_known_args(*args, **kwargs)


class CommandHelp(NamedTuple):
    """The texts of a command's own help; `exit_code_3` is the meaning of that code, "" if the command has none."""

    description: str
    example: str
    exit_code_3: str


def help_of(name: str) -> CommandHelp:
    """Read the texts of a command from the docstring of its function."""
    texts = {title: " ".join(text.split()) for title, text in sections(function_of(name)).items()}
    return CommandHelp(texts[""], texts.get("Example", ""), texts.get("Exit code 3", ""))


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, with its arguments.

    Args:
        parser: the parser of `tokenloom`, before it has parsed anything.
    """
    (found,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in found.values():
        command.complete()
    return dict(found)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of `tokenloom`.

    The parsed arguments are `command`, `json`, `debug`, and those of the command.
    """
    text = "Raw text to versioned, checksummed, globally shuffled token shards."
    parser = _Parser(prog="tokenloom", description=text, allow_abbrev=False)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    completion = "print a script that completes commands and options in this shell, and exit"
    parser.add_argument("--print-completion", action=_PrintCompletion, choices=_SHELLS, help=completion)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, command in COMMANDS.items():
        options = {"help": command.text, "formatter_class": argparse.RawDescriptionHelpFormatter}
        commands.add_parser(name, parents=[shared], allow_abbrev=False, **options)
    return parser
