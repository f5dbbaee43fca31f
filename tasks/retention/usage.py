"""What uses the space of a dataset: versions with the records of their builds, spills, unfinished files, reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tokenloom.errors import FormatError
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.tags import tagged_versions
from tokenloom.storage.work.assignment import BUILDS
from tokenloom.storage.work.plans import PLANS
from tokenloom.tasks.retention.collect import Policy, VersionStatus, collect, survey

#: the folders of a dataset by the part that they belong to
PARTS = {
    "versions": "versions",
    BUILDS: "versions",
    PLANS: "versions",
    "work/spills": "spills",
    "work/tmp": "temporaries",
    "reports": "reports",
}


@dataclass(frozen=True)
class DatasetUsage:
    """The space that a dataset uses, in bytes.

    `parts` adds up to `bytes`; `other` in it is everything but PARTS: tags, fingerprints. `gc_frees` is what a run of
    gc would free now; `damage` names the damaged tag that stops gc, if there is one.
    """

    dataset: str
    bytes: int
    versions: list[VersionStatus]
    parts: dict[str, int]
    gc_frees: int
    damage: str | None


def measure(store: Store, policy: Policy) -> DatasetUsage:
    """Return what uses the space of a dataset, and what gc would free; changes nothing.

    Args:
        store: the dataset's store.
        policy: that of the run of gc.

    Raises:
        StoreError: there is no such dataset, or the store can't be read.
    """
    tags_of: dict[str, list[str]] = {}
    damage, gc_frees = None, 0
    try:
        tags_of, gc_frees = tagged_versions(store), collect(store, policy).bytes
    except FormatError as error:
        damage = str(error)
    files = store.files_below("")
    parts: Counter[str] = Counter(dict.fromkeys([*PARTS.values(), "other"], 0))
    for path, file in files.items():
        parts[next((part for folder, part in PARTS.items() if path.startswith(f"{folder}/")), "other")] += (
            file.num_bytes
        )
    return DatasetUsage(
        dataset=str(store.root).rpartition("/")[2],
        bytes=parts.total(),
        versions=survey(tags_of, files, policy),
        parts=dict(parts),
        gc_frees=gc_frees,
        damage=damage,
    )
