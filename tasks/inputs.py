"""Inputs: the files of the sources of a spec, and their fingerprints. Reads no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec

from tokenloom.errors import InputError
from tokenloom.storage.canonical import sha256_of
from tokenloom.storage.filesystem import Store
from tokenloom.storage.fingerprints import FingerprintMemory, remote_fingerprint, stamp
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.files import PINNED

if TYPE_CHECKING:  # pydantic stays out of the worker processes
    from tokenloom.spec import BuildSpec


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
    inputs: list[InputFile] = []
    for name, source in zip(spec.source_names(), spec.sources, strict=True):
        options = source.reading_options() | reading_rules(spec)
        files = []
        for found in make_reader(options).files(getattr(source, "path", "")):
            fingerprint, seen = (found.fingerprint, None) if found.fingerprint else memory.local(found.url)
            files.append(InputFile(name, found.path, found.url, found.num_bytes, fingerprint, options, seen))
        if options.get("take"):  # one stream through all files: each decides what it holds
            options["stream"] = sha256_of([[file.path, file.fingerprint] for file in files])
        inputs += files
    memory.save()
    return inputs


def reading_rules(spec: BuildSpec) -> dict[str, Any]:
    """Return the document rules that readers follow."""
    rules = spec.documents
    return {
        "max_bytes": rules.max_bytes,
        "on_error": rules.on_error,
        "encoding_errors": rules.encoding_errors,
    }


def check_unchanged(file: InputFile) -> None:
    """Raise InputError if an input is not what it was when the build was planned."""
    if file.fingerprint.startswith(PINNED):
        return  # a commit of a repository does not change
    if file.stamp is not None:
        changed = stamp(file.url) != file.stamp
    else:
        filesystem, path = fsspec.core.url_to_fs(file.url)
        changed = remote_fingerprint(filesystem.info(path), file.url) != file.fingerprint
    if changed:
        raise InputError(f"{file.url}: it changed while the build ran; build again when it is complete")
