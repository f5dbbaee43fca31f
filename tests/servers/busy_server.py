"""A real HTTP server over a folder, which answers some requests with 503."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, server_state: _State, **options: Any) -> None:
        self._state = server_state
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        if self._state.is_busy():
            self.send_error(503)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("ETag", '"always the same"')
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _State:
    def __init__(self, busy: Collection[int]) -> None:
        self.busy, self.num_requests, self._lock = busy, 0, threading.Lock()

    def is_busy(self) -> bool:
        with self._lock:
            self.num_requests += 1
            return self.num_requests - 1 in self.busy


@contextmanager
def serving(folder: Path, busy: Collection[int]) -> Iterator[tuple[str, _State]]:
    """Serve a folder; GET requests whose number, from 0, is in `busy` get 503. Yields (URL, state)."""
    state = _State(busy)
    handler = partial(_Handler, directory=str(folder), server_state=state)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", state
        server.shutdown()
        thread.join()
