"""Figures of a benchmark: one value per round, printed as a table and written as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    name: str
    unit: str
    values: list[float]  # one per round
    target: str = ""

    def cells(self, digits: int) -> list[str]:
        """Return name, median, range and target as text."""
        low, high = min(self.values), max(self.values)
        middle = f"{statistics.median(self.values):.{digits}g} {self.unit}".rstrip()
        spread = f"{low:.{digits}g} to {high:.{digits}g}" if len(self.values) > 1 else ""
        return [self.name, middle, spread, self.target]


def print_table(figures: Sequence[Figure], digits: int = 4) -> None:
    """Print a header and one line per figure."""
    rows = [["", "median", "range", "target"], *(figure.cells(digits) for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def write_json(path: str, figures: Sequence[Figure], **details: object) -> None:
    """Write the figures, the machine, the date, and further values given by name."""
    machine = {"platform": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()}
    record = machine | details | {"date": time.strftime("%Y-%m-%d"), "figures": [asdict(figure) for figure in figures]}
    Path(path).write_text(json.dumps(record, indent=1) + "\n")
