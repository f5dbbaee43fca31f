"""A stand-in for CUDA on the CPU, whose copies to the device are late: each happens when something waits for it.

Memory on the device holds garbage until then, and a copy reads what the pinned memory holds by then. Kernels run at
once. So a batch is wrong if nothing waited for its copy, or if its pinned memory was written again too early. A forked
child can't use the device, and ends if it frees an event of its parent, as torch's does.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

_GARBAGE = 77
_HERTZ = 2e9
_FREED_IN_CHILD = 250


class Event:
    """A place in the work of a stream."""

    def __init__(self, stream: Stream, reached: threading.Event) -> None:
        self._stream, self._reached, self._pid = stream, reached, os.getpid()

    def __del__(self) -> None:
        if self._pid != os.getpid():
            os._exit(_FREED_IN_CHILD)

    def wait(self) -> None:
        """Do all work of the stream before this place."""
        while not self._reached.is_set():
            self._stream.work.popleft()()


class Stream:
    """Copies that are not done yet, in order."""

    def __init__(self, device: object = None) -> None:
        self.work: deque[Callable[[], object]] = deque()

    def record_event(self) -> Event:
        """Return an event after all work so far."""
        reached = threading.Event()
        self.work.append(reached.set)
        return Event(self, reached)

    def wait_event(self, event: Event) -> None:
        """Do the work that this stream waits for."""
        event.wait()

    def wait_stream(self, stream: Stream) -> None:
        """Do the work that this stream waits for."""
        stream.record_event().wait()


def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch look as if it had one CUDA device."""
    current = threading.local()
    consumer, parent = Stream(), os.getpid()
    empty, to = torch.empty, torch.Tensor.to

    def init() -> None:
        if os.getpid() != parent:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess: use the 'spawn' start method")

    @contextlib.contextmanager
    def use(stream: Stream) -> Iterator[None]:
        before, current.stream = current_stream(), stream
        yield
        current.stream = before

    def current_stream(device: object = None) -> Stream:
        init()
        stream: Stream = getattr(current, "stream", consumer)
        return stream

    def pinned(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*arguments, **options)

    def late_to(tensor: torch.Tensor, *arguments: Any, non_blocking: bool = False, **options: Any) -> torch.Tensor:
        if not non_blocking:
            return to(tensor, *arguments, **options)
        copy = torch.full_like(tensor, _GARBAGE)
        current_stream().work.append(lambda: copy.copy_(tensor))
        return copy

    pretended: dict[str, Any] = {"Stream": Stream, "current_stream": current_stream, "stream": use}
    pretended |= {"init": init, "is_available": lambda: True, "current_device": lambda: 0}
    # The host waits where a device would, so that the thread runs ahead.
    pretended |= {
        "device": contextlib.nullcontext,
        "synchronize": lambda: None,
        "_sleep": lambda cycles: time.sleep(cycles / _HERTZ),
    }
    for name, value in pretended.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.Tensor, "to", late_to)
