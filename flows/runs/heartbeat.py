"""The heartbeats of a run whose Prefect sends none, so that automations.py also finds out when its machine dies.

Prefect's own sender looks only once a second whether its run has ended, and the run waits for it
(prefect/flow_engine.py, _send_heartbeats). `tokenloom build` turns it off, to be done up to a second sooner. The
functions import Prefect, because `tokenloom up` reads the interval before it imports Prefect.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

HEARTBEAT_SECONDS = 30  # the minimum that Prefect accepts as an interval


@contextmanager
def heartbeats() -> Iterator[None]:
    """Send the heartbeats of this flow run during the block, unless Prefect does."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    if PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() is not None:
        yield
        return
    stopped = threading.Event()
    beat = partial(_beat, _heartbeat(), stopped)
    thread = threading.Thread(target=copy_context().run, args=(beat,), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:  # before the run's final state: after a heartbeat, the server expects another one or that state
        stopped.set()
        thread.join()


def _heartbeat() -> dict[str, Any]:
    """Return the event of this run."""
    from prefect.events.related import tags_as_related_resources
    from prefect.runtime import flow_run

    return {
        "event": "prefect.flow-run.heartbeat",
        "resource": {
            "prefect.resource.id": f"prefect.flow-run.{flow_run.get_id()}",
            "prefect.resource.name": str(flow_run.get_name()),
        },
        "related": tags_as_related_resources(flow_run.get_tags()),
    }


def _beat(event: dict[str, Any], stopped: threading.Event) -> None:
    from prefect.events import emit_event

    while not stopped.is_set():
        emit_event(**event)  # puts it into a queue, and logs an error
        stopped.wait(HEARTBEAT_SECONDS)
