"""The page of the errors, from the docstrings of tokenloom/errors.py."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.reference_pages.docstrings import body
from scripts.reference_pages.markdown import link
from tokenloom import errors
from tokenloom.errors import TokenloomError

_HEAD = """\
# Errors

This page lists every error that tokenloom raises: what it means, and what to do.

An error of the command line is one line on stderr, with the place, the rule, the value and the next step; a spec with
several mistakes gets a line for each. With `--json` the name of the class is in `error.type`. In Python, catch
`tokenloom.TokenloomError` for all of them, or a class of `tokenloom.errors`; most are also errors of Python, such as
ValueError or OSError. Scripts can use [the exit codes](commands.md#exit-codes).
"""
_OTHERS = """\
## Other errors of a command

- **UsageError**: the arguments of the command line are wrong; the usage of the command is printed before the message.
  Exit code 2. What to do: correct the argument; `tokenloom COMMAND --help` lists them.
- **KeyboardInterrupt**, **Terminated**: Ctrl-C or SIGTERM ended the command. Exit codes 130 and 143. What to do: run
  the same command again; `build`, `demo`, `publish`, `export` and `gc` continue where they stopped.
- **OSError** and its subclasses, such as PermissionError: the operating system refused something; the message names
  the file. Exit code 1. What to do: correct what the message names.
- Any other class: the message ends in "(--debug shows where)". Exit code 1. It may be a mistake in your `transform`, or
  in tokenloom. What to do: run the command with `--debug`, and read the traceback.

## Warnings

Python code gets these as UserWarning; commands print them on stderr and go on.

- **No samples**: no document of the split is long enough for `seq_len` and the packing, or the split is empty. What to
  do: the message names the packing or length that would give samples.
- **No tag names the version**: `tokenloom gc` may delete it while you train. What to do: the command in the message
  tags it.
"""


def classes() -> list[type[TokenloomError]]:
    """Return the error classes of tokenloom.errors, in the order of the tree: a class, then its subclasses."""
    return list(_with_subclasses(TokenloomError))


def _with_subclasses(base: type[TokenloomError]) -> Iterator[type[TokenloomError]]:
    yield base
    defined = [item for item in vars(errors).values() if isinstance(item, type) and item.__bases__[0] is base]
    for item in defined:
        yield from _with_subclasses(item)


def page() -> str:
    """Return the page as Markdown."""
    tree = "\n".join(f"{'    ' * (len(_depth(item)) - 1)}- {link(item.__name__)}" for item in classes())
    return "\n".join([_HEAD, tree, "", *map(_entry, classes()), _OTHERS])


def _depth(item: type[TokenloomError]) -> list[type]:
    return [base for base in item.__mro__ if issubclass(base, TokenloomError)]


def _entry(item: type[TokenloomError]) -> str:
    bases = " and ".join(f"`{base.__name__}`" for base in item.__bases__)
    text = body(item.__doc__ or "")
    return f"## {item.__name__}\n\nA subclass of {bases}. Exit code {item.exit_code}.\n\n{text}\n"
