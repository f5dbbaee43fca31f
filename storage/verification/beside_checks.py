"""The checks of the files beside a shard that follow its tokens: its mask, and the checksums of the blocks of both."""

from __future__ import annotations

import numpy as np

from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks, decode_blocks
from tokenloom.storage.formats.classes import ROLE_BITS, ROLES
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.formats.shard_entries import BLOCKS, MASK
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import NOT_SHA256, Taker, checked_file, collecting_problems, read_once
from tokenloom.storage.verification.shard_checks import ShardClaim
from tokenloom.wording import counted


def check_mask(store: Store, claim: ShardClaim, take: Taker) -> list[str]:
    """Read the mask of a shard that lists one; return its problems.

    Args:
        store: the dataset's folder.
        claim: what the manifest says of the shard.
        take: called with every block.
    """
    problems: list[str] = []
    path, max_role = claim.path_beside(MASK), 0

    def take_block(position: int, block: memoryview) -> None:
        nonlocal max_role
        max_role = max(max_role, int((np.frombuffer(block, np.uint8) & ROLE_BITS).max(initial=0)))
        take(position, block)

    with collecting_problems(store, path, problems):
        num_bytes, sha256 = read_once(store, path, take_block)
        if num_bytes != claim.entry.tokens:
            problems.append(f"{counted(num_bytes, 'byte')} for {counted(claim.entry.tokens, 'token')}")
        if sha256 != claim.entry.files[MASK].sha256:
            problems.append(NOT_SHA256)
        if max_role >= len(ROLES):
            problems.append(f"a token has role {max_role}; the last is {len(ROLES) - 1}, {ROLES[-1]}")
    return problems


class BlocksCheck:
    """Compares the `.blocks` file of a shard with the bytes of shard and mask, in the pass over them.

    Args:
        store: the dataset's folder.
        claim: what the manifest says of the shard.
        take: called with every block of the `.blocks` file.
    """

    def __init__(self, store: Store, claim: ShardClaim, take: Taker) -> None:
        self._store, self._claim = store, claim
        self._problems: list[str] = []
        self._found: ShardBlocks | None = None
        path = claim.path_beside(BLOCKS)
        with (
            collecting_problems(store, path, self._problems),
            checked_file(store, path, claim.entry.files[BLOCKS].sha256, take) as file,
        ):
            if file is None:
                self._problems.append(NOT_SHA256)
            else:
                self._found = found = decode_blocks(file.read(), store.place(path))
                self._hasher = BlockHasher(found.block_bytes)
                self._mask_hasher = BlockHasher(found.mask.block_bytes if found.mask else None)

    def take(self, _: int, block: memoryview) -> None:
        """Take a block of the shard; blocks come in order."""
        if self._found:
            self._hasher.update(block)

    def take_of_mask(self, _: int, block: memoryview) -> None:
        """Take a block of its mask; blocks come in order."""
        if self._found:
            self._mask_hasher.update(block)

    def problems(self, header: ShardHeader | None, mask_is_damaged: bool) -> list[str]:
        """Return the problems of the file, after the last block; a damaged shard or mask says nothing.

        Args:
            header: the shard's header; None if the shard is damaged.
            mask_is_damaged: whether its mask is; False if it has none.
        """
        if self._found and header and not mask_is_damaged:
            entry = self._claim.entry
            head = self._store.read_range(self._claim.path, 0, header.tokens_start)
            checksums, length = self._hasher.finish(), self._found.block_bytes
            if self._found != ShardBlocks(entry.sha256, entry.bytes, length, head, checksums, self._mask_blocks()):
                self._problems.append("it does not hold the checksums of its shard")
        return self._problems

    def _mask_blocks(self) -> ShardBlocks | None:
        """Return what the file must say of the mask."""
        if (file := self._claim.entry.files.get(MASK)) is None:
            return None
        hasher = self._mask_hasher
        return ShardBlocks(file.sha256, file.bytes, hasher.block_bytes, b"", hasher.finish())
