"""A web server over a folder that answers as many do: without a length, an etag or ranges, or compressed."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    has: str

    def do_GET(self) -> None:
        """Answer with the whole file, whatever range is asked for."""
        data = (self.folder / self.path[1:]).read_bytes()
        headers = {"Content-Length": str(len(data))}
        if self.has == "etag":
            headers["ETag"] = '"one"'
        if self.has == "chunks":
            headers = {"Transfer-Encoding": "chunked"}
            data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:100], data[100:], b""))
        if self.has == "gzip":
            data = data if self.path.endswith(".gz") else gzip.compress(data)
            headers = {"Content-Length": str(len(data)), "Content-Encoding": "gzip", "ETag": '"one"'}
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


@contextmanager
def web_server(folder: Path, has: str) -> Iterator[str]:
    """Serve a folder; provides the URL. `has` is what answers have: "length", "etag" (and length), "chunks", "gzip"."""
    handler = type("Handler", (_Handler,), {"folder": folder, "has": has})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
