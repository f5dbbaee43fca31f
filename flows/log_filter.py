"""What Prefect writes into the logs of our runs and nobody needs to read.

That is: a line for each of hundreds of tasks that completed, whatever follows our own last line, and the traceback of a
user's mistake, whose message says all. Failures and retries of tasks stay. Runs of other flows keep all their lines.
"""

from __future__ import annotations

import logging

from prefect.exceptions import ParameterBindError, ParameterTypeError, SignatureMismatchError

from tokenloom.errors import TokenloomError
from tokenloom.run_ends import FLOWS

BAD_PARAMETERS = (ParameterBindError, ParameterTypeError, SignatureMismatchError)
_MISTAKES = (TokenloomError, *BAD_PARAMETERS)  # of the user
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
    return record.name != _TASKS or not record.getMessage().startswith("Finished in state Completed(")


for _name in (_RUNS, _TASKS):  # at import: Prefect logs invalid parameters before it calls any code of ours
    logging.getLogger(_name).addFilter(_is_shown)
