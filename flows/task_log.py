"""The log of task runs, without a line for each of hundreds that completed; failures and retries stay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from prefect.context import FlowRunContext


def quiet_task_runs() -> None:
    """Keep "Finished in state Completed()" of this flow's task runs out of the log; call it in the process of a task.

    It stays so in this process, for runs of this flow alone.
    """
    if context := FlowRunContext.get():
        name = context.flow.name if context.flow else ""
        logging.getLogger("prefect.task_runs").addFilter(_only_news(name))


@cache
def _only_news(flow_name: str) -> Callable[[logging.LogRecord], bool]:
    """Return the filter of a flow, the same one each time: a logger does not take it twice."""

    def is_news(record: logging.LogRecord) -> bool:
        is_mine = getattr(record, "flow_name", None) == flow_name
        return not (is_mine and record.getMessage().startswith("Finished in state Completed("))

    return is_news
