"""Text for benchmarks that exists on every machine: the .py files of the interpreter and its packages."""

from __future__ import annotations

import json
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NUM_FILES = 8
_ROW_GROUP_BYTES = 8_000_000
_COPIES_FILE_BYTES = 125_000_000
_GROUP_ROWS = 500
_SPECIAL_TOKEN = re.compile(r"<\|\w+\|>")


def distinct_documents(num_bytes: float | None = None, text_bytes: int | None = None) -> list[str]:
    """Return documents of which every tool makes the same tokens, from files in an order drawn with a fixed seed.

    They are distinct, because tokenloom drops duplicates. They do not spell a special token, because not every peer can
    encode that as text.

    Args:
        num_bytes: bytes of UTF-8 in total, at least 1; None for all there are.
        text_bytes: the most bytes of a document, at least 4; None for whole files.

    Raises SystemExit if the machine has less text.
    """
    documents: dict[str, int] = {}  # text -> bytes
    total = 0
    paths = _source_paths()
    for path in random.Random(0).sample(paths, len(paths)):
        new = [text for text in _documents(path, text_bytes) if text not in documents]
        documents.update((text, len(text.encode())) for text in new)
        total += sum(documents[text] for text in dict.fromkeys(new))
        if num_bytes is not None and total >= num_bytes:
            return list(documents)
    if num_bytes is not None:
        raise SystemExit(
            f"this interpreter's packages have {total / 1e6:.0f} MB of text, not {num_bytes / 1e6:g} MB; "
            f"give --megabytes {int(total / 1e6)} or less"
        )
    return list(documents)


def _source_paths() -> list[Path]:
    roots = [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))]
    paths = {path for root in roots for path in root.rglob("*.py") if path.is_file()}
    if roots[1] not in roots[0].parents:  # in a virtual environment: leave out the packages outside it
        paths = {path for path in paths if roots[0] in path.parents or "site-packages" not in path.parts}
    return sorted(paths)


def _read(path: Path) -> list[str]:
    """Return the text of a file, or nothing if it is empty or not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    return [text] if text else []


def _documents(path: Path, text_bytes: int | None) -> Iterator[str]:
    """Yield the text of a file, or its pieces; a character that a cut would divide is left out."""
    for text in _read(path):
        if _SPECIAL_TOKEN.search(text):
            continue
        if text_bytes is None:
            yield text
            continue
        data = text.encode()
        pieces = (data[i : i + text_bytes].decode(errors="ignore") for i in range(0, len(data), text_bytes))
        yield from filter(None, pieces)


def write_corpus(folder: Path, texts: list[str]) -> list[Path]:
    """Write the texts as up to NUM_FILES parquet files with row groups of a few MB; return their paths."""
    folder.mkdir(parents=True)
    num_rows = -(-len(texts) // NUM_FILES)
    group_rows = max(1, len(texts) * _ROW_GROUP_BYTES // sum(map(len, texts)))
    paths: list[Path] = []
    for start in range(0, len(texts), num_rows):
        table = pa.table({"text": pa.array(texts[start : start + num_rows], pa.large_string())})
        paths.append(folder / f"part-{len(paths)}.parquet")
        pq.write_table(table, paths[-1], row_group_size=group_rows, compression="zstd")
    return paths


def _numbered_copies(texts: list[str], num_bytes: float) -> Iterator[list[str]]:
    """Yield the texts of one file after another, `num_bytes` bytes of UTF-8 in total, all of them distinct."""
    part: list[str] = []
    part_bytes = total = 0
    for number in count():
        for text in texts:
            part.append(f"# {number}\n{text}")
            part_bytes += len(part[-1].encode())
            if total + part_bytes >= num_bytes:
                yield part
                return
            if part_bytes >= _COPIES_FILE_BYTES:
                yield part
                total, part_bytes, part = total + part_bytes, 0, []


def write_numbered_copies(folder: Path, texts: list[str], num_bytes: float) -> list[Path]:
    """Write the texts over and over, all of them distinct, as parquet files of about 125 MB; return their paths."""
    folder.mkdir(parents=True)
    paths: list[Path] = []
    for part in _numbered_copies(texts, num_bytes):
        table = pa.table({"text": pa.array(part, pa.large_string())})
        paths.append(folder / f"part-{len(paths):05d}.parquet")
        pq.write_table(table, paths[-1], row_group_size=_GROUP_ROWS, compression="zstd")
    return paths


def write_jsonl(path: Path, parquet: Sequence[Path]) -> None:
    """Write the texts of parquet files as one file of JSON lines, with the key `text`."""
    with path.open("w", encoding="utf-8") as file:
        for each in parquet:
            for batch in pq.ParquetFile(each).iter_batches(columns=["text"]):
                lines = (json.dumps({"text": text}, ensure_ascii=False) for text in batch.column(0).to_pylist())
                file.writelines(f"{line}\n" for line in lines)
