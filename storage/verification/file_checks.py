"""The check of the files that a manifest lists, each of which is read once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks, decode_blocks
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.formats.shard_entries import BLOCKS, MASK, ShardEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path

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
            end = next((end for end in (".tok", MASK) if name.endswith(end)), "")
            read = _read(store, path, listed.get(end), count)
            if read.sha256 != sha256:
                raise FormatError(_WRONG)
            found[end] = read
    if listed and not damages and any(listed[end] != found.get(end) for end in listed):
        names = [name for name in digests if name.endswith(BLOCKS)]
        damages += [
            Damage(version_path(version, name), "it does not hold the checksums of its shard") for name in names
        ]
    return damages


def _read(store: Store, path: str, listed: ShardBlocks | None, count: Count) -> ShardBlocks:
    """Return what a `.blocks` file should say of a file; `listed` is what it says, None for other files."""
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
    digests = {name: file.sha256 for name, file in entry.listed.items()}
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
