"""How a run ends: what the last line of its log and its state say."""

from __future__ import annotations

import logging
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed

from tokenloom.tasks.outcome import outcome

_FLOWS = ("build-dataset", "rebuild-dataset", "verify-dataset")
_OF_PREFECT = ("Finished in state", "Running hook", "Hook ")  # lines of Prefect that would come after ours


def completed(result: dict[str, Any]) -> State[dict[str, Any]]:
    """Return the final state of a run that built, and let its log end with the same words.

    Args:
        result: see BuildResult.to_json.
    """
    message = outcome(result)
    get_run_logger().info("%s", message)
    return Completed(message=message, data=result)


def end_log_with_our_line() -> None:
    """Keep those lines of Prefect that only repeat how a run of ours ended out of this process's logs."""
    logger = logging.getLogger("prefect.flow_runs")
    if _is_shown not in logger.filters:
        logger.addFilter(_is_shown)


def _is_shown(record: logging.LogRecord) -> bool:
    return getattr(record, "flow_name", None) not in _FLOWS or not str(record.msg).startswith(_OF_PREFECT)
