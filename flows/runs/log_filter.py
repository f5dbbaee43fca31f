"""Remove lines that Prefect writes to the logs of our runs and that help no one.

These are a line for each of hundreds of tasks that completed or were stopped, everything after our own last line, and
Prefect's report of a user's mistake, which our last line explains. Other failures of tasks, and retries, are kept. Runs
of other flows keep all their lines.
"""

from __future__ import annotations

import logging
import re

from prefect.exceptions import ParameterBindError, ParameterTypeError, SignatureMismatchError
from prefect.logging.handlers import PrefectConsoleHandler

from tokenloom import errors
from tokenloom.errors import TokenloomError, WorkerLost, WorkError
from tokenloom.flows.runs.events import FLOWS
from tokenloom.tasks.running.workers import STOPPED

_OURS = tuple(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TokenloomError))
OF_PARAMETERS = (ParameterBindError, ParameterTypeError, SignatureMismatchError)
MISTAKES = (*_OURS, *OF_PARAMETERS)  # errors that the user can fix
# Errors of a task after which its run does not continue: their lines are left out.
_FINAL = {kind.__name__ for kind in MISTAKES} - {kind.__name__ for kind in (WorkerLost, WorkError)}
_FINISHED = re.compile(
    r"Finished in state (?:Completed\(|Running\(\)|Failed\(.Task run encountered an exception:? (\w+): (.*))", re.DOTALL
)
_RUNS, _TASKS = "prefect.flow_runs", "prefect.task_runs"

ended: set[str] = set()  # ids of runs whose last log line this process has written


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether to keep a line; remove the traceback from the report of a user's mistake."""
    flow_name, text = getattr(record, "flow_name", None), str(record.msg)
    is_of_engine = flow_name == "<unknown>" and text.startswith("Engine execution ")  # repeats the run's own message
    if flow_name not in FLOWS and not is_of_engine:
        return True
    if getattr(record, "flow_run_id", None) in ended:
        return False
    is_mistake = record.exc_info is not None and isinstance(record.exc_info[1], MISTAKES)
    if record.name == _RUNS and (is_mistake or text.startswith("Running hook")):
        return False
    if is_mistake:
        record.exc_info = record.exc_text = None
    return not _is_redundant_end(record)


def _is_redundant_end(record: logging.LogRecord) -> bool:
    """Return whether a line reports the end of a task or run without adding to our own lines."""
    text = record.getMessage()
    if record.name == _RUNS:
        return text == "Finished in state Running()"  # written when a run is cancelled
    found = _FINISHED.match(text)
    if not found or found[1] is None:
        return found is not None
    return STOPPED in found[2] or found[1] in _FINAL


def _survive_broken_pipe(handler: PrefectConsoleHandler) -> None:
    """Make a console quiet once its pipe has no reader, as after Prefect's worker was killed.

    Otherwise rich ends the process at the next line, before the run can report its end.
    """
    setattr(handler.console, "on_broken_pipe", lambda: setattr(handler.console, "quiet", True))  # noqa: B010


for _name in (_RUNS, _TASKS):  # at import, because Prefect logs invalid parameters before it calls our code
    logging.getLogger(_name).addFilter(_is_shown)
for _name in ("", "prefect", _RUNS, _TASKS):
    for _handler in logging.getLogger(_name).handlers:
        if isinstance(_handler, PrefectConsoleHandler):
            _survive_broken_pipe(_handler)
