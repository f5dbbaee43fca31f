"""An S3 server behind a slow line: moto, before it a proxy of a fixed rate and delay; in a process of its own.

    python benchmarks/slow_s3.py FOLDER MEGABYTES_PER_SECOND MILLISECONDS

prints its URL, serves the bucket, and ends with its standard input. The proxy itself answers requests for shards and
their `.blocks`, from the same files in FOLDER: moto reads a whole object for each range. GET /seen returns
{"requests", "bytes"} so far.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the server of the tests
from tests.servers.s3_server import BUCKET, put, s3_server

_CHUNK_BYTES = 2**16
_DATA = (".tok", ".blocks")


class _Line:
    """A line that all connections share."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._lock, self._free_at = bytes_per_second, threading.Lock(), 0.0
        self.seen = {"requests": 0, "bytes": 0}

    def wait(self, num_bytes: int) -> None:
        """Return when the line has carried these bytes."""
        with self._lock:
            self.seen["bytes"] += num_bytes
            self._free_at = max(time.monotonic(), self._free_at) + num_bytes / self._rate
            pause = self._free_at - time.monotonic()
        time.sleep(max(0.0, pause))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    folder: Path
    upstream: str
    line: _Line
    delay: float

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up: the reader ends before its downloads do."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        """Answer a request after the delay."""
        if self.path == "/seen":
            self._answer(200, {}, json.dumps(self.server.line.seen).encode())
            return
        self.server.line.seen["requests"] += 1
        time.sleep(self.server.delay)
        path = self.server.folder / unquote(self.path.partition("?")[0]).removeprefix(f"/{BUCKET}/")
        if self.command == "GET" and path.suffix in _DATA and path.exists():
            self._answer_from(path)
        else:
            self._answer(*self._forwarded())

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _answer_from(self, path: Path) -> None:
        num_bytes = path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        assert found
        start, end = int(found[1]), min(num_bytes, int(found[2] or num_bytes - 1) + 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{num_bytes}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", '"0"')
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            while start < end:
                data = file.read(min(_CHUNK_BYTES, end - start))
                self.server.line.wait(len(data))
                self.wfile.write(data)
                start += len(data)

    def _forwarded(self) -> tuple[int, dict[str, str], bytes]:
        import http.client

        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self.server.upstream, timeout=30)
        connection.request(self.command, self.path, body or None, dict(self.headers))
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), data

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", headers.get("Content-Length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.server.line.wait(len(body))
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def slow_s3(folder: Path, megabytes_per_second: float, milliseconds: float) -> Iterator[str]:
    """Serve the files of a folder as the bucket of S3, in another process; yields the URL of the server."""
    command = [sys.executable, __file__, str(folder), str(megabytes_per_second), str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def _serve(folder: Path, megabytes_per_second: float, milliseconds: float) -> None:
    with s3_server() as url:
        small = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in _DATA]
        for path in small:
            put(url, path.relative_to(folder).as_posix(), path.read_bytes())
        server = _Server(("127.0.0.1", 0), _Handler)
        server.folder, server.upstream = folder, url.removeprefix("http://")
        server.line, server.delay = _Line(megabytes_per_second * 1e6), milliseconds / 1e3
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
