"""What a worker process does: answer calls until its parent is gone."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from tokenloom.errors import named_message_of
from tokenloom.storage.stores.remote_errors import is_transient, mark_transient
from tokenloom.tasks.running import memory, progress
from tokenloom.tokenizers.base import WORKER_MARK
from tokenloom.without_pandas import keep_pandas_out


def serve(descriptor: int) -> NoReturn:
    """Answer calls from the connection with this file descriptor; end the process when the parent is gone."""
    keep_pandas_out()
    memory.bound_this_process()
    os.environ[WORKER_MARK] = "1"
    connection = Connection(descriptor)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    sending = threading.Lock()  # uploads report from threads of their own

    def listen(event: progress.Event) -> None:
        with sending:
            connection.send(("event", event))

    with progress.listening(listen):
        while True:
            answer = _answer(jobs.get())
            try:
                with sending:
                    connection.send_bytes(answer)
            except OSError:
                os._exit(1)  # the parent is gone


def _receive(connection: Connection, jobs: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            jobs.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone, so end, whatever the main thread does


def _answer(call: bytes) -> bytes:
    """Run a call; return ("result", value) or ("error", exception), pickled."""
    try:
        function, job = pickle.loads(call)  # noqa: S301  (our parent's bytes)
        return pickle.dumps(("result", function(job)))
    except BaseException as error:  # noqa: BLE001  (a native library's panic is not an Exception; all are sent)
        mark_transient(error, is_transient(error))
        error.add_note("in a worker process:\n" + traceback.format_exc())
        try:
            answer = pickle.dumps(("error", error))
            pickle.loads(answer)  # noqa: S301  (our own bytes)
        except Exception:  # noqa: BLE001  (an error that can't be pickled is sent as its text)
            described = RuntimeError(f"{named_message_of(error)}\n{traceback.format_exc()}")
            mark_transient(described, is_transient(error))
            return pickle.dumps(("error", described))
        return answer
