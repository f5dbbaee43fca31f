"""A web server over a folder: busy, or without a length, an etag or ranges, or compressed; with ETags of each kind."""

from __future__ import annotations

import gzip
import hashlib
import html
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit


def _of_content(path: Path) -> str:
    return f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"'


def _of_time_and_length(path: Path) -> str:
    """As nginx does; Apache's has the same two numbers, in the other order."""
    status = path.stat()
    return f'"{int(status.st_mtime):x}-{status.st_size:x}"'


#: What ETags are made of.
ETAGS: dict[str, Callable[[Path], str]] = {
    "content": _of_content,
    "time and length": _of_time_and_length,
    "weak": lambda path: f"W/{_of_time_and_length(path)}",
    "empty": lambda path: '""',
    "one": lambda path: '"one"',
}


class Handler(BaseHTTPRequestHandler):
    """Answers requests; a class of its own for each server counts the GET requests."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and content leave together: otherwise each answer waits 40 ms for an acknowledgement
    folder: Path
    has: str
    busy: Collection[int]
    etag: str
    num_requests = 0
    _lock = threading.Lock()

    def do_GET(self) -> None:
        """Answer with the whole file, or the range that is asked for."""
        if self.command == "GET":
            with self._lock:
                number, type(self).num_requests = self.num_requests, self.num_requests + 1
            if number in self.busy:
                self.send_error(503)
                return
        path = self.folder / unquote(urlsplit(self.path).path)[1:]
        if path.is_dir():
            self._list(path)
            return
        if not path.is_file():
            self.send_error(404)
            return
        headers, data = self._answer(path)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.has == "ranges" else None
        if wanted:
            data = data[int(wanted[1]) : int(wanted[2]) + 1]
            headers["Content-Length"] = str(len(data))
        self.send_response(206 if wanted else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, path: Path) -> tuple[dict[str, str], bytes]:
        data = path.read_bytes()
        if self.has == "chunks":
            parts = (data[:100], data[100:], b"")
            return {"Transfer-Encoding": "chunked"}, b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        headers = {"Content-Length": str(len(data))} | (
            {} if self.has == "length" else {"ETag": ETAGS[self.etag](path)}
        )
        if self.has == "gzip":
            data = gzip.compress(data)
            headers |= {"Content-Length": str(len(data)), "Content-Encoding": "gzip"}
        return headers, data

    def _list(self, folder: Path) -> None:
        """Answer with a page of links to what a folder holds, as nginx and Apache do."""
        names = [f"{path.name}/" if path.is_dir() else path.name for path in sorted(folder.iterdir())]
        links = [f'<a href="{quote(name)}">{html.escape(name)}</a>' for name in ["../", *names]]
        page = f"<html><body><pre>{chr(10).join(links)}</pre></body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def web_server(
    folder: Path, has: str = "ranges", busy: Collection[int] = (), etag: str = "one"
) -> Iterator[tuple[str, type[Handler]]]:
    """Serve a folder; provides the URL, and what counts the GET requests.

    Args:
        folder: holds the files.
        has: what answers have: "length", "etag" (and length), "ranges" (and both), "chunks", "gzip".
        busy: the numbers of GET requests, from 0, that get 503.
        etag: what ETags are made of, see ETAGS.
    """
    handler = type("Handler", (Handler,), {"folder": folder, "has": has, "busy": busy, "etag": etag})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
