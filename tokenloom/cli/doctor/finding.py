"""One thing that `tokenloom doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        topic: what was looked at, such as "open files".
        found: what it is like here.
        status: a problem makes a build fail; a warning makes it slower or less safe, or concerns a part of it.
        advice: what to do; "" if all is well.
    """

    topic: str
    found: str
    status: Status = "ok"
    advice: str = ""


def failed(topic: str, message: str) -> Finding:
    """Return a problem from the message of an error, whose last clause is the next step if it has several."""
    found, _, advice = message.rpartition("; ")
    if not found:
        found, advice = message, "correct that, and run `tokenloom doctor` again"
    return Finding(topic, found, "problem", advice)
