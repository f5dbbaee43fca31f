"""The page of the commands, from the parser, the table of commands and the exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from scripts.reference_pages.markdown import contents, escaped, guide_link, link, sentence
from tokenloom.cli.commands import COMMANDS, GROUPS
from tokenloom.cli.output import EXIT_CODES
from tokenloom.cli.parser import command_parsers, help_of, make_parser

_HEAD = """\
# Commands

This page lists every command of `tokenloom`, its arguments and options, and what its exit codes mean.
`tokenloom COMMAND --help` prints the same.

Options can't be shortened. A command writes its result to stdout, and its messages and errors to stderr.
"""
_JSON = """\
## Options of every command

- `--json`: Print the result as one JSON object on stdout, and nothing else there. A command that fails prints an
  object too, such as `{"error": {"type": "InputError", "message": "news.yaml:7: source wiki: ...", "exit_code": 1}}`;
  the message is on stderr as well. `type` is the class of the error: [errors](errors.md) lists them.
- `--debug`: Show the traceback of an error.
- `--help`: Show the arguments and options of the command.
- `tokenloom --version`: Print the version of tokenloom.
- `tokenloom --print-completion SHELL`: Print the script that completes commands and options in bash, zsh or fish.
"""
VARIABLES = {
    "TOKENLOOM_CACHE": "The folder of the cache on this machine: shards of remote stores, counts of samples, "
    "tokenizers, what is proven of fast encoders. Default: `~/.cache/tokenloom`.",
    "TOKENLOOM_CACHE_LIMIT": "How large the cached shards may become together, such as `50GB` or `93GiB`. Default: 100 "
    "GB, or 80 % of the free space if that is less.",
    "TOKENLOOM_HOME": "In a run of Prefect: the folder that relative paths of a spec start from; without it, they are "
    "an error there. `tokenloom up` sets it to the folder where it was started.",
    "TOKENLOOM_TRANSFORMS": "Where a worker runs: the modules, separated by commas, whose functions the `transform` of "
    "a deployment's run may name. Default: none.",
    "TOKENLOOM_UP_HOME": "The folder of the database, storage and logs of `tokenloom up`; `tokenloom build` looks "
    "there for a running server. Default: `~/.tokenloom`.",
    "TOKENLOOM_UP_HOSTS": "More host names, separated by commas, that the server of `tokenloom up` answers to, such as "
    "that of a proxy.",
}
_OTHER_VARIABLES = """
Libraries read theirs: `PREFECT_API_URL` names the Prefect server, `TIKTOKEN_CACHE_DIR` the folder of tiktoken's files,
`HF_HOME` and `HF_TOKEN` the cache and the access of the Hugging Face Hub, `AWS_...` and others the credentials of
object stores, and `RANK` and `WORLD_SIZE` the rank of a loader if torch.distributed does not.
"""
_SHARED = {"help", "json", "debug"}
_GUIDES = {  # the page that shows a command at work
    "tokenizer": "../guides/tokenizers.md",
    "report": "../guides/report.md",
    "trace": "../guides/trace.md",
    "where": "../guides/trace.md",
    "verify": "../guides/verify.md",
    "diff": "../guides/versions.md",
    "tag": "../guides/versions.md",
    "rollback": "../guides/versions.md",
    "log": "../guides/versions.md",
    "du": "../guides/versions.md",
    "gc": "../guides/versions.md",
    "export": "../guides/exports.md",
    "up": "../guides/prefect.md",
    "deploy": "../guides/teams.md#your-own-server",
}


def own_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments and options of a command without those of every command."""
    return [action for action in parser._actions if action.dest not in _SHARED]


def name_of(action: argparse.Action) -> str:
    """Return how an argument or option is written: "SPEC", "--limit N"."""
    value = argparse.HelpFormatter("")._format_args(action, action.dest.upper())
    return ", ".join(f"{option} {value}".strip() for option in action.option_strings) or value


def page() -> str:
    """Return the page as Markdown."""
    found = command_parsers(make_parser())
    lines = [_HEAD, *_contents()]
    for title, commands in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in commands:
            lines += _command(name, found[name])
    return "\n".join([*lines, _JSON, *_exit_codes(), *_variables()])


def _contents() -> Iterator[str]:
    for title, commands in GROUPS.items():
        names = [link(f"tokenloom {name}", text=f"`{name}`") for name in commands]
        yield f"- {link(title)}: {', '.join(names)}"
    yield f"- {contents(['Options of every command', 'Exit codes', 'Environment variables'])}\n"


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    actions, texts = own_actions(parser), help_of(name)
    formatter = argparse.HelpFormatter(parser.prog, width=76)
    formatter.add_usage(None, actions, parser._mutually_exclusive_groups, prefix="")
    yield f"### tokenloom {name}\n\n{escaped(texts.description)}\n\n```text\n{formatter.format_help()}```\n"
    groups = [group for group in parser._action_groups if group.title not in ("positional arguments", "options")]
    in_groups = {id(action) for group in groups for action in group._group_actions}
    yield from map(_item, (action for action in actions if id(action) not in in_groups))
    for group in groups:
        yield f"\nOptions of {group.title}:\n"
        yield from map(_item, group._group_actions)
    yield f"\nExample: `tokenloom {texts.example}`\n"
    if texts.exit_code_3:
        yield f"{link('Exit codes', text='Exit code 3')}: {sentence(texts.exit_code_3)}\n"
    if name in _GUIDES:
        yield f"Guide: {guide_link(_GUIDES[name])}\n"


def _item(action: argparse.Action) -> str:
    needed = " Required." if action.required and action.option_strings else ""
    return f"- `{name_of(action)}`: {sentence(action.help or '')}{needed}"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n"
    yield from (f"- **{code}**: {meaning}" for code, meaning in EXIT_CODES.items())
    yield "\nExit code 3 means, for the commands that use it:\n"
    yield from (f"- `{name}`: {sentence(no)}" for name in COMMANDS if (no := help_of(name).exit_code_3))
    yield '\nSo a script can tell "not in this version" (3) from "the store did not answer" (1).\n'


def _variables() -> Iterator[str]:
    yield "## Environment variables\n"
    yield from (f"- `{name}`: {text}" for name, text in VARIABLES.items())
    yield _OTHER_VARIABLES
