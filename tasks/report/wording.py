"""Figures and foreign text as the report shows them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from tokenloom.storage.formats.statistics import DocumentCounts

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def inert(text: str) -> str:
    """Escape the control characters of a text, so that it is valid in HTML and keeps to its place.

    Marks that change the direction of what follows are escaped too. Line ends, tabs and all kinds of spaces are kept.
    """
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else repr(c)[1:-1] for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def clipped(text: str, num_chars: int) -> str:
    """Cut a text to its first characters, with an ellipsis if there are more."""
    return text if len(text) <= num_chars else f"{text[: num_chars - 1]}…"


def short(count: float) -> str:
    """Round a count to at most three digits and a unit: "12.6 M"."""
    for size, unit in _UNITS:
        if count >= 0.9995 * size:
            value = count / size
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    return f"{count:.3g}" if count != int(count) else f"{count:.0f}"


def percent_of(part: float, whole: float) -> str:
    """Return a share in percent: "0", "<0.1 %", "3.4 %", "98 %"; "-" of nothing."""
    if not whole:
        return "-"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:.1f} %" if 0 < share < 9.95 else f"{share:.0f} %"


def parts(counts: Mapping[str, float], whole: float | None = None) -> list[tuple[str, float, str]]:
    """Return the bars of a chart: name, count, and the count in words, with its share if `whole` is given."""
    return [
        (name, count, short(count) if whole is None else f"{short(count)} ({percent_of(count, whole)})")
        for name, count in counts.items()
    ]


def shares(counts: Mapping[str, DocumentCounts], what: str) -> list[tuple[str, float, str]]:
    """Return the bars of the documents or tokens of each source or split, the largest first."""
    values = {name: getattr(each, what) for name, each in counts.items()}
    return parts(dict(sorted(values.items(), key=lambda item: (-item[1], item[0]))), sum(values.values()))


def change(now: int, before: int) -> str:
    """Return the difference of two counts with its sign: "+1,234"; "0" if there is none."""
    return f"{now - before:+,}" if now != before else "0"


def token_name(text: str | None, token_id: int) -> str:
    """Name a token in a chart: its text, with blanks that are seen, and its id."""
    if text is None:
        return f"id {token_id}"
    if "\ufffd" in text:
        return f"part of a letter · {token_id}"
    shown = inert(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return f"{shown} · {token_id}"
