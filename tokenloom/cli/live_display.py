"""Progress on a terminal, drawn by rich: a line for each finished step, a bar for the running one, one for the whole.

✓ tokenize               0:42  12 of 27 partitions reused, 1,234,567 documents, 31.0 MB/s, 8.20 M tokens/s
⠹ shuffle       ━━━━━━━━━━━━━━╸━━━━━  71%  876,543 documents, 130.1 MB/s, 65.00 M tokens/s
  overall       ━━━━━━━━━━━━━━━━━━╸━  94%  0:49 elapsed, about 5 s left
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from tokenloom.tasks.running.meter import Finished, Meter, step_label
from tokenloom.tasks.running.progress import Event, Message
from tokenloom.wording import clock, percent

_LABEL_WIDTH = 20
_ECHO_WIDTH = 5  # kept free: a terminal echoes Ctrl-C as ^C, and a line that wraps for it is not removed in the end


class LiveDisplay(Progress):
    """What a build reports, live on stderr; nothing of the bars is left once the block has ended."""

    def __init__(self) -> None:
        self._console = console = Console(stderr=True)  # rich asks for the bars before `console` is there
        ascii_only = console.options.ascii_only
        self._marks = ("ok", "failed") if ascii_only else ("✓", "✗")
        self._meter, self._meter_lock = Meter(), threading.Lock()
        self._bars: tuple[TaskID, TaskID] | None = None  # of the step and the whole; rich draws before they are there
        super().__init__(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[share]:>4}", style="progress.percentage"),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes into a file stays there
        )
        overall = f"{'overall':<{_LABEL_WIDTH}}"
        self._bars = (
            self.add_task("", total=None, share="", note=""),
            self.add_task(overall, total=1, visible=False, share="", note=""),
        )

    def take(self, event: Event) -> None:
        """Show an event; any thread may call."""
        with self._meter_lock:
            self._meter.take(event)
            lines = self._new_lines()
        if isinstance(event, Message):
            lines.append(Text(event.text, style="yellow"))
        self._print(lines)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how the last step ended, and remove the bars."""
        with self._meter_lock:
            self._meter.finish()
            lines = self._new_lines(failed=error is not None)
        self._print(lines)
        super().__exit__(kind, error, trace)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars as the meter has them now; rich asks for them ten times a second."""
        if self._bars:
            with self._meter_lock:
                self._draw(self._meter, *self._bars)
        width = max(1, self._console.width - _ECHO_WIDTH)
        return [Constrain(bars, width) for bars in super().get_renderables()]

    def _draw(self, meter: Meter, step: TaskID, overall: TaskID) -> None:
        step_share, share = meter.step_share(), meter.share()
        is_two_bars = share is not None and not meter.has_one_step
        details = meter.step_details() + ([] if is_two_bars else meter.times())
        self.update(
            step,
            description=_padded(meter.step),
            total=None if step_share is None else 1,
            completed=step_share or 0,
            share="" if step_share is None else percent(step_share),
            note=", ".join(details),
            visible=meter.step is not None,
        )
        self.update(
            overall,
            completed=share or 0,
            share=percent(share or 0),
            note=", ".join(meter.times()),
            visible=is_two_bars,
        )

    def _new_lines(self, *, failed: bool = False) -> list[Text]:
        """Return lines for the steps that ended since the last call; `failed`: the last of them did not succeed."""
        new = self._meter.take_ended()
        ends = [failed and step is new[-1] for step in new]
        return [self._line(step, step_failed) for step, step_failed in zip(new, ends, strict=True)]

    def _line(self, step: Finished, failed: bool) -> Text:
        mark, style = (self._marks[1], "bold red") if failed else (self._marks[0], "green")
        details = ", ".join(step.details)
        return Text.assemble(
            (f"{mark} ", style),
            _padded(step.step),
            (f" {clock(step.seconds):>7}", "cyan"),
            f"  {details}" * bool(details),
        )

    def _print(self, lines: list[Text]) -> None:
        for line in lines:
            self.console.print(line, soft_wrap=True)


def _padded(step: str | None) -> str:
    return f"{step_label(step or ''):<{_LABEL_WIDTH}}"
