"""The lengths of a version's documents: quantiles, and histograms in pixels, which macros.html draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.statistics import bin_edges
from tokenloom.tasks.report.templates import short

QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_WIDTHS = (560, 340)  # a drawing for wide screens, one for phones
_MARKED = (0.1, 0.5, 0.9)  # quantiles
_TOP, _BOTTOM, _LEFT, _GAP = 20, 256, 48, 6  # edges of the plot
_MARK_SPACE = 80  # a name beside the first or the last mark is rarely wider


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram on a logarithmic axis: `heights` are (y, name), `lengths` (x, name) of labels.

    `marks` are (style, x, x and y from there to the name, name) of lengths that are marked.
    """

    width: int
    heights: list[tuple[float, str]]
    lengths: list[tuple[float, str]]
    outline: str
    marks: list[tuple[str, float, int, int, str]]
    mark_top: float


def histograms(counts: Sequence[float]) -> list[Histogram]:
    """Draw documents or tokens by bin of the length, with the median and two quantiles, a width each."""
    values = [max(1.0, value) for value in length_quantiles(counts, _MARKED)]
    names = [f"{quantile_name(share)} {_length(value)}" for share, value in zip(_MARKED, values, strict=True)]
    return [_histogram(by_doubling(counts), [math.log2(value) for value in values], names, width) for width in _WIDTHS]


def _length(value: float) -> str:
    return f"{value:,.0f}" if value < 9999.5 else short(value)


def _histogram(
    bars: Sequence[tuple[float, float, float]], marks: Sequence[float], names: Sequence[str], width: int
) -> Histogram:
    top = max(height for _, _, height in bars) or 1.0
    plot_width = width - _LEFT - _GAP
    space = _MARK_SPACE / plot_width  # share of the axis for the names beside the first and last mark
    first, last = bars[0][0], bars[-1][1]
    start = min(first, (marks[0] - space * last) / (1 - space))
    end = max(last, (marks[-1] - space * start) / (1 - space))

    def x(length: float) -> float:
        return round(_LEFT + (length - start) / (end - start) * plot_width, 1)

    def y(height: float) -> float:
        return round(_BOTTOM - height / (1.16 * top) * (_BOTTOM - _TOP), 1)

    outline = "".join(f"V{y(height)}H{x(right)}" for _, right, height in bars)
    places = zip(("before", "above", "after"), map(x, marks), (-_GAP, 0, _GAP), (8, -_GAP, 8), names, strict=True)
    return Histogram(
        width=width,
        heights=[(y(height), short(height)) for height in axis_heights(top)],
        lengths=[(x(math.log2(length)), short(length)) for length in axis_lengths(start, end)],
        outline=f"M{x(first)} {_BOTTOM}{outline}V{_BOTTOM}Z",
        marks=list(places),
        mark_top=y(1.08 * top),
    )


def axis_lengths(start: float, end: float) -> list[int]:
    """Choose the lengths to label on an axis from `start` to `end`, logarithms to base 2: about three to eight."""
    factors = (1,) if end - start > 10 else (1, 3) if end - start > 6 else (1, 2, 5)
    lengths = [factor * 10**power for power in range(19) for factor in factors]
    return [length for length in lengths if start <= math.log2(length) <= end] or [max(1, round(2**start))]


def axis_heights(top: float) -> list[float]:
    """Choose round heights to label, from 0 to at most `top`: two to four of 1, 2 or 5 times a power of ten."""
    ten = 10.0 ** math.floor(math.log10(top))
    step = next(step for step in (0.2 * ten, 0.5 * ten, ten, 2 * ten, 5 * ten) if top / step < 5)
    return [step * k for k in range(int(top / step) + 1)]


def quantile_name(share: float) -> str:
    """Name a quantile: "p90", "median"."""
    return "median" if share == 0.5 else f"p{100 * share:g}"


def tokens_by_length(lengths: Sequence[int]) -> list[float]:
    """Estimate the tokens of the documents in each bin of a histogram, as if their lengths were spread evenly in it."""
    edges = bin_edges(len(lengths))
    tokens: list[float] = (np.asarray(lengths) * (edges[:-1] + edges[1:] - 1) / 2).tolist()
    return tokens


def length_quantiles(lengths: Sequence[float], shares: Sequence[float] = QUANTILES) -> list[float]:
    """Find the quantiles of a histogram of lengths, each right to within its bin.

    Args:
        lengths: (num_bins,) documents, or tokens, by bin, see statistics.py; not all 0.
        shares: each in (0, 1).
    """
    counts, edges = np.asarray(lengths, np.float64), bin_edges(len(lengths))
    ends = np.cumsum(counts)
    ranks = np.asarray(shares) * ends[-1]
    bins = np.searchsorted(ends, ranks)
    inside = (ranks - (ends - counts)[bins]) / counts[bins]  # lengths are taken to be spread evenly in a bin
    found: list[float] = (edges[bins] + inside * (edges[bins + 1] - 1 - edges[bins])).tolist()
    return found


def by_doubling(lengths: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return (start, end, count) for each doubling of the length, from the first to the last that is not empty.

    `start` and `end` are logarithms to base 2: the lengths in [2**start, 2**end) are `count` documents, or tokens.
    """
    starts = np.log2(np.maximum(1, bin_edges(len(lengths))[:-1])).astype(np.int64)
    counts = np.bincount(starts, lengths)
    filled = np.flatnonzero(counts)
    return [(float(k), k + 1.0, float(counts[k])) for k in range(filled[0], filled[-1] + 1)]
