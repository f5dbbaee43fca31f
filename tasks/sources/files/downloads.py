"""Whole copies of files on web servers that give no length or etag (chunked or compressed answers) or send no ranges.

Such a file can't be read in parts, or not be pinned without its content. Its copy in TMPDIR is read like a local file
by the processes of this machine, and deleted when this process ends.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from tokenloom.errors import InputError
from tokenloom.storage.stores.local_errors import translate_temporary_errors
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tasks.sources.files.opening import Info, translate_input_errors

_READ_BYTES = 2**20
_SILENT_SECONDS = 60.0  # without a byte
_PARTIAL, _NO_RANGE = 206, 416  # of HTTP
_CHECKSUMS = ("ETag", "Content-MD5")
_PREFIX = "tokenloom-web-"
_COPY = re.compile(rf"/(?:[^\s:]+/)?{_PREFIX}\w+/[0-9a-f]{{16}}(?=/)")


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix=_PREFIX)


def needs_copy(filesystem: Any, url: str, info: Info) -> bool:
    """Return whether a file can be read only as a whole, by what fsspec says about it, or by the answer to a range."""
    from fsspec.asyn import sync

    if not url.startswith(("http://", "https://")):
        return False
    if info["size"] is None or not any(map(info.get, _CHECKSUMS)):
        return True
    with translate_input_errors(url):
        return not sync(filesystem.loop, _sends_ranges, filesystem, url)


def copied(filesystem: Any, name: str, url: str) -> str:
    """Download a file of a web server; return the path of its copy, which stays the same if its content does.

    Args:
        filesystem: fsspec's, whose options the request has.
        name: of the file, in the file system.
        url: for messages.

    Raises InputError if it can't be downloaded, StoreError if TMPDIR is full.
    """
    from fsspec.asyn import sync

    with translate_temporary_errors():
        digest = hashlib.sha256(url.encode()).hexdigest()[:16]
        path = Path(_folder().name, digest, os.path.basename(name))
        path.parent.mkdir(exist_ok=True)
        Path(f"{path.parent}.json").write_text(json.dumps([str(path), url]))
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file, translate_input_errors(url):
            sync(filesystem.loop, _download, filesystem, name, file)
        if not path.exists() or not filecmp.cmp(path, part, shallow=False):
            part.replace(path)
    return str(path)


def with_urls(message: str) -> str:
    """Return a message with the URLs of copies, also of another process's, in place of their paths."""
    for folder in set(_COPY.findall(message)):
        with suppress(OSError, ValueError):  # another program's
            message = message.replace(*json.loads(read_regular(f"{folder}.json")))
    return message


async def _sends_ranges(filesystem: Any, url: str) -> bool:
    session = await filesystem.set_session()
    headers = {**filesystem.kwargs.get("headers", {}), "Range": "bytes=0-0", "Accept-Encoding": "identity"}
    async with session.get(filesystem.encode_url(url), **{**filesystem.kwargs, "headers": headers}) as answer:
        if answer.status != _NO_RANGE:  # an empty file has none
            answer.raise_for_status()
        return bool(answer.status == _PARTIAL)


async def _download(filesystem: Any, url: str, file: IO[bytes]) -> None:
    import aiohttp

    session = await filesystem.set_session()
    headers = {**filesystem.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENT_SECONDS)
    options = {**filesystem.kwargs, "headers": headers, "timeout": timeout, "auto_decompress": False}
    async with session.get(filesystem.encode_url(url), **options) as answer:
        answer.raise_for_status()
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding in ("gzip", "x-gzip") and url.endswith(".gz"):  # what servers say of a file that is itself gzip
            encoding = "identity"
        if encoding not in ("gzip", "x-gzip", "identity"):
            raise InputError(f"{url}: the server sends it as {encoding}, which is not supported; copy the file")
        unpack = None if encoding == "identity" else zlib.decompressobj(wbits=31)
        async for data in answer.content.iter_chunked(_READ_BYTES):
            file.write(data if unpack is None else unpack.decompress(data))
        if unpack is not None and not unpack.eof:
            raise InputError(f"{url}: the server's answer ends within its gzip stream; check the file")
