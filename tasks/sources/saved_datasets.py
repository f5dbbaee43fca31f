"""Folders that datasets.save_to_disk wrote: their data files, in the order of their rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from tokenloom.errors import InputError, message_of
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.spec.wildcards import first_wildcard
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tasks.sources.files.finding import FoundFile, found_file, match
from tokenloom.tasks.sources.files.opening import filesystem_of, is_local

_STATE, _DICT = "state.json", "dataset_dict.json"
_NO_DATA = (_STATE, _DICT, "dataset_info.json")  # files of save_to_disk beside the data
_INDICES = "_indices_data_files"  # an old release wrote such files; a dataset without any is supported
_STATE_KEYS = {  # the keys that releases of datasets have written
    *("_data_files", "_fingerprint", "_split", "_indexes", "_info", "_inplace_history"),
    *("_format_columns", "_format_kwargs", "_format_type", "_output_all_columns"),  # how rows are shown
}


def find_arrow_files(path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
    """Return the files that a path or glob matches; of a saved dataset, its data files.

    Raises InputError if nothing matches, or if a folder that the path names is not a saved dataset.
    """
    pattern = path.rstrip("/")
    root, found = match(pattern, leave_out)
    files: dict[str, FoundFile] = {}  # "**" matches a folder, and its files again
    for name, info in found:
        is_folder = info["type"] == "directory"
        if not is_folder and PurePosixPath(name).name in _NO_DATA:
            continue
        for data in _data_files(name, pattern) if is_folder else [name]:
            if is_folder and leave_out and leave_out.excludes(data.removeprefix(root)):
                continue
            files.setdefault(data, found_file(data.removeprefix(root), data, pattern))
    if not files:
        raise InputError(f"{path}: no Arrow file and no saved dataset matches; check the path")
    return list(files.values())


def _data_files(folder: str, pattern: str) -> list[str]:
    """Return the data files of a saved dataset, or none for another folder that a wildcard matched."""
    filesystem, _ = filesystem_of(pattern)
    read_json = partial(_read_json, None if is_local(pattern) else filesystem)
    if filesystem.exists(f"{folder}/{_DICT}"):
        splits = read_json(f"{folder}/{_DICT}").get("splits") or ["?"]
        raise InputError(
            f"{folder}: several splits, saved by datasets: {', '.join(map(str, splits))}; name one of them: "
            f"path: {folder}/{splits[0]}"
        )
    if not filesystem.exists(f"{folder}/{_STATE}"):
        if first_wildcard(pattern) is not None:
            return []
        raise InputError(
            f"{folder}: a folder without {_STATE}, so datasets.save_to_disk did not write it; write {folder}/*.arrow "
            "to mean its files"
        )
    state = read_json(f"{folder}/{_STATE}")
    if unknown := sorted(key for key, value in state.items() if key not in _STATE_KEYS and (value or key != _INDICES)):
        raise InputError(
            f"{folder}/{_STATE}: {unknown[0]!r} is not supported; save the dataset as parquet, and read that"
        )
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in state.get("_data_files") or []]
    if not names or not all(isinstance(name, str) and name == PurePosixPath(name).name for name in names):
        raise InputError(f"{folder}/{_STATE}: no list of data files; save the dataset again")
    return [f"{folder}/{name}" for name in names]


def _read_json(filesystem: Any, name: str) -> dict[str, Any]:
    try:
        value = json.loads(filesystem.cat_file(name) if filesystem else read_regular(name))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: can't be read: {message_of(error)}; save the dataset again") from error
    return value if isinstance(value, dict) else {}
