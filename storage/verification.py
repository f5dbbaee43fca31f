"""Checks of a version: every listed file is read once; the small files of the dataset are compared with each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from pathlib import PurePosixPath

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks, decode_blocks
from tokenloom.storage.formats.manifest import (
    BLOCKS,
    BUILD,
    INPUTS,
    MANIFEST,
    MASK,
    QUARANTINE,
    InputEntry,
    Manifest,
    ShardEntry,
    version_name,
)
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import is_published, version_path
from tokenloom.storage.versions.tags import entry_numbers, entry_path, log
from tokenloom.wording import counted

_WRONG = "its SHA-256 is not that of the manifest"

Count = Callable[[int], None]  # called with the number of bytes that were read


@dataclass(frozen=True)
class Damage:
    """A damaged file: its path relative to the dataset's folder, and its problem."""

    file: str
    what: str


def check_files(store: Store, version: str, digests: Mapping[str, str], count: Count) -> list[Damage]:
    """Read files of a version once; return those that differ from the manifest, or a shard's from its `.blocks`.

    Args:
        store: the dataset's folder.
        version: of the files.
        digests: SHA-256 by name in the version: of a shard and the files beside it, or of another file.
        count: called with the bytes of every file.

    Raises StoreError if the store does not answer, which says nothing about the files.
    """
    damages: list[Damage] = []
    listed: dict[str, ShardBlocks | None] = {}  # by the ends of names
    found: dict[str, ShardBlocks | None] = {}
    for name, sha256 in sorted(digests.items(), key=lambda item: not item[0].endswith(BLOCKS)):
        path = version_path(version, name)
        with collecting_damage(store, path, damages):
            if name.endswith(BLOCKS):
                data = store.read(path)
                count(len(data))
                if sha256_of_bytes(data) != sha256:
                    raise FormatError(_WRONG)
                blocks = decode_blocks(data, store.place(path))
                listed = {".tok": replace(blocks, mask=None), MASK: blocks.mask}
                continue
            end = PurePosixPath(name).suffix
            read = _read(store, path, listed.get(end), count)
            if read.sha256 != sha256:
                raise FormatError(_WRONG)
            found[end] = read
    if not damages and any(listed[end] != found.get(end) for end in listed):
        damages += [
            Damage(version_path(version, name), "it does not hold the checksums of its shard")
            for name in digests
            if name.endswith(BLOCKS)
        ]
    return damages


def _read(store: Store, path: str, listed: ShardBlocks | None, count: Count) -> ShardBlocks:
    """Compute the `.blocks` of a file; `listed` has the length of its blocks, None for a file without them."""
    digest, hasher = hashlib.sha256(), BlockHasher(listed.block_bytes if listed else None)
    header_bytes, num_bytes, header = len(listed.header) if listed else 0, 0, b""
    for block in store.blocks(path):
        digest.update(block)
        hasher.update(block)
        header += bytes(block[: header_bytes - len(header)])
        num_bytes += len(block)
    count(num_bytes)
    return ShardBlocks(digest.hexdigest(), num_bytes, hasher.block_bytes, header, hasher.finish())


def is_as_listed(store: Store, version: str, entry: ShardEntry) -> bool:
    """Read the files of a shard once; return whether they are those that its entry lists.

    Raises StoreError if the store does not answer.
    """
    digests = {name: file["sha256"] for name, file in entry.listed.items()}
    return not check_files(store, version, digests, lambda num_bytes: None)


@contextmanager
def collecting_damage(store: Store, path: str, damages: list[Damage]) -> Iterator[None]:
    """Add to `damages` if the block finds a file missing, unreadable or of another format; other errors are raised."""
    try:
        yield
    except FileNotFoundError:
        damages.append(Damage(path, "missing"))
    except (FormatError, OSError) as error:
        raise_unless_damage(store, error)
        damages.append(Damage(path, bare_message(error, store.place(path))))


def raise_unless_damage(store: Store, error: Exception) -> None:
    """Raise an OSError that says nothing about the file: a store that does not answer, a missing permission."""
    if isinstance(error, OSError) and not store.is_damage(error):
        raise error


def bare_message(error: Exception, place: str) -> str:
    """Return an error's message without the place that it begins with, for a list that names the file anyway."""
    return message_of(error).removeprefix(f"{place}: ")


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Yield where a manifest contradicts itself."""
    rows, splits = manifest.rows, manifest.splits.values()
    for fate, count, total in (
        ("kept", rows.kept, manifest.num_documents - rows.copies),
        ("duplicates", rows.duplicates, sum(split.duplicates for split in splits)),
    ):
        if count != total:
            yield f"{counted(count, 'row')} {fate}, the splits have {total:,}"
    fates = sum(count for fate, count in manifest.row_counts.items() if fate not in ("read", "copies"))
    if rows.read != fates:
        yield f"{counted(rows.read, 'row')} read, {fates:,} accounted for"
    if bool(rows.quarantined) != (QUARANTINE in manifest.files):
        is_listed = "listed" if QUARANTINE in manifest.files else "not listed"
        yield f"{counted(rows.quarantined, 'row')} quarantined, and {QUARANTINE} is {is_listed}"
    if INPUTS not in manifest.files:
        yield f"{INPUTS} is not listed"


def inputs_problems(manifest: Manifest, inputs: list[InputEntry]) -> list[str]:
    """Return the problems of inputs whose SHA-256 is right: the version's name must follow from them."""
    named = [(entry.source, entry.path, entry.fingerprint) for entry in inputs]
    try:
        name = version_name(manifest.spec, named, manifest.tokenizer.fingerprint)
    except ValueError as error:  # NaN, or half of a surrogate pair
        return [f"its spec can't be written as canonical JSON ({message_of(error)})"]
    if name == manifest.version:
        return []
    return [f"spec, inputs and tokenizer make version {name}, not {manifest.version}"]


def check_tags(store: Store) -> tuple[list[Damage], list[str]]:
    """Return the damages of the logs of all tags of a dataset, and warnings."""
    damages: list[Damage] = []
    warnings: list[str] = []
    published = cache(partial(is_published, store))
    for tag in store.names("tags"):
        named = {entry_path(tag, number) for number in entry_numbers(store, tag)}
        others = {f"tags/{tag}/{name}" for name in store.names(f"tags/{tag}")} - named
        warnings += [f"{path}: not an entry of the log" for path in sorted(others)]
        problems: dict[str, FormatError] = {}
        entries = log(store, tag, problems)
        damages += [Damage(path, bare_message(error, store.place(path))) for path, error in problems.items()]
        for entry in entries:
            if published(entry.version):
                continue
            if entry is entries[-1]:
                damages.append(Damage(version_path(entry.version, MANIFEST), f"missing, but tag {tag} names it"))
            else:
                warnings.append(
                    f"{entry_path(tag, entry.number)}: it names version {entry.version}, which no longer exists"
                )
    return damages, warnings


def unlisted_files(store: Store, manifest: Manifest) -> list[str]:
    """Return the paths in a version's folder that the manifest does not list, except for build.json."""
    version = manifest.version
    known: dict[str, set[str]] = {"": {MANIFEST, BUILD}}
    for name in chain(manifest.files, *(shard.listed for shard in manifest.shards)):
        parts = name.split("/")
        for depth, part in enumerate(parts):
            known.setdefault("/".join(parts[:depth]), set()).add(part)
    return [
        version_path(version, f"{folder}/{name}".lstrip("/"))
        for folder, names in sorted(known.items())
        for name in store.names(version_path(version, folder))
        if name not in names
    ]
