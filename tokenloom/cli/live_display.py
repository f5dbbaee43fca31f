"""Progress on a terminal, drawn by rich: a line for each finished step, a bar for the running one, one for the whole.

✓ tokenize               0:42  12 of 27 partitions reused, 1,234,567 documents, 31.0 MB/s, 8.20 M tokens/s
⠹ shuffle       ━━━━━━━━━━━━━━╸━━━━━  71%  876,543 documents, 130.1 MB/s, 65.00 M tokens/s
  overall       ━━━━━━━━━━━━━━━━━━╸━  94%  0:49 elapsed, about 5 s left
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from tokenloom.console import printable_line
from tokenloom.tasks.running.meter import Meter
from tokenloom.tasks.running.meter_reading import Reading, StepReading, step_label
from tokenloom.tasks.running.progress import Event, Message
from tokenloom.wording import clock, percent

_LABEL_WIDTH = 20


class LiveDisplay(Progress):
    """What a build reports, live on stderr; the bars are gone once the block has ended."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        ascii_only = console.options.ascii_only
        self._marks = ("ok", "failed") if ascii_only else ("✓", "✗")
        self._meter = Meter()
        self._bars: tuple[TaskID, TaskID] | None = None  # step and whole build; rich draws before they exist
        super().__init__(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[share]:>4}", style="progress.percentage"),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # output redirected to a file stays there
        )
        overall = f"{'overall':<{_LABEL_WIDTH}}"
        self._bars = (
            self.add_task("", total=None, share="", note=""),
            self.add_task(overall, total=1, visible=False, share="", note=""),
        )

    def take(self, event: Event) -> None:
        """Show an event; any thread may call."""
        lines = [self._line(step) for step in self._meter.take(event)]
        if isinstance(event, Message):
            lines.append(Text(printable_line(event.text), style="yellow"))
        self._print(lines)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Print how the last step ended, and remove the bars."""
        self._print([self._line(step, failed=error is not None) for step in self._meter.finish()])
        super().__exit__(kind, error, trace)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars as the meter has them now; rich asks for them ten times a second."""
        if self._bars:
            self._draw(self._meter.read(), *self._bars)
        return super().get_renderables()

    def _draw(self, reading: Reading, step_bar: TaskID, overall_bar: TaskID) -> None:
        step, share = reading.step, reading.share
        step_share = step.share if step else None
        is_two_bars = share is not None and not reading.has_one_step
        details = [*map(printable_line, step.details if step else ()), *([] if is_two_bars else reading.times())]
        self.update(
            step_bar,
            description=_padded(step.name if step else ""),
            total=None if step_share is None else 1,
            completed=step_share or 0,
            share="" if step_share is None else percent(step_share),
            note=", ".join(details),
            visible=step is not None,
        )
        self.update(
            overall_bar,
            completed=share or 0,
            share=percent(share or 0),
            note=", ".join(reading.times()),
            visible=is_two_bars,
        )

    def _line(self, step: StepReading, *, failed: bool = False) -> Text:
        mark, style = (self._marks[1], "bold red") if failed else (self._marks[0], "green")
        details = printable_line(", ".join(step.details))
        return Text.assemble(
            (f"{mark} ", style),
            _padded(step.name),
            (f" {clock(step.seconds):>7}", "cyan"),
            f"  {details}" * bool(details),
        )

    def _print(self, lines: list[Text]) -> None:
        for line in lines:
            self.console.print(line, soft_wrap=True)


def _padded(step: str) -> str:
    return f"{step_label(step):<{_LABEL_WIDTH}}"
