"""What builds of this process report: their messages, and a disturbance as one of their steps begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenloom.tasks.running import progress


@contextmanager
def messages_of_builds() -> Iterator[list[str]]:
    """The texts of the messages that builds report in the block."""
    texts: list[str] = []

    def listen(event: progress.Event) -> None:
        if isinstance(event, progress.Message):
            texts.append(event.text)

    with progress.listening(listen):
        yield texts


@contextmanager
def at_step(step: str, disturb: Callable[[], object]) -> Iterator[None]:
    """Call `disturb` once, as `step` begins in the block; a step that never begins is an error."""
    waiting = [disturb]

    def listen(event: progress.Event) -> None:
        if isinstance(event, progress.StepStarted) and event.step == step and waiting:
            waiting.pop()()

    with progress.listening(listen):
        yield
    assert not waiting
