"""What is on disk: shards, document tables, spills, manifests, versions, tags. No Prefect, no torch."""

from __future__ import annotations

from tokenloom.storage.formats.shard import Shard, open_shard

__all__ = ["Shard", "open_shard"]
