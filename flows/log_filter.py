"""What Prefect writes into the logs of our runs and nobody needs to read.

That is: a line for each of hundreds of tasks that completed or were stopped, whatever follows our own last line, and
what Prefect says of a user's mistake, as the last line says all. Other failures of tasks, and retries, stay. Runs of
other flows keep all their lines.
"""

from __future__ import annotations

import logging
import re

from prefect.exceptions import ParameterBindError, ParameterTypeError, SignatureMismatchError
from prefect.logging.handlers import PrefectConsoleHandler

from tokenloom import errors
from tokenloom.errors import TokenloomError, WorkerLost, WorkError
from tokenloom.flows.run_events import FLOWS
from tokenloom.tasks.running.workers import STOPPED

BAD_PARAMETERS = (ParameterBindError, ParameterTypeError, SignatureMismatchError)
_MISTAKES = (TokenloomError, *BAD_PARAMETERS)  # of the user
# Errors of a task that its run can outlive: their lines stay.
_PASSING = {kind.__name__ for kind in (WorkerLost, WorkError)}
_FINISHED = re.compile(
    r"Finished in state (?:Completed\(|Running\(\)|Failed\(.Task run encountered an exception:? (\w+): (.*))", re.DOTALL
)
_RUNS, _TASKS = "prefect.flow_runs", "prefect.task_runs"

ended: set[str] = set()  # ids of runs whose log has got its last line from this process


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether a line stays in the log; take the traceback of a user's mistake from it."""
    flow_name, text = getattr(record, "flow_name", None), str(record.msg)
    is_of_engine = flow_name == "<unknown>" and text.startswith("Engine execution ")  # repeats the message of the run
    if flow_name not in FLOWS and not is_of_engine:
        return True
    if getattr(record, "flow_run_id", None) in ended:
        return False
    is_mistake = record.exc_info is not None and isinstance(record.exc_info[1], _MISTAKES)
    if record.name == _RUNS and (is_mistake or text.startswith("Running hook")):
        return False
    if is_mistake:
        record.exc_info = record.exc_text = None
    return not _is_idle_end(record)


def _is_idle_end(record: logging.LogRecord) -> bool:
    """Return whether a line says that a task or run ended, and nothing that our own lines do not say."""
    text = record.getMessage()
    if record.name == _RUNS:
        return text == "Finished in state Running()"  # of a run that was cancelled
    found = _FINISHED.match(text)
    if not found or found[1] is None:
        return found is not None
    return STOPPED in found[2] or (found[1] in vars(errors) and found[1] not in _PASSING)


def _outlive_reader(handler: PrefectConsoleHandler) -> None:
    """Let a console fall silent when nobody reads its pipe any more, as after the death of Prefect's worker.

    rich would end the process, at its very next line: before the run has reported that it ends.
    """
    setattr(handler.console, "on_broken_pipe", lambda: setattr(handler.console, "quiet", True))  # noqa: B010


for _name in (_RUNS, _TASKS):  # at import: Prefect logs invalid parameters before it calls any code of ours
    logging.getLogger(_name).addFilter(_is_shown)
for _name in ("", "prefect", _RUNS, _TASKS):
    for _handler in logging.getLogger(_name).handlers:
        if isinstance(_handler, PrefectConsoleHandler):
            _outlive_reader(_handler)
