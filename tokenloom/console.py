"""Text on a terminal: status lines on stderr, untrusted text made safe to print, the encoding of names."""

from __future__ import annotations

import sys


def print_status(text: str) -> None:
    """Print a line on stderr, at once."""
    sys.stderr.write(printable_line(text) + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Return the text with its control characters escaped, so that a terminal does not act on them.

    Line ends and tabs are kept.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def locale_advice() -> str:
    """Return how to make Python read names of files as UTF-8, to end a message; "" if it does."""
    encoding = sys.getfilesystemencoding()
    return "" if encoding == "utf-8" else f"; names of files are {encoding} in this locale: set PYTHONUTF8=1"


def printable_line(text: str) -> str:
    """Return the text with its control characters and line ends escaped, so that it stays one line of a terminal."""
    return text if text.isprintable() else printable(text).replace("\n", "\\n")
