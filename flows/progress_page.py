"""The progress artifact of a run as Markdown: the whole build with a bar, and a row for each step."""

from __future__ import annotations

from tokenloom.tasks.running.meter import Meter, step_label
from tokenloom.wording import clock, percent

_BAR_CHARS = 30


def progress_page(title: str, meter: Meter, ended: str = "") -> str:
    """Return what the artifact shows.

    Args:
        title: of the page: the dataset and its version.
        meter: where the work stands.
        ended: "done", or "stopped" where the build failed; "" while it runs.
    """
    rows = [_row("✓", step_label(step.step), clock(step.seconds), ", ".join(step.details)) for step in meter.finished]
    if meter.step:
        step_share = meter.step_share()
        reached = clock(meter.step_seconds()) if step_share is None else percent(step_share)
        mark = "✗" if ended == "stopped" else "▶"
        rows.append(_row(mark, f"**{step_label(meter.step)}**", f"**{reached}**", ", ".join(meter.step_details())))
    if ended != "done":
        rows += [_row("", step_label(step), "", "") for step in meter.steps_to_come]
    bar = f"`{_bar(_share(meter, ended) or 0.0)}`"
    table = ["| | step | | |", "|---|---|---:|---|", *rows]
    return "\n".join([f"## {title}", "", bar, "", summary_line(meter, ended), "", *table])


def summary_line(meter: Meter, ended: str = "") -> str:
    """Return how much of the whole build is done, the time it took, and the time left."""
    share = _share(meter, ended)
    parts = [f"{percent(share)} of the build" if share is not None else "counting the work"]
    if ended == "stopped":
        parts.append("stopped here: a retry continues from what is done")
    return ", ".join([*parts, *(meter.times()[:1] if ended else meter.times())])


def _share(meter: Meter, ended: str) -> float | None:
    return 1.0 if ended == "done" else meter.share()


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _bar(share: float) -> str:
    filled = int(share * _BAR_CHARS)
    return "█" * filled + "░" * (_BAR_CHARS - filled)
