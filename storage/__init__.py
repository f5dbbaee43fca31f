"""What is on disk: shards, document tables, spills, manifests, versions, tags. No Prefect, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenloom.storage.formats.shard import Shard, open_shard

__all__ = ["Shard", "open_shard"]


def __getattr__(name: str) -> object:  # loaded when first used: opening a dataset reads no shard
    if name not in __all__:
        raise AttributeError(f"module 'tokenloom.storage' has no attribute {name!r}")
    from tokenloom.storage.formats import shard

    return getattr(shard, name)
