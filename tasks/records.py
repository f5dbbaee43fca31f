"""Records of partitions: written last, so a build that finds one has its spills, and nothing to do there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import read_signed
from tokenloom.storage.formats.spill import FOLDER, spill_path
from tokenloom.storage.stores.store import Store
from tokenloom.tasks.rows.quarantine import quarantine_path


def record_path(spill: str) -> str:
    """Return the path of a partition's record."""
    return f"{FOLDER}/{spill}.json"


def read_record(store: Store, spill: str) -> dict[str, Any] | None:
    """Return a partition's record if it and all its spills are there, else None.

    The record: {"read", "filtered", "not_read", "unseen", "quarantine": see QuarantineWriter.summary, "spills":
    [{"bytes", "documents": [by split], "tokens": [by split]}]}; `not_read` rows are among the filtered ones.
    """
    try:
        record = _parsed(store.read(record_path(spill)), spill)
    except FileNotFoundError:
        return None
    if record is None:
        return None
    return record if _is_whole(spill, record, {path: store.num_bytes(path) for path in _files(spill, record)}) else None


def read_records(store: Store, spills: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the records of those of the partitions that are whole, by name; one listing for all of them."""
    lengths = {f"{FOLDER}/{name}": num_bytes for name, num_bytes in store.lengths(FOLDER).items()}
    there = [spill for spill in dict.fromkeys(spills) if record_path(spill) in lengths]
    found = zip(there, store.read_all([record_path(spill) for spill in there]), strict=True)
    parsed = {spill: _parsed(data, spill) for spill, data in found if data is not None}
    return {name: record for name, record in parsed.items() if record and _is_whole(name, record, lengths)}


def _parsed(data: bytes, spill: str) -> dict[str, Any] | None:
    try:
        return read_signed(data, record_path(spill))
    except FormatError:
        return None


def _files(spill: str, record: dict[str, Any]) -> dict[str, int]:
    """Return the paths and lengths of what a record speaks for."""
    files = {spill_path(spill, index): int(item["bytes"]) for index, item in enumerate(record["spills"])}
    listed = int(record["quarantine"]["bytes"])
    return files | ({quarantine_path(spill): listed} if listed else {})


def _is_whole(spill: str, record: dict[str, Any], lengths: Mapping[str, int | None]) -> bool:
    return all(lengths.get(path) == num_bytes for path, num_bytes in _files(spill, record).items())
