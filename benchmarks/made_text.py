"""Real text in any amount, made while it is read: files of a file system that takes the space of one of them.

    made:///FOLDER/700/*.parquet

are 700 files with the documents of FOLDER/text.parquet, about 64 MB of text. Each document begins with a line that has
its number in all of them, so no two are equal. Reading a file is reading FOLDER/text.parquet, with other digits; it is
neither compressed nor has it statistics, so its pages hold the texts as they are.

`write_text` makes the folder. It is also a plug-in of fsspec, so a process with `environment(folder)` reads such URLs,
and so do the workers that it starts.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from fsspec.spec import AbstractFileSystem
from numpy.typing import NDArray

from corpus import distinct_documents

FILE_BYTES = 63_000_000  # of text in a file; with its offsets less than a partition
_BATCH_BYTES = 4_000_000
_MIN_CHARS, _MAX_CHARS = 250, 20_000  # of a document: shorter ones are left out, longer ones cut
_DIGITS = 10
_LINE = b"Document " + b"0" * _DIGITS + b".\n"
_NAME = re.compile(r"part-(\d{6})\.parquet")


def real_documents() -> list[str]:
    """Return the texts of TOKENLOOM_TEST_DATA, a folder with folders of parquet and JSON lines, each text once.

    Without that folder, they are the documents of corpus.py.
    """
    folder = os.environ.get("TOKENLOOM_TEST_DATA")
    if not folder:
        return distinct_documents(FILE_BYTES)
    texts = [*_parquet_texts(Path(folder)), *_json_texts(Path(folder))]
    pieces = (text[i : i + _MAX_CHARS] for text in texts for i in range(0, len(text), _MAX_CHARS))
    return list(dict.fromkeys(text for text in pieces if len(text) >= _MIN_CHARS))


def _parquet_texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*/*.parquet")):
        if "text" in pq.read_schema(path).names:
            yield from pq.read_table(path, columns=["text"])["text"].to_pylist()


def _json_texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield max((value for value in json.loads(line).values() if isinstance(value, str)), key=len)


def write_text(folder: Path, file_bytes: int = FILE_BYTES) -> None:
    """Write the one file of a folder, with row groups of 4 MB, and what makes it a plug-in of fsspec."""
    texts = real_documents()
    batch: list[bytes] = []
    batch_bytes = total = 0
    schema = pa.schema({"text": pa.large_string()})
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with pq.ParquetWriter(folder / "text.parquet", schema, **plain) as writer:
        for number in count():
            text = _LINE + texts[number % len(texts)].encode()
            is_full = total + len(text) > file_bytes
            if batch and (is_full or batch_bytes + len(text) > _BATCH_BYTES):
                column = pa.array(batch, pa.large_binary()).cast(pa.large_string())
                writer.write_batch(pa.record_batch({"text": column}))
                batch, batch_bytes = [], 0
            if is_full:
                break
            batch.append(text)
            batch_bytes, total = batch_bytes + len(text), total + len(text)
    data = (folder / "text.parquet").read_bytes()
    first = [match.start() + _LINE.index(b"0") for match in re.finditer(re.escape(_LINE), data)]
    layout = {"num_bytes": len(data), "etag": xxhash.xxh3_128_hexdigest(data), "first_digits": first}
    (folder / "layout.json").write_text(json.dumps(layout))
    plugin = folder / "made_text-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: made-text\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text("[fsspec.specs]\nmade = made_text:MadeText\n")


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process that reads the files of a folder."""
    paths = [str(Path(__file__).parent), str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def source(folder: Path, num_files: int) -> dict[str, str]:
    """Return the source of a spec that reads the first `num_files` files."""
    return {"kind": "parquet", "path": f"made://{folder}/{num_files}/*.parquet"}


class _Layout(NamedTuple):
    """Of the one file of a folder: its bytes, its fingerprint, and where the digits are."""

    num_bytes: int
    etag: str
    digits: NDArray[np.int64]  # (number of documents * _DIGITS,) ascending


@lru_cache
def _layout(folder: str) -> _Layout:
    stored = json.loads(Path(folder, "layout.json").read_text())
    digits = np.array(stored["first_digits"], np.int64)[:, None] + np.arange(_DIGITS)
    return _Layout(stored["num_bytes"], stored["etag"], digits.ravel())


class MadeText(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The file system of `made://` URLs."""

    protocol = "made"

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Return the files of FOLDER/NUMBER."""
        folder, _, number = path.rstrip("/").rpartition("/")
        names = [f"{folder}/{number}/part-{index:06d}.parquet" for index in range(int(number))]
        return [self.info(name) for name in names] if detail else names

    def info(self, path: str, **options: Any) -> Mapping[str, Any]:
        """Return the size and the fingerprint of a file."""
        folder, index = _place(path)
        layout = _layout(folder)
        return {"name": path, "type": "file", "size": layout.num_bytes, "ETag": f"{layout.etag}-{index}"}

    def _open(self, path: str, *arguments: Any, **options: Any) -> io.RawIOBase:
        return _File(*_place(path))


def _place(path: str) -> tuple[str, int]:
    """Return the folder and the index of a file."""
    folder, _, name = path.rpartition("/")
    if not (found := _NAME.fullmatch(name)) or int(found[1]) >= int(folder.rpartition("/")[2]):
        raise FileNotFoundError(path)
    return folder.rpartition("/")[0], int(found[1])


class _File(io.RawIOBase):
    """One file, open: the bytes of the text of its folder, with the numbers of its own documents."""

    def __init__(self, folder: str, index: int) -> None:
        layout = _layout(folder)
        self.size, self._where, self._position = layout.num_bytes, layout.digits, 0
        self._file = os.open(f"{folder}/text.parquet", os.O_RDONLY)
        num_documents = len(self._where) // _DIGITS
        numbers = np.arange(num_documents, dtype=np.int64) + index * num_documents
        powers = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)
        self._digits = (ord("0") + numbers[:, None] // powers % 10).astype(np.uint8).ravel()

    def readinto(self, buffer: Any) -> int:
        """Read from the current position."""
        num_bytes = os.preadv(self._file, [buffer], self._position)
        start, end = np.searchsorted(self._where, [self._position, self._position + num_bytes])
        data = np.frombuffer(buffer, np.uint8, num_bytes)
        data[self._where[start:end] - self._position] = self._digits[start:end]
        self._position += num_bytes
        return num_bytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        """Return the current position."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._file)
        super().close()
