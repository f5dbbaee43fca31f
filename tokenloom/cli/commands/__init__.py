"""The commands of `tokenloom`, by task: what each does, an example, and what its exit code 3 means.

Each command is a function of a module here, whose parameters are its arguments (see cli/arguments.py).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command: its line in every help, an example, what exit code 3 means, and what its own help adds."""

    text: str
    example: str
    no: str = ""
    more: str = ""


_OF_BUILDS = "A check of the spec failed, or documents that were encoded again have other ids."

GROUPS = {
    "Start": {
        "demo": Command(
            "build a dataset from Python's own sources and train a model on it",
            "demo --updates 300",
            _OF_BUILDS,
            "Its folder then has a spec, the text and a store to look at.",
        ),
    },
    "Build": {
        "init": Command(
            "write a commented spec that reads given files",
            "init data/*.parquet news.yaml",
            more="It looks at names and first rows: kind, text, conversations and their layout, id. Without files, it "
            "writes a starter spec.",
        ),
        "plan": Command(
            "show what a build would read, make and reuse",
            "plan news.yaml",
            more="Tokens, disk and time are estimated from a sample. Nothing is built.",
        ),
        "build": Command(
            "build and publish a version",
            "build news.yaml --set documents.min_chars=5",
            _OF_BUILDS,
            "Run it again after a failure: it continues where it stopped. If nothing has changed since a version was "
            "published, it builds nothing.",
        ),
        "tokenizer": Command(
            "show a spec's tokenizer, what encodes with it and how fast",
            "tokenizer news.yaml --text 'Hello, world'",
            more="A fast encoder that is not proven for its vocabulary is compared with the tokenizer's library first, "
            "which takes about a minute.",
        ),
    },
    "Look": {
        "ls": Command("list the datasets of a store, or the versions of a dataset", "ls store/news"),
        "inspect": Command("show what a version contains", "inspect store/news@latest"),
        "peek": Command("show decoded documents and where they come from", "peek store/news --split test --count 5"),
        "report": Command("write a page with the figures of a version", "report store/news --output news.html"),
        "trace": Command(
            "show the documents in a batch or a sample", "trace store/news --step 1200 --seq-len 1024 --batch-size 8"
        ),
        "where": Command(
            "find a document, and the training steps that see it",
            "where store/news --text letter.txt --seq-len 1024 --batch-size 8",
            "No document was found; `status` in the result says why.",
        ),
        "verify": Command(
            "read every byte of a version and list the damaged files", "verify store/news", "Something is damaged."
        ),
    },
    "Versions and space": {
        "diff": Command("compare two versions document by document", "diff store/news@yesterday store/news@latest"),
        "tag": Command("let a tag name a version", "tag store/news@6f6e75a47b3e9a29 good --reason 'run 12 uses it'"),
        "rollback": Command(
            "let a tag name the version again that it named before", "rollback store/news --reason 'a bad crawl'"
        ),
        "log": Command("show which versions a tag named, since when and why", "log store/news"),
        "du": Command("show what uses the space of a store or a dataset", "du store"),
        "gc": Command(
            "delete versions that no tag and no rule keeps, and leftovers",
            "gc store/news --keep-last 5",
            more="Without --delete it shows what it would delete.",
        ),
    },
    "Feed training": {
        "export": Command(
            "write a version as files of another trainer",
            "export store/news megatron exported",
            more="Run it again after a failure: it continues where it stopped.",
        ),
    },
    "Serve": {
        "up": Command(
            "start a Prefect server with the deployments and a worker",
            "up --port 4200",
            more="Ctrl-C stops all of them.",
        ),
        "deploy": Command(
            "create the deployments on a running Prefect server",
            "deploy",
            more="PREFECT_API_URL names the server. `prefect worker start --pool tokenloom` then starts a worker.",
        ),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
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
