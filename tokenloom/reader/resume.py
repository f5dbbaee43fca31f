"""Open the dataset or mixture that the state of a loader names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tokenloom.reader.dataset import DatasetOptions, TokenDataset
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.state import DatasetFingerprint, MixtureFingerprint, decode_state, is_mixture
from tokenloom.reader.streams import OrderOptions


def open_source(
    store: str | Mapping[str, str], state: object, options: DatasetOptions
) -> tuple[TokenDataset | Mixture, OrderOptions]:
    """Open the dataset or mixture that a state names.

    Args:
        store: the store of the dataset; for a mixture, one store or {member: store}.
        state: the state of a loader.
        options: those of TokenDataset that the state does not name.

    Returns:
        The dataset or mixture, and the order, seed and lanes for its loader.
    """
    stream = decode_state(state)["stream"]
    if is_mixture(stream):
        return _open_mixture(store, stream, options)
    named = cast(DatasetFingerprint, stream)
    return _open_dataset(str(store), named, options), _order_options(named, named["lanes"])


def _open_mixture(
    store: str | Mapping[str, str], stream: MixtureFingerprint, options: DatasetOptions
) -> tuple[Mixture, OrderOptions]:
    stores = {name: store if isinstance(store, str) else store[name] for name in stream["names"]}
    members = {name: _open_dataset(stores[name], stream["members"][name], options) for name in stream["names"]}
    (_, first), *later = _stages(stream)
    mixture = Mixture({name: (members[name], first[name]) for name in members}, later)
    return mixture, _order_options(stream["members"][stream["names"][0]], stream["lanes"])


def _stages(stream: MixtureFingerprint) -> list[tuple[int, dict[str, int]]]:
    stages = []
    for start, weights in stream["weights"]:
        assert isinstance(start, int) and isinstance(weights, list)  # decoded
        stages.append((start, dict(zip(stream["names"], weights, strict=True))))
    return stages


def _open_dataset(store: str, stream: DatasetFingerprint, options: DatasetOptions) -> TokenDataset:
    named: DatasetOptions = {
        "packing": stream["packing"],
        "labels": stream["labels"],
        "mask_documents": stream["mask_documents"],
    }
    reference = f"{store}/{stream['dataset']}@{stream['version']}"
    merged: DatasetOptions = {**named, **options}
    return TokenDataset(reference, stream["split"], stream["seq_len"], **merged)


def _order_options(stream: DatasetFingerprint, lanes: int | None) -> OrderOptions:
    return {"order": stream["order"], "seed": stream["seed"], "lanes": lanes}
