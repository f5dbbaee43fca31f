"""A stand-in for the Hugging Face Hub: answers as the hub does where huggingface_hub asks for the file of a model."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

MAIN = "main"


@dataclass
class ModelHub:
    """The hub with one model, org/model.

    `files` holds the files of each commit by name, `branches` the commit of each branch. `refusal` is the status of
    every answer and its X-Error-Code, None to answer well. `asked` lists the paths of requests so far.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    asked: list[str] = field(default_factory=list)

    def publish(self, commit: str, **files: bytes) -> None:
        """Let the branch main be a commit with these files; `tokenizer_json` is tokenizer.json."""
        self.files[commit] = {".".join(name.rsplit("_", 1)): data for name, data in files.items()}
        self.branches[MAIN] = commit

    def __enter__(self) -> ModelHub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and content of an answer."""
        self.asked.append(path)
        if self.refusal is not None:
            return self.refusal[0], {"X-Error-Code": self.refusal[1]}, b""
        model, _, rest = path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        commit = self.branches.get(revision, revision)
        if model != "org/model":
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if commit not in self.files:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        headers = {"X-Repo-Commit": commit}
        if name not in self.files[commit]:
            return 404, headers | {"X-Error-Code": "EntryNotFound"}, b""
        data = self.files[commit][name]
        return 200, headers | {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}, data


def _handler(hub: ModelHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, data = hub.answer(self.path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data)), "Connection": "close"}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler
