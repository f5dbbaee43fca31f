"""What commands return, and the exit codes, which `COMMAND --help` states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

FAILED = 1
NO = 3  # see Command.no for what it means for a command
INTERRUPTED = 130
READER_ENDED = 141  # 128 + SIGPIPE, as shells show for `ls | head`; the work of a build is done by then
TERMINATED = 143

EXIT_CODES = {
    0: "The command did what it was asked to.",
    FAILED: "It failed: a store or an input can't be read or written, there is no such version, or a file is damaged.",
    2: "An argument or the spec is wrong.",
    NO: "The command completed, and the answer is no. Each command that uses this code says what it means.",
    INTERRUPTED: "Ctrl-C interrupted it.",
    READER_ENDED: "The program that reads the output ended first, as in `tokenloom ls STORE | head -1`. "
    "A build prints only after it has published.",
    TERMINATED: "SIGTERM ended it.",
}


@dataclass(frozen=True)
class Result:
    """What a command returns: the object that `--json` prints, and the exit code."""

    value: Json
    exit_code: int = 0
