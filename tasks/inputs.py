"""Inputs: the files that the sources of a spec match, and their fingerprints. Reads no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec

from tokenloom.errors import InputError
from tokenloom.storage.filesystem import Store
from tokenloom.storage.fingerprints import FingerprintMemory, remote_fingerprint, stamp

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec import BuildSpec

_MAGIC = "*?["


@dataclass(frozen=True)
class InputFile:
    """One input file; `path` is relative to its source's root, `url` is where it lies on this machine.

    `options` decides how it is read; `stamp` is what changes when a local file does, None for a remote one.
    """

    source: str
    path: str
    url: str
    num_bytes: int
    fingerprint: str
    options: dict[str, Any]
    stamp: list[int] | None


def list_inputs(spec: BuildSpec, store: Store) -> list[InputFile]:
    """Return the input files of all sources, in the order of the sources, then of paths.

    Args:
        spec: with absolute paths.
        store: the dataset's store, where fingerprints are remembered.

    Raises:
        InputError: no file matches, or a folder stands where a file should.
    """
    memory = FingerprintMemory(store)
    inputs = []
    for name, source in zip(spec.source_names(), spec.sources, strict=True):
        options = source.model_dump(exclude={"path", "name", "filter", "id"})
        options["max_bytes"] = spec.documents.max_bytes
        for path, url, info in list_files(source.path):
            fingerprint, seen = memory.local(url) if _is_local(url) else (remote_fingerprint(info, url), None)
            inputs.append(InputFile(name, path, url, int(info["size"]), fingerprint, options, seen))
    memory.save()
    return inputs


def list_files(pattern: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (path, url, info) of the files that match, sorted by path.

    Args:
        pattern: a file or glob, absolute or an fsspec URL. `path` is relative to its root: up to the last "/"
            before the first wildcard; without one, the file's folder.
    """
    filesystem, stripped = _filesystem(pattern)
    magic = min((i for i in map(stripped.find, _MAGIC) if i >= 0), default=None)
    root = stripped[: stripped.rindex("/", 0, magic) + 1]
    if magic is None:
        if not filesystem.exists(stripped):
            raise InputError(f"{pattern}: no such file; check the path")
        found = {stripped: filesystem.info(stripped)}
    else:
        found = filesystem.glob(stripped, detail=True)
    files = []
    for name in sorted(found):
        if found[name]["type"] == "directory":
            if magic is not None and stripped.rsplit("/", 1)[-1] in ("*", "**"):
                continue
            raise InputError(f"{name}: a folder, where {pattern} should match files; write {name}/* to mean its files")
        if found[name]["type"] != "file":  # a pipe, a socket, a link to nothing
            raise InputError(f"{name}: no regular file; leave it out of {pattern}")
        url = name if _is_local(pattern) else str(filesystem.unstrip_protocol(name))
        files.append((name.removeprefix(root), url, found[name]))
    if not files:
        raise InputError(f"{pattern}: no file matches; check the path, and quote wildcards in a shell")
    return files


def _filesystem(pattern: str) -> tuple[Any, str]:
    if _is_local(pattern):  # "::" in a local name is no chain of file systems
        return fsspec.filesystem("file"), pattern.removeprefix("file://").removeprefix("local://")
    try:
        return fsspec.core.url_to_fs(pattern)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise InputError(f"{pattern}: this kind of URL can't be read here: {error}; copy the files") from error


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith(("file://", "local://"))


def check_unchanged(file: InputFile) -> None:
    """Raise InputError if an input is not what it was when the build was planned."""
    if file.stamp is not None:
        changed = stamp(file.url) != file.stamp
    else:
        filesystem, path = fsspec.core.url_to_fs(file.url)
        changed = remote_fingerprint(filesystem.info(path), file.url) != file.fingerprint
    if changed:
        raise InputError(f"{file.url}: it changed while the build ran; build again when it is complete")
