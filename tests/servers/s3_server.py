"""moto's S3 server in a separate process, on a port that the kernel chooses; it ends with its parent.

python -m tests.servers.s3_server     prints its URL, serves until its standard input ends
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.servers.faulty_proxy import FaultyProxy

BUCKET = "corpora"
#: of requests that no client signs
HEADERS = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
#: for clients of a server of tests, whose address is in AWS_ENDPOINT_URL
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "an-access-key-id",
    "AWS_SECRET_ACCESS_KEY": "a-secret-access-key",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with an empty bucket; yields its URL."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.servers.s3_server"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, "the S3 server did not start"
        put(url, "")
        yield url
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()  # it may be busy freeing its memory
        process.wait()


@contextmanager
def sent_through(proxy: FaultyProxy) -> Iterator[None]:
    """Have the environment send s3:// through a proxy before the S3 server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": proxy.url}.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        yield


def _request(method: str, url: str, path: str, data: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(method, path, data, HEADERS)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status == 200, body
    return body


def put(url: str, key: str, data: bytes = b"") -> None:
    """Write an object; with an empty key, create the bucket."""
    _request("PUT", url, quote(f"/{BUCKET}/{key}"), data)


def upload(url: str, folder: Path, key: str) -> None:
    """Write every file below `folder` under `key`, as `aws s3 sync` does."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(url, f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def download(url: str, key: str, folder: Path) -> None:
    """Write every object under `key` below `folder`, as `aws s3 sync` does."""
    for name in keys(url, f"{key}/"):
        path = folder / name.removeprefix(f"{key}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_request("GET", url, quote(f"/{BUCKET}/{name}")))


def keys(url: str, prefix: str) -> list[str]:
    """Return the keys of all objects with this prefix."""
    found: list[str] = []
    while True:
        after = f"&start-after={quote(found[-1], safe='')}" if found else ""
        page = _request("GET", url, f"/{BUCKET}?list-type=2&prefix={quote(prefix, safe='')}{after}").decode()
        names = [unescape(name) for name in re.findall("<Key>(.*?)</Key>", page)]
        found += names
        if not names or "<IsTruncated>true" not in page:
            return found


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve()
