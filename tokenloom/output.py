"""What commands print on stdout, for people: lines, tables, and texts of others made harmless."""

from __future__ import annotations

import sys
from typing import Any

Json = dict[str, Any]  # what `--json` prints instead


def print_line(quiet: bool, text: str = "") -> None:
    """Print a line, unless quiet."""
    if not quiet:
        sys.stdout.write(text + "\n")


def print_table(quiet: bool, header: list[str], rows: list[list[Any]]) -> None:
    """Print rows under a header; numbers to the right, with thousands separated."""
    cells = [header, *[[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    for row in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        print_line(quiet, "  " + "  ".join(aligned).rstrip())


def printable(text: str) -> str:
    """Return text without what a terminal would obey: control characters other than line ends and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
