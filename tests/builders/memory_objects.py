"""An object store in the memory of this process, for tests of readers: clients of S3 are slow to start.

`SCHEME`://BUCKET/KEY is the file /BUCKET/KEY of fsspec's memory file system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

SCHEME = "abfss"  # of Azure's store; its own tests use abfs


class MemoryObjects(AsyncFileSystem):  # type: ignore[misc]  # it has no types
    """The memory file system as an object store: with coroutines, the times of objects, and names with their bucket."""

    protocol = SCHEME

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix(f"{SCHEME}://").strip("/")

    def __getattribute__(self, name: str) -> Any:
        if name not in ("_info", "_ls", "_find", "_cat_file", "_rm_file", "_put_file", "_pipe_file"):
            return super().__getattribute__(name)
        method: Callable[..., Any] = getattr(MemoryFileSystem(), name.removeprefix("_"))

        async def call(*args: str | bytes, **options: Any) -> Any:
            for unknown in ("headers", "validate_content", "content_settings"):
                options.pop(unknown, None)
            paths = [_path_of(arg) if isinstance(arg, str) else arg for arg in args]
            return _as_object(method(*paths, **options))

        return call


def _path_of(name: str) -> str:
    return f"/{name.partition('://')[2]}" if name.startswith(f"{SCHEME}://") else name


def _as_object(answer: Any) -> Any:
    """Return what the memory file system says of files as the library of an object store would."""
    if isinstance(answer, list):
        return [_as_object(each) for each in answer]
    if isinstance(answer, dict) and "type" not in answer:
        return {name: _as_object(each) for name, each in answer.items()}
    return answer | {"last_modified": answer.get("created")} if isinstance(answer, dict) else answer


fsspec.register_implementation(SCHEME, MemoryObjects, clobber=True)
