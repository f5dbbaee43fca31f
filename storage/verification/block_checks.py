"""The check of the `.blocks` file beside a shard, in the same pass over the shard's bytes; and writing it anew."""

from __future__ import annotations

from tokenloom.errors import FormatError
from tokenloom.storage.formats.blocks import (
    UPDATE,
    BlockHasher,
    ShardBlocks,
    blocks_name,
    decode_blocks,
    encode_blocks,
)
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import bare_message
from tokenloom.storage.verification.shard_checks import ShardClaim


class BlocksCheck:
    """Checks the `.blocks` file of a shard, or writes it; a missing one is not a problem.

    Args:
        store: the dataset's folder.
        claim: what the manifest says of the shard.
        write: whether to write the file if it is missing or damaged; one of a newer format stays as it is.

    Raises StoreError if the file can't be read.
    """

    def __init__(self, store: Store, claim: ShardClaim, write: bool) -> None:
        self._store, self._claim, self._write = store, claim, write
        self.path = blocks_name(claim.path)
        self._found: ShardBlocks | None = None
        self._problem = ""
        self._read()
        self._hasher = BlockHasher(self._found.block_bytes if self._found else None)

    def _read(self) -> None:
        place = self._store.place(self.path)
        try:
            self._found = decode_blocks(self._store.read(self.path), place)
        except FileNotFoundError:
            return
        except FormatError as error:
            self._problem = bare_message(error, place)
            self._write = self._write and not self._problem.endswith(UPDATE)

    def take(self, _: int, block: memoryview) -> None:
        """Take a block of the shard; blocks come in order."""
        if self._found or self._write:
            self._hasher.update(block)

    def finish(self, header: ShardHeader) -> tuple[list[str], int]:
        """Return the problems of the file, and the number of files written; the shard is undamaged.

        Raises StoreError if the file can't be written.
        """
        if not (self._found or self._write):
            return [self._problem] if self._problem else [], 0
        entry = self._claim.entry
        head = self._store.read_range(self._claim.path, 0, header.tokens_start)
        right = ShardBlocks(entry.sha256, entry.bytes, self._hasher.block_bytes, head, self._hasher.finish())
        if self._found == right:
            return [], 0
        if self._write:
            self._store.replace(self.path, encode_blocks(right))
            return [], 1
        return ["it does not hold the checksums of its shard"], 0
