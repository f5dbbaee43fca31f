"""Scripts with which bash, zsh and fish complete the commands and options of `tokenloom`.

The package shtab writes them from the parser. They are static: completing a word starts no Python.
"""

from __future__ import annotations

import argparse
from importlib import import_module

import shtab

_FILES = ("FILE", "FILES", "SPEC")  # metavars
_FOLDERS = ("DESTINATION", "DIR", "REF", "REF|STORE", "REF_A", "REF_B", "STORE/DATASET", "STORE[/DATASET]")


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell.

    Args:
        parser: that of `tokenloom`, whose commands have no arguments yet.
        shell: bash, zsh or fish.
    """
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.values():
        import_module(command.get_default("module")).add_arguments(command)
        for action in command._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # which shtab reads
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY
    return str(shtab.complete(parser, shell))
