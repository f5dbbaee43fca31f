"""Transforms whose modules break the fast encoder of the worker process that imports them."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import NoReturn

from tokenloom.tokenizers.fast import tokenizer
from tokenloom.tokenizers.fast.tokenizer import FastEncoder


def crash(text: str) -> str:
    """Return the text, in a process whose fast encoder crashes."""

    def kill(*_: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    FastEncoder.encode = kill  # type: ignore[assignment,method-assign]
    return text


def hang(text: str) -> str:
    """Return the text, in a process whose fast encoder never returns."""

    def sleep(*_: object) -> NoReturn:
        time.sleep(3600)
        raise AssertionError

    FastEncoder.encode = sleep  # type: ignore[assignment,method-assign]
    tokenizer._HANG_SECONDS = 1
    return text


def leak(text: str) -> str:
    """Return the text, in a process whose fast encoder takes more memory than the system gives."""

    def take(*_: object) -> bytearray:
        limit = (tokenizer._resident_bytes() or 0) + 10**9
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return bytearray(10**12)

    FastEncoder.encode = take  # type: ignore[assignment,method-assign]
    return text
