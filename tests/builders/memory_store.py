"""A store in memory whose clock a test moves, and stores that stop before each operation."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores.store import Store, StoredFile, cut_short


class _WithoutFolder(Store):
    """What stores without a folder on this machine have in common."""

    is_local = False

    def creates_exclusively(self) -> bool:
        return True


class MemoryStore(_WithoutFolder):
    """A store in memory; every write gets a time of its own, near that of this machine.

    Args:
        files: the bytes of its files, by path.
    """

    root = "memory://store/data"

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.clock = time.time()
        self.files = dict.fromkeys(files or {}, (b"", 0.0))
        for path, data in (files or {}).items():
            self._write(path, data)

    def _write(self, path: str, data: bytes) -> None:
        self.clock += 0.001
        self.files[path] = (data, self.clock)

    def age(self, days: float, folder: str = "") -> None:
        """Make the files below a folder so many days older."""
        for path, (data, modified) in self.files.items():
            if path.startswith(folder):
                self.files[path] = (data, modified - days * 24 * 3600)

    def place(self, path: str) -> str:
        if ".." in path.split("/") or path.startswith("/"):
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return f"{self.root}/{path}" if path else self.root

    def status(self, path: str) -> StoredFile | None:
        if path not in self.files:
            return None
        data, modified = self.files[path]
        return StoredFile(len(data), modified)

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        self.place(folder)
        return sorted({name.removeprefix(prefix).split("/")[0] for name in self.files if name.startswith(prefix)})

    def files_below(self, folder: str) -> dict[str, StoredFile]:
        prefix = f"{folder}/" if folder else ""
        found = sorted((name, file) for name, file in self.files.items() if name.startswith(prefix))
        return {name: StoredFile(len(data), modified) for name, (data, modified) in found}

    def read(self, path: str) -> bytes:
        self.place(path)
        try:
            return self.files[path][0]
        except KeyError:
            raise FileNotFoundError(path) from None

    def read_range(self, path: str, start: int, end: int) -> bytes:
        data = self.read(path)
        if len(data) < end:
            raise FormatError(cut_short(path, len(data), start, end))
        return data[start:end]

    def blocks(self, path: str) -> Iterator[memoryview]:
        yield memoryview(self.read(path))

    def create(self, path: str, data: bytes) -> None:
        self.place(path)
        if path in self.files:
            raise FileExistsError(path)
        self._write(path, data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._write(path, data)

    @contextmanager
    def writing(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self._write(path, file.getvalue())

    def remove(self, path: str) -> None:
        self.place(path)
        self.files.pop(path, None)

    def remove_empty_folders(self, folder: str) -> None:
        pass

    def remove_stale_temporaries(self) -> None:
        pass


class _Stepping(_WithoutFolder):
    """A store that calls `step` before each operation. A listing of files is two operations, as that of a large folder.

    Args:
        inner: the store.
        step: called before each operation.
    """

    def __init__(self, inner: Store, step: Callable[[str], None]) -> None:
        self._inner, self._step, self.root = inner, step, inner.root

    def place(self, path: str) -> str:
        return self._inner.place(path)

    def files_below(self, folder: str) -> dict[str, StoredFile]:
        self._step(f"files_below {folder}, first half")
        first = self._inner.files_below(folder)
        middle = sorted(first)[len(first) // 2] if first else ""
        self._step(f"files_below {folder}, second half")
        second = self._inner.files_below(folder)
        halves = {p: f for p, f in first.items() if p < middle} | {p: f for p, f in second.items() if p >= middle}
        return dict(sorted(halves.items()))

    @contextmanager
    def writing(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self.replace(path, file.getvalue())


def _stepped(name: str) -> Callable[..., Any]:
    """Return the operation of that name on the inner store, after a step."""

    def operation(store: _Stepping, *arguments: Any, **options: Any) -> Any:
        store._step(" ".join([name, *map(str, arguments[:1])]))
        return getattr(store._inner, name)(*arguments, **options)

    return operation


_OPERATIONS = {name: _stepped(name) for name in (*_Stepping.__abstractmethods__, "lengths", "replace")}
SteppingStore: type[_Stepping] = type("SteppingStore", (_Stepping,), _OPERATIONS)
