"""Let forks of a process that ran a flow exit cleanly, such as the workers of torch's DataLoader.

Prefect keeps background services for logs and events, and stops each of them when the interpreter exits. In a fork it
resets them without marking them as ended, so stopping them raises an AssertionError and every fork exits with code 1.
A fork has none of the threads that ran those services: there, they have ended.
"""

from __future__ import annotations

import asyncio
import os

from prefect._internal.concurrency import services  # registers Prefect's own reset, which must run before ours


def _mark_services_as_ended() -> None:
    for service in list(services._active_services):
        service._done_event = asyncio.Event()
        service._done_event.set()


os.register_at_fork(after_in_child=_mark_services_as_ended)
