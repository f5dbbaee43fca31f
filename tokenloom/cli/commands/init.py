"""`tokenloom init`: write a commented starter spec."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.commands.starter_spec import STARTER_SPEC
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError, TokenloomError


@dataclass(frozen=True)
class InitResult(Result):
    """Where the spec was written."""

    path: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("path", nargs="?", default="tokenloom.yaml", metavar="SPEC")


def run(path: str, out: Output) -> InitResult:
    """Write a starter spec. An existing file is not changed."""
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(STARTER_SPEC)
    except FileExistsError as error:
        raise SpecError(f"{path}: the file exists; choose another name") from error
    except OSError as error:
        raise TokenloomError(f"{path}: can't be written: {error.strerror}") from error
    out.line(f"wrote {path}: set its sources, then run `tokenloom plan {path}` and `tokenloom build {path}`")
    return InitResult(path)
