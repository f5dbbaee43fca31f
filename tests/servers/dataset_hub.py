"""A stand-in for the datasets of the Hugging Face Hub: a web server that answers as the hub does.

huggingface_hub, its file system and the package datasets read it: the facts of a dataset, its references, its tree in
pages, single paths, and the content of files, whole or in parts. As on the hub, files of some suffixes are kept by Git
LFS: their content comes from a server with another address, to which `resolve` redirects.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

MAIN = "main"
CONVERTED = "refs/convert/parquet"
LFS_SUFFIXES = (".arrow", ".bz2", ".gz", ".parquet", ".zst")  # of the hub's own .gitattributes, those of these tests
Files = Mapping[str, bytes]
_PATH = re.compile(
    r"/(?P<api>api/)?datasets/(?P<name>[^/]+/[^/]+)(/(?P<asked>[^/]+)(/(?P<revision>[^/]+)(/(?P<path>.+))?)?)?"
)
_LAST_COMMIT = {"lastCommit": {"id": "0" * 40, "title": "Add data", "date": "2026-01-02T03:04:05.000Z"}}


class Answer(NamedTuple):
    """An answer to a request."""

    status: int
    headers: dict[str, str]
    content: bytes = b""


class Refused(Exception):
    """The hub refuses a request.

    Args:
        status: of the answer.
        code: its X-Error-Code, which huggingface_hub reads.
        headers: further ones.
    """

    def __init__(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        headers = {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})}
        self.answer = Answer(status, headers, b'{"error": "refused"}')


@dataclass
class Repository:
    """One dataset.

    Attributes:
        commits: the files of each commit.
        branches: the commit of each branch, and of references such as `refs/convert/parquet`.
        tags: the commit of each tag.
        token: who has it may read the dataset; None if all may.
        is_private: whether others don't see the dataset; with a token and without this, it is gated.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    is_private: bool = False

    def commit_of(self, revision: str) -> str:
        """Return the commit that a branch, a tag or a commit names; refuse any other name."""
        commit = (self.branches | self.tags).get(revision, revision)
        if commit not in self.commits:
            raise Refused(404, "RevisionNotFound")
        return commit

    def check_gate(self, token: str) -> None:
        """Refuse the content of a gated dataset without a token; anyone may list its files."""
        if self.token is not None and token != self.token:
            raise Refused(403 if token else 401, "GatedRepo")


class DatasetHub:
    """The hub with its datasets.

    Attributes:
        repositories: the datasets by name.
        moved: the new names of datasets that were renamed, by the old ones.
        asked: method, path and status of each request so far.
        page: how many entries a page of a tree has.
        url: the address, for HF_ENDPOINT.
        content_url: the address of the server with the content of LFS's files.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        self.asked: list[tuple[str, str, int]] = []
        self.page = 1000
        self.url = self.content_url = ""
        self._limits: dict[int, int] = {}  # number of a request -> after how many seconds it may come again
        self._until = 0.0  # all requests before are too many
        self._header = ""  # which tells when one is not
        self._lock = threading.Lock()

    def commit(self, name: str, files: Files, branch: str = MAIN) -> str:
        """Let a branch of a dataset be a commit with these files, and no others; return the commit."""
        repository = self.repositories.setdefault(name, Repository())
        entries = [f"{path} {blob_id(content)}" for path, content in sorted(files.items())]
        commit = hashlib.sha1("\n".join([name, branch, *entries]).encode()).hexdigest()
        repository.commits[commit] = dict(files)
        repository.branches[branch] = commit
        return commit

    def rename(self, name: str, new_name: str) -> None:
        """Give a dataset another name; requests for the old one are redirected."""
        self.repositories[new_name] = self.repositories.pop(name)
        self.moved[name] = new_name

    @contextmanager
    def limited(self, number: int, seconds: int, header: str = "Retry-After") -> Iterator[None]:
        """In the block, refuse a request, and all in the seconds after it, as too many.

        Args:
            number: of the request, from 1.
            seconds: after which a request may come again.
            header: says so: Retry-After, or RateLimit, as the hub's own.
        """
        with self._lock:
            self._limits = {len(self.asked) + number - 1: seconds}
            self._header = header
        try:
            yield
        finally:
            self._limits.clear()
            self._until = 0.0

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the answer to a request, and write it down."""
        with self._lock:
            number = len(self.asked)
            self.asked.append((method, target, 0))
        try:
            self._check_limit(number)
            answer = self._routed(method, target, headers, body)
        except Refused as refusal:
            answer = refusal.answer
        self.asked[number] = (method, target, answer.status)
        return answer

    def _check_limit(self, number: int) -> None:
        seconds = self._limits.pop(number, 0)
        if seconds:
            self._until = time.monotonic() + seconds
        remaining = self._until - time.monotonic()
        if remaining > 0:
            seconds = int(remaining) + 1
            told = str(seconds) if self._header == "Retry-After" else f'"api";r=0;t={seconds}'
            raise Refused(429, "RateLimited", {self._header: told})

    def _routed(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        match = _PATH.fullmatch(urlsplit(target).path)
        if match is None:
            raise Refused(404, "NotFound")
        name = match["name"]
        if name in self.moved:
            return Answer(307, {"Location": target.replace(name, self.moved[name], 1)})
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        repository = self._allowed(name, token)
        commit = repository.commit_of(unquote(match["revision"] or MAIN))
        path = unquote(match["path"] or "")
        asked = f"{match['api'] or ''}{match['asked'] or ''}"
        if asked == "resolve":
            repository.check_gate(token)
            return self._resolved(repository, commit, path)
        if asked in ("api/", "api/revision"):
            return in_json(_facts(name, repository, commit))
        if asked == "api/refs":
            return in_json(_references(repository))
        if asked == "api/tree":
            return self._tree(repository.commits[commit], path, target)
        if asked == "api/paths-info" and method == "POST":
            return _paths(repository.commits[commit], parse_qs(body.decode()))
        raise Refused(404, "NotFound")

    def _allowed(self, name: str, token: str) -> Repository:
        """Return a dataset that this client may see. As on the hub, a private one is as if it were missing."""
        repository = self.repositories.get(name)
        if repository is None or (repository.is_private and repository.token != token):
            raise Refused(404 if token else 401, "RepoNotFound")
        return repository

    def _resolved(self, repository: Repository, commit: str, path: str) -> Answer:
        files = repository.commits[commit]
        if path not in files:
            raise Refused(404, "EntryNotFound")
        content = files[path]
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not path.endswith(LFS_SUFFIXES):
            return Answer(200, headers | {"ETag": f'"{blob_id(content)}"'}, content)
        sha256 = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256}"'}
        return Answer(302, headers | {"Location": f"{self.content_url}/{sha256}"})

    def _tree(self, files: Files, folder: str, target: str) -> Answer:
        entries = _entries(files)
        if folder and entries.get(folder, {}).get("type") != "directory":
            raise Refused(404, "EntryNotFound")
        prefix = f"{folder}/" if folder else ""
        query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
        listed = [entry for path, entry in sorted(entries.items()) if path.startswith(prefix)]
        if query["recursive"].lower() == "false":
            listed = [entry for entry in listed if "/" not in entry["path"].removeprefix(prefix)]
        if query["expand"].lower() == "true":
            listed = [entry | _LAST_COMMIT for entry in listed]
        start = int(query.get("cursor", "0"))
        end = start + self.page
        answer = in_json(listed[start:end])
        if end < len(listed):
            following = target.partition("&cursor=")[0]
            answer.headers["Link"] = f'<{self.url}{following}&cursor={end}>; rel="next"'
        return answer

    def content(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the answer of the server with the content of LFS's files, which gets no token."""
        if "Authorization" in headers:
            return Answer(400, {}, b"a token was sent to another server")
        wanted = target.removeprefix("/")
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == wanted:
                        return Answer(200, {"ETag": f'"{wanted}"', "Accept-Ranges": "bytes"}, content)
        return Answer(404, {})


def blob_id(content: bytes) -> str:
    """Return the name that git gives to a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def in_json(value: Any) -> Answer:
    """Return an answer of JSON."""
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _facts(name: str, repository: Repository, commit: str) -> dict[str, Any]:
    return {
        "_id": hashlib.sha1(name.encode()).hexdigest()[:24],
        "id": name,
        "author": name.partition("/")[0],
        "sha": commit,
        "lastModified": "2026-01-02T03:04:05.000Z",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "private": repository.is_private,
        "gated": "manual" if repository.token and not repository.is_private else False,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "siblings": [{"rfilename": path} for path in sorted(repository.commits[commit])],
    }


def _paths(files: Files, form: dict[str, list[str]]) -> Answer:
    entries = _entries(files)
    wanted = [entries[path] for path in form["paths"] if path in entries]
    if form["expand"][0].lower() == "true":
        wanted = [entry | _LAST_COMMIT for entry in wanted]
    return in_json(wanted)


def _references(repository: Repository) -> dict[str, list[dict[str, str]]]:
    references: dict[str, list[dict[str, str]]] = {"branches": [], "converts": [], "tags": []}
    for name, commit in repository.branches.items():
        kind = "converts" if name.startswith("refs/convert/") else "branches"
        full_name = name if kind == "converts" else f"refs/heads/{name}"
        references[kind].append({"name": name.rpartition("/")[2], "ref": full_name, "targetCommit": commit})
    for name, commit in repository.tags.items():
        references["tags"].append({"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit})
    return references


def _entries(files: Files) -> dict[str, dict[str, Any]]:
    """Return what the hub says of each file and folder of a commit, by path."""
    entries: dict[str, dict[str, Any]] = {}
    for path, content in files.items():
        folder = path.rpartition("/")[0]
        while folder:
            tree_id = hashlib.sha1(folder.encode()).hexdigest()
            entries[folder] = {"type": "directory", "oid": tree_id, "size": 0, "path": folder}
            folder = folder.rpartition("/")[0]
        entry = {"type": "file", "oid": blob_id(content), "size": len(content), "path": path}
        if path.endswith(LFS_SUFFIXES):
            sha256 = hashlib.sha256(content).hexdigest()
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(content)}\n".encode()
            entry["oid"] = blob_id(pointer)
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": len(pointer)}
        entries[path] = entry
    return entries


class _Handler(BaseHTTPRequestHandler):
    """Sends what `reply` answers, and of a content the range that is asked for."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and content leave together: otherwise each answer waits 40 ms for an acknowledgement
    reply: Any

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, headers, content = self.reply(self.command, self.path, self.headers, body)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and status == 200:
            start = int(wanted[1])
            end = min(int(wanted[2] or len(content)) + 1, len(content))
            status = 206 if start < len(content) else 416
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            content = content[start:end]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, quote(value, safe="/:?&=%<>;\"',+ ()*@!-._~"))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def dataset_hub() -> Iterator[DatasetHub]:
    """Run a hub without datasets."""
    hub = DatasetHub()
    with ExitStack() as servers:
        for reply in (hub.answer, hub.content):
            handler = type("Handler", (_Handler,), {"reply": staticmethod(reply)})
            server = servers.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            servers.callback(server.shutdown)
            address = f"http://127.0.0.1:{server.server_address[1]}"
            if reply == hub.answer:
                hub.url = address
            else:
                hub.content_url = address
        yield hub
