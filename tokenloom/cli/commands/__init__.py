"""The commands of `tokenloom`, by task, each with its line in `tokenloom --help`.

A command is a function of a module here. Its parameters are the arguments, its docstring is the help: see
cli/arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

GROUPS = {
    "Start": {
        "demo": "build a dataset from Python's own sources and train a model on it",
    },
    "Build": {
        "init": "write a commented spec that reads given files",
        "plan": "show what a build would read, make and reuse",
        "build": "build and publish a version",
        "tokenizer": "show a spec's tokenizer, what encodes with it and how fast",
    },
    "Look": {
        "ls": "list the datasets of a store, or the versions of a dataset",
        "inspect": "show what a version contains",
        "peek": "show decoded documents and where they come from",
        "report": "write a page with the figures of a version",
        "trace": "show the documents in a batch or a sample",
        "where": "find a document, and the training steps that see it",
        "verify": "read every byte of a version and list the damaged files",
    },
    "Versions and space": {
        "diff": "compare two versions document by document",
        "tag": "let a tag name a version",
        "rollback": "let a tag name the version again that it named before",
        "log": "show which versions a tag named, since when and why",
        "du": "show what uses the space of a store or a dataset",
        "gc": "delete versions that no tag and no rule keeps, and leftovers",
    },
    "Feed training": {
        "export": "write a version as files of another trainer",
    },
    "Serve": {
        "up": "start a Prefect server with the deployments and a worker",
        "deploy": "create the deployments on a running Prefect server",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_MODULES = {  # of the commands that share one; the others have a module of their name
    "verify": "build",
    "export": "build",
    "ls": "look",
    "inspect": "look",
    "report": "look",
    "where": "trace",
    "tag": "versions",
    "rollback": "versions",
    "log": "versions",
    "du": "versions",
    "gc": "versions",
    "up": "serve",
    "deploy": "serve",
}


def function_of(name: str) -> Callable[..., Any]:
    """Import the function of a command."""
    module = import_module(f"tokenloom.cli.commands.{_MODULES.get(name, name)}")
    command: Callable[..., Any] = getattr(module, name)
    return command
