"""Whether the files of a shard that an earlier process finished are still as they were written."""

from __future__ import annotations

from tokenloom.errors import FormatError
from tokenloom.storage.formats.blocks import blocks_name, decode_blocks
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import raise_unless_damage, read_once
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.work.shard_records import ShardRecord


def is_as_recorded(store: Store, version: str, record: ShardRecord) -> bool:
    """Read the files of a shard once; return whether they are those of its record.

    Args:
        store: the dataset's store.
        version: of the shard.
        record: what was written.

    Raises StoreError if the store does not answer.
    """
    path = version_path(version, record.name)
    blocks_path = blocks_name(path)
    try:
        tokens = read_once(store, f"{path}.tok", _ignore)
        _, docs_sha256 = read_once(store, f"{path}.docs", _ignore)
        blocks = decode_blocks(store.read(blocks_path), store.place(blocks_path))  # it has a checksum of its own
    except FormatError:
        return False
    except OSError as error:
        raise_unless_damage(store, error)
        return False
    return (*tokens, docs_sha256, blocks.sha256) == (record.bytes, record.sha256, record.docs_sha256, record.sha256)


def _ignore(position: int, block: memoryview) -> None:
    """Take a block whose content does not matter."""
