"""What builds of this process report and read: messages, bytes, and a disturbance as one of their steps begins."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from tokenloom.tasks.running import progress
from tokenloom.tasks.sources import files


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
    """Call `disturb` once, as `step` begins in the block; a step that never begins is an error.

    With "in tokenize" for example, `disturb` is called after the first texts of that step.
    """
    waiting, current = [disturb], ""

    def listen(event: progress.Event) -> None:
        nonlocal current
        moment = ""
        if isinstance(event, progress.StepStarted):
            moment = current = event.step
        elif isinstance(event, progress.Advanced):
            moment = f"in {current}"
        if waiting and moment == step:
            waiting.pop()()

    with progress.listening(listen):
        yield
    assert not waiting


class _Counted(io.RawIOBase):
    """A file that records the size of every read."""

    def __init__(self, file: IO[bytes], sizes: list[int]) -> None:
        self._file, self._sizes = file, sizes
        self.seek, self.tell = file.seek, file.tell  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._sizes.append(len(data))
        return len(data)


def counted_reads(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of every read of an input file, while the patch lasts."""
    sizes: list[int] = []
    open_file = files.open_file

    @contextmanager
    def open_counted(url: str) -> Iterator[IO[bytes]]:
        with open_file(url) as file:
            yield _Counted(file, sizes)  # type: ignore[misc]

    patch.setattr(files, "open_file", open_counted)
    return sizes
