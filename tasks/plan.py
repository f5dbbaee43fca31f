"""Plan: list the input files, fingerprint them, cut partitions, name the version. Reads no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.utils import get_protocol

from tokenloom.errors import InputError
from tokenloom.spec import BuildSpec
from tokenloom.storage import tags
from tokenloom.storage.canonical import sha256_of
from tokenloom.storage.filesystem import Store
from tokenloom.storage.fingerprints import FingerprintMemory, remote_fingerprint, stamp
from tokenloom.storage.manifest import version_name
from tokenloom.storage.spill import SPILL_FORMAT
from tokenloom.storage.versions import dataset_store, is_published
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.tokenization import read_record
from tokenloom.tokenizers import Tokenizer, load_tokenizer

LATEST = "latest"
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


@dataclass(frozen=True)
class Partition:
    """A part of an input file, and the name of its spills; see PartitionRange for the other fields."""

    input_index: int
    start: int
    end: int
    num_bytes: int
    num_rows: int | None
    spill: str


@dataclass(frozen=True)
class BuildPlan:
    """All that the steps of a build need to know.

    `tokenizer` is what the manifest says of it: kind, name, fingerprint, vocab_size, eot_id; `definition` makes it.
    `seen_tag_number` is the number of the newest entry of `latest` when the plan was made.
    """

    spec: BuildSpec
    store: Store
    version: str
    published: bool
    seen_tag_number: int
    tokenizer: dict[str, Any]
    definition: dict[str, Any]
    tokenizer_files: dict[str, bytes]
    inputs: list[InputFile]
    partitions: list[Partition]
    cached: frozenset[str]  # names of spills that an earlier build left

    @property
    def missing(self) -> list[Partition]:
        """The partitions to encode: those without spills, each name once."""
        first = {partition.spill: partition for partition in reversed(self.partitions)}
        return [p for p in self.partitions if first[p.spill] is p and p.spill not in self.cached]


def plan_build(spec: BuildSpec) -> BuildPlan:
    """Plan a build. Writes nothing but remembered fingerprints.

    Args:
        spec: with absolute paths (BuildSpec.resolve).

    Raises:
        InputError: no file matches, a folder stands where a file should, a file is damaged or lacks the column.
        TokenizerError: the tokenizer can't be made.
        StoreError: the store can't be read or written.
    """
    store = dataset_store(spec.store, spec.dataset)
    definition = spec.tokenizer.model_dump()
    tokenizer = load_tokenizer(definition)
    inputs = _list_inputs(spec, store)
    identities = [(file.source, file.path, file.fingerprint) for file in inputs]
    version = version_name(spec.identity(), identities, tokenizer.fingerprint)
    partitions = _cut(spec, inputs, tokenizer.fingerprint)
    return BuildPlan(
        spec=spec,
        store=store,
        version=version,
        published=is_published(store, version),
        seen_tag_number=tags.newest_number(store, LATEST),
        tokenizer=describe_tokenizer(tokenizer),
        definition=definition,
        tokenizer_files=tokenizer.files,
        inputs=inputs,
        partitions=partitions,
        cached=frozenset(name for name in {p.spill for p in partitions} if read_record(store, name)),
    )


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what a manifest says of a tokenizer."""
    return {
        "kind": tokenizer.kind,
        "name": tokenizer.name,
        "fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "eot_id": tokenizer.eot_id,
    }


def _list_inputs(spec: BuildSpec, store: Store) -> list[InputFile]:
    memory = FingerprintMemory(store)
    inputs = []
    for name, source in zip(spec.source_names(), spec.sources, strict=True):
        options = source.model_dump(exclude={"path", "name", "filter", "id"})
        options["max_bytes"] = spec.documents.max_bytes
        for path, url, info in list_files(source.path):
            local = _is_local(url)
            fingerprint = memory.local(url) if local else remote_fingerprint(info, url)
            seen = stamp(url) if local else None
            inputs.append(InputFile(name, path, url, int(info["size"]), fingerprint, options, seen))
    memory.save()
    return inputs


def list_files(pattern: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (path, url, info) of the files that match, sorted by path.

    Args:
        pattern: a file or glob, absolute or an fsspec URL. `path` is relative to its root: up to the last "/"
            before the first wildcard; without one, the file's folder.
    """
    filesystem, stripped = fsspec.core.url_to_fs(pattern)
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
        url = name if _is_local(pattern) else str(filesystem.unstrip_protocol(name))
        files.append((name.removeprefix(root), url, found[name]))
    if not files:
        raise InputError(f"{pattern}: no file matches; check the path, and quote wildcards in a shell")
    return files


def _is_local(url: str) -> bool:
    return get_protocol(url) in ("file", "local")


def _cut(spec: BuildSpec, inputs: Sequence[InputFile], tokenizer_fingerprint: str) -> list[Partition]:
    shared = {
        "documents": spec.documents.model_dump(),
        "seed": spec.seed,
        "splits": [list(item) for item in spec.split_shares()],
        "spill_format": SPILL_FORMAT,
        "tokenizer": tokenizer_fingerprint,
    }
    partitions = []
    for index, file in enumerate(inputs):
        for part in make_reader(file.options).partitions(file.url):
            name = sha256_of(
                shared
                | {"fingerprint": file.fingerprint, "options": file.options, "range": [part.start, part.end]}
                | {"gzip": file.url.endswith(".gz")}
            )[:32]
            partitions.append(Partition(index, part.start, part.end, part.num_bytes, part.num_rows, name))
    return partitions
