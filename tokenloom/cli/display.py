"""Progress on stderr: on a terminal, a line for each finished step and a bar for the running one; elsewhere, lines.

✓ tokenize               0:42  12 of 27 partitions reused, 1,234,567 documents, 31.0 MB/s, 8.20 M tokens/s
  shuffle       ━━━━━━━━━━━━━━╸━━━━━  71%  876,543 documents, 130.1 MB/s, 0:07 elapsed, about 5 s left
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenloom.tasks.running import progress
from tokenloom.tasks.running.progress import Event, Meter, Step, step_label
from tokenloom.wording import clock, percent, print_status, printable_line

_LINE_SECONDS = 10.0
_LABEL_WIDTH = 20


@contextmanager
def showing_progress() -> Iterator[None]:
    """Show the progress that steps report while the block runs."""
    with _bars() if sys.stderr.isatty() else _lines() as take, progress.listening(take):
        yield


@contextmanager
def _lines() -> Iterator[Callable[[Event], None]]:
    """Yield a listener, for any thread, that prints each message and, every ten seconds, the state of the step."""
    meter, lock, last = Meter(), threading.Lock(), time.monotonic()

    def take(event: Event) -> None:
        nonlocal last
        ended = meter.take(event)
        with lock:  # lines of different threads must not mix
            if isinstance(event, progress.Message):
                print_status(event.text)
            elif (step := ended or meter.step) and time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                print_status(step.line())

    yield take


@contextmanager
def _bars() -> Iterator[Callable[[Event], None]]:
    """Yield a listener, for any thread, that draws a bar for the current step and a line for each finished one."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.text import Text

    console, meter = Console(stderr=True), Meter()
    done, failed = ("ok", "failed") if console.options.ascii_only else ("✓", "✗")
    bars = Progress(
        TextColumn("  {task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[share]:>4}", style="progress.percentage"),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # output redirected to a file stays there
    )
    bar = bars.add_task("", total=None, visible=False, share="", note="")

    def end(step: Step | None, mark: str, style: str) -> None:
        if step:
            line = f"{step_label(step.name):<{_LABEL_WIDTH}} {clock(step.seconds):>7}  {step.details()}"
            console.print(Text.assemble((f"{mark} ", style), printable_line(line.rstrip())), soft_wrap=True)

    def take(event: Event) -> None:
        end(meter.take(event), done, "green")
        if isinstance(event, progress.Message):
            console.print(Text(printable_line(event.text), style="yellow"), soft_wrap=True)
        elif step := meter.step:
            share, label = step.share, f"{step_label(step.name):<{_LABEL_WIDTH}}"
            shown, note = "" if share is None else percent(share), printable_line(step.note())
            total = None if share is None else 1
            bars.update(bar, description=label, total=total, completed=share or 0, share=shown, note=note, visible=True)

    with bars:
        try:
            yield take
        except BaseException:
            end(meter.finish(), failed, "bold red")
            raise
        end(meter.finish(), done, "green")
