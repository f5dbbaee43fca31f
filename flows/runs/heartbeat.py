"""The heartbeats of a run whose Prefect sends none, so that automations.py also finds out when its machine dies.

Prefect's own sender looks only once a second whether its run has ended, and the run waits for it
(prefect/flow_engine.py, _send_heartbeats). `tokenloom build` turns it off, to be done up to a second sooner. The
functions import Prefect, because `tokenloom up` needs the interval before it may be imported.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

HEARTBEAT_SECONDS = 30  # the minimum that Prefect accepts as an interval


@contextmanager
def heartbeats() -> Iterator[None]:
    """Send the heartbeats of this flow run during the block, unless Prefect does."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    if PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() is not None:
        yield
        return
    stopped = threading.Event()
    thread = threading.Thread(target=copy_context().run, args=(_beat, stopped), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:  # before the run's final state: after a heartbeat, the server expects another one or that state
        stopped.set()
        thread.join()


def _beat(stopped: threading.Event) -> None:
    from prefect.events import emit_event
    from prefect.events.related import tags_as_related_resources
    from prefect.runtime import flow_run

    resource = {
        "prefect.resource.id": f"prefect.flow-run.{flow_run.get_id()}",
        "prefect.resource.name": str(flow_run.get_name()),
    }
    tags = tags_as_related_resources(flow_run.get_tags())
    while not stopped.is_set():
        emit_event("prefect.flow-run.heartbeat", resource, related=tags)
        stopped.wait(HEARTBEAT_SECONDS)
