"""The commands of `tokenloom`, by task, each with its line in `tokenloom --help`.

A command is a function of a module here. Its parameters are the arguments, its docstring is the help: see
cli/arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command: the module of its function, and its line in the help."""

    module: str
    text: str


GROUPS = {
    "Start": {
        "demo": Command("start", "build a dataset from Python's own sources and train a model on it"),
    },
    "Build": {
        "init": Command("start", "write a commented spec that reads given files"),
        "plan": Command("plan", "show what a build would read, make and reuse"),
        "build": Command("build", "build and publish a version"),
        "tokenizer": Command("tokenizer", "show a spec's tokenizer, what encodes with it and how fast"),
    },
    "Look": {
        "ls": Command("look", "list the datasets of a store, or the versions of a dataset"),
        "inspect": Command("look", "show what a version contains"),
        "peek": Command("peek", "show decoded documents and where they come from"),
        "report": Command("look", "write a page with the figures of a version"),
        "trace": Command("trace", "show the documents in a batch or a sample"),
        "where": Command("trace", "find a document, and the training steps that see it"),
        "mixture": Command("mixture", "show what a mixture reads of each of its datasets"),
        "verify": Command("build", "read every byte of a version and list the damaged files"),
    },
    "Versions and space": {
        "diff": Command("diff", "compare two versions document by document"),
        "tag": Command("versions", "let a tag name a version"),
        "rollback": Command("versions", "let a tag name the version again that it named before"),
        "log": Command("versions", "show which versions a tag named, since when and why"),
        "du": Command("versions", "show what uses the space of a store or a dataset"),
        "gc": Command("versions", "delete versions that no tag and no rule keeps, and leftovers"),
    },
    "Feed training": {
        "export": Command("export", "write a version as files of another trainer"),
    },
    "Serve": {
        "up": Command("serve", "start a Prefect server with the deployments and a worker"),
        "deploy": Command("serve", "create the deployments on a running Prefect server"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def function_of(name: str) -> Callable[..., Any]:
    """Import the function of a command."""
    function: Callable[..., Any] = getattr(import_module(f"{__name__}.{COMMANDS[name].module}"), name)
    return function
