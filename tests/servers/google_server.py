"""An emulator of Google Cloud Storage in this process, on a port that the kernel chooses.

It knows no conditional writes, so what two writers of one name do is not tested on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "corpora"


@contextmanager
def google_server() -> Iterator[str]:
    """Run a server with an empty bucket; yields its URL."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    host, port = server._api._httpd.server_address[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
