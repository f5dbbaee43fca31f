"""What the page of the Python API shows, by subject; the other members of a class are for the package itself."""

from __future__ import annotations

from typing import NamedTuple


class Shown(NamedTuple):
    """A public name: its module, and the members that the page shows, with spaces between them."""

    module: str
    name: str
    members: str = ""


GROUPS = {
    "Datasets": [
        Shown(
            "tokenloom.reader.dataset",
            "TokenDataset",
            "__len__ __getitem__ __getitems__ decode trace iterable manifest reference packing_shares sources",
        ),
        Shown("tokenloom.reader.mixture", "Mixture", "from_state then plan describe"),
        Shown("tokenloom.reader.mixture", "MemberPlan"),
        Shown("tokenloom.storage.packing.packings", "PackingShares", "padding_share cut_share"),
    ],
    "Loaders": [
        Shown(
            "tokenloom.reader.loader",
            "TokenLoader",
            "__iter__ __len__ state_dict load_state_dict from_state consumed batch_at trace stats describe start close",
        ),
        Shown("tokenloom.reader.loader", "EvaluationPass"),
        Shown("tokenloom.reader.iterable", "SampleStream"),
        Shown("tokenloom.reader.streams.stream", "LoaderState"),
        Shown("tokenloom.reader.streams.stream", "Consumed"),
        Shown("tokenloom.reader.prefetch", "LoaderStats"),
    ],
    "Masks, segments and context parallelism": [
        Shown("tokenloom.reader.batch", "document_mask"),
        Shown("tokenloom.reader.batch", "DocumentMask", "dense mask_mod"),
        Shown("tokenloom.reader.batch", "segments"),
        Shown("tokenloom.reader.batch", "context_shard"),
    ],
    "Meshes and ranks": [
        Shown("tokenloom.reader.streams.ranks", "find_ranks"),
        Shown("tokenloom.reader.streams.ranks", "DataRank"),
        Shown("tokenloom.reader.streams.ranks", "place_in_mesh"),
    ],
    "Traces": [
        Shown("tokenloom.reader.trace", "Trace"),
        Shown("tokenloom.reader.trace", "TracedSample"),
        Shown("tokenloom.reader.trace", "TracedDocument"),
        Shown("tokenloom.reader.trace", "TracedClasses"),
    ],
    "The cache of remote shards": [
        Shown("tokenloom.storage.cache.shard_cache", "ShardCache", "default stats"),
    ],
    "Prefect": [Shown("tokenloom.automations", "install_publication_automation")],
}


def shown() -> list[Shown]:
    """Return everything that the page shows."""
    return [item for group in GROUPS.values() for item in group]
