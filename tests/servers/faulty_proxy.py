"""An HTTP proxy in front of a store that simulates faults: errors, truncated bodies, delays, wrong bytes."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import deque
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_SECONDS = 0.15


class FaultyProxy:
    """Forwards requests, and counts them; `with` runs it.

    Faults: "ok", "503" or another status, "400 BadDigest" or another code of S3's, "cut" (half of the body, then the
    end of the connection), "drop" (no answer, and the store never sees it), "lost" (the store does it, and its answer
    is lost), "slow" (an answer after SLOW_SECONDS), "hold" (after `release`), "flip" (one bit of the body), "page"
    (`web_page` with status 200, which the store never sees).
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.release = threading.Event()  # ends "hold"
        self.counting = threading.Lock()
        self.creating = threading.Lock()  # moto looks whether there is an object, then writes it: S3 does both at once
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.forget()

    def forget(self) -> None:
        """Forget all faults and counts, as if the proxy were new."""
        self.faults: dict[str, deque[str]] = {name: deque() for name in ("GET", "HEAD", "PUT", "POST", "LIST")}
        self.always = "ok"  # the fault of GETs of objects when none is planned
        self.seen: list[tuple[str, str, int]] = []  # method, path, bytes of the body sent
        self.bytes_up = 0  # of all bodies that came
        self.num_faults = 0
        self.release.set()
        self.release = threading.Event()
        self.refused = ""  # a method that is answered with 403
        self.returns_checksums = False  # of what is written, as Amazon's S3 does, and moto does not
        self.on_create = "honoured"  # what the server does with create-if-absent: or "ignored", or "refused"
        self.web_page, self.web_type = b"", "text/html"
        self.page = 0  # names in a page of a listing; 0 as the store likes
        self._listing, self._listing_always = "", "ok"
        self._rate, self._random = 0.0, random.Random(0)

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def plan(self, *faults: str, method: str = "GET") -> None:
        """Plan these faults for the next requests for objects, in order."""
        self.faults[method].extend(faults)

    def plan_listings(self, part: str, *faults: str, always: str = "ok") -> None:
        """Plan these faults for listings whose URL contains `part`, in order, and `always` after them."""
        self._listing, self._listing_always = part, always
        self.faults["LIST"].extend(faults)

    def fail(self, rate: float, seed: int) -> None:
        """Make this share of all requests fail from now on, each in one of many ways."""
        self._rate, self._random = rate, random.Random(seed)

    def next_fault(self, method: str, path: str) -> str:
        """Return the fault of a request."""
        with self.counting:
            if method == self.refused:
                return "403"
            if self._rate and self._random.random() < self._rate:
                self.num_faults += 1
                return self._random.choice(("500", "503", "drop", "lost", "cut", "slow"))
        if is_listing(path):
            method = "LIST"
        if method not in self.faults or (method == "LIST" and self._listing not in path):
            return "ok"
        try:
            return self.faults[method].popleft()
        except IndexError:
            return {"GET": self.always, "LIST": self._listing_always}.get(method, "ok")

    def bytes_sent(self, path: str) -> int:
        """Return the bytes sent in bodies of objects with this path suffix."""
        return sum(count for method, name, count in self.seen if method == "GET" and name.endswith(path))


def is_listing(path: str) -> bool:
    """Return whether a request lists objects."""
    return any(f"{mark}{field}" in path for mark in "?&" for field in ("list-type", "prefix=", "comp=list"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FaultyProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up, because some tests kill them."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise 40 ms per request
    server: _Server

    def do_GET(self) -> None:
        """Forward a request of any method."""
        proxy = self.server.proxy
        self._answer(proxy.next_fault(self.command, self.path))

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _answer(self, fault: str) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.proxy.counting:
            self.server.proxy.bytes_up += len(data)
        if fault == "drop":
            self.close_connection = True
            return
        if fault == "page":
            page = b"" if self.command == "HEAD" else self.server.proxy.web_page
            self._send(200, {"Content-Type": self.server.proxy.web_type}, page)
            return
        if fault[:3].isdigit():
            said = f"<Error><Code>{fault[4:]}</Code><Message>as planned</Message></Error>" if fault[4:] else ""
            self._send(int(fault[:3]), {}, said.encode())
            return
        creates = "If-None-Match" in self.headers
        if creates and self.server.proxy.on_create == "refused":
            what = "A header you provided implies functionality that is not implemented"
            self._send(501, {}, f"<Error><Code>NotImplemented</Code><Message>{what}</Message></Error>".encode())
            return
        if creates and self.server.proxy.on_create == "ignored":
            del self.headers["If-None-Match"]
        with self.server.proxy.creating if creates else nullcontext():
            status, headers, body = self._forwarded(data)
        if self.server.proxy.returns_checksums and status == 200:
            headers |= {name: value for name, value in self.headers.items() if "checksum-sha256" in name.lower()}
        if fault == "lost":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        if fault == "hold":
            self.server.proxy.release.wait()
        if fault == "flip" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self._send(status, headers, body, cut=fault == "cut")

    def _forwarded(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=30)
        page = self.server.proxy.page
        path = f"{self.path}&max-keys={page}" if page and is_listing(self.path) else self.path
        connection.request(self.command, path, data or None, dict(self.headers))
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), body

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.server.proxy.seen.append((self.command, self.path.partition("?")[0], len(body)))
        dropped = ("connection", "transfer-encoding", "content-length", "date", "server")
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        lengths = {name.lower(): value for name, value in headers.items()}
        num_bytes = lengths.get("content-length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", num_bytes)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""
