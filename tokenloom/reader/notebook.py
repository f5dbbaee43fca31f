"""Show a dataset, a mixture or a loader in a notebook: its description as a table, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable

_LEFT = "text-align:left;vertical-align:top"


def html_table(title: str, lines: Iterable[str]) -> str:
    """Return a description as HTML that needs neither script nor style sheet.

    Args:
        title: what is described, such as "TokenDataset".
        lines: a name, spaces, and what it names: "packing   concat: 12 samples".
    """
    from html import escape  # training does not need it

    rows = "".join(
        f'<tr><th scope="row" style="{_LEFT}">{escape(name)}</th><td style="{_LEFT}">{escape(text.strip())}</td></tr>'
        for name, _, text in (line.partition(" ") for line in lines)
    )
    caption = f'<caption style="{_LEFT}"><b>{escape(title)}</b></caption>'
    return f'<table style="color:inherit">{caption}<tbody>{rows}</tbody></table>'
