"""The progress artifact of a run as Markdown: the whole build with a bar, and a row for each step."""

from __future__ import annotations

from tokenloom.tasks.running.meter_reading import Reading, step_label
from tokenloom.wording import clock, percent

_BAR_CHARS = 30


def progress_page(title: str, reading: Reading, ended: str = "") -> str:
    """Return the text of the artifact.

    Args:
        title: the dataset and its version.
        reading: the progress so far.
        ended: "done", or "stopped" if the build failed; "" while it runs.
    """
    rows = [_row("✓", step_label(step.name), clock(step.seconds), ", ".join(step.details)) for step in reading.finished]
    if step := reading.step:
        reached = clock(step.seconds) if step.share is None else percent(step.share)
        mark = "✗" if ended == "stopped" else "▶"
        rows.append(_row(mark, f"**{step_label(step.name)}**", f"**{reached}**", ", ".join(step.details)))
    if ended != "done":
        rows += [_row("", step_label(step), "", "") for step in reading.next_steps]
    bar = bar_of(_share(reading, ended) or 0.0, _BAR_CHARS)
    table = ["| | step | | |", "|---|---|---:|---|", *rows]
    return "\n".join([f"## {title}", "", bar, "", summary_line(reading, ended), "", *table])


def summary_line(reading: Reading, ended: str = "") -> str:
    """Return how much of the whole build is done, the elapsed time, and the time left."""
    share = _share(reading, ended)
    parts = [f"{percent(share)} of the build" if share is not None else "counting the work"]
    if ended == "stopped":
        parts.append("stopped here: a retry continues from what is done")
    return ", ".join([*parts, *(reading.times()[:1] if ended else reading.times())])


def _share(reading: Reading, ended: str) -> float | None:
    return 1.0 if ended == "done" else reading.share


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def bar_of(share: float, num_chars: int) -> str:
    """Return a bar of characters in Markdown for a share in [0, 1]."""
    filled = int(share * num_chars)
    return f"`{'█' * filled}{'░' * (num_chars - filled)}`"
