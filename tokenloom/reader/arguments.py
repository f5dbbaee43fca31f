"""Arguments: their checks, whose messages name the argument, the rule and the value; and options that are passed on."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, SupportsIndex, TypedDict

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from tokenloom.storage.cache.shard_cache import ShardCache

DEFAULT_CHARS = 300  # characters of a document's text that a trace shows


def checked_int(name: str, value: SupportsIndex, minimum: int = 0, end: int = 2**63) -> int:
    """Return an integer of Python, numpy or torch as an int.

    Raises:
        TypeError: the value is not an integer.
        ValueError: the value is not in [minimum, end).
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, not {value!r}") from error
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")
    if number >= end:
        raise ValueError(f"{name} must be below {end:,}, not {value}")
    return number


def checked_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return `value`; raise ValueError if it is not one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def torch_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the device of torch that a name means, or None for "numpy": arrays, which need no torch.

    Raises RuntimeError, of torch, if it has no such device, ModuleNotFoundError if torch is not installed.
    """
    if device == "numpy":
        return None
    try:
        import torch
    except ModuleNotFoundError as error:
        message = 'tensors need torch: pip install torch, or pass device="numpy" for batches of numpy arrays'
        raise ModuleNotFoundError(message, name="torch") from error
    return torch.device("cpu" if device is None else device)


class DatasetOptions(TypedDict, total=False):
    """The keyword arguments of TokenDataset."""

    packing: str
    labels: str
    fields: Sequence[str]
    mask_documents: bool | None
    learn: str | Collection[str]
    overlong: str | None
    pad_documents: int | None
    cu_seqlens_length: int | None
    max_open_shards: int
    verify: str
    access: str
    cache: ShardCache | None
    part: Sequence[float] | None


class OrderOptions(TypedDict, total=False):
    """The arguments of TokenLoader that determine the order."""

    order: str
    seed: int
    lanes: int | None


class _SharedOptions(TypedDict, total=False):
    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    dims: Sequence[str] | None
    drop_last: bool
    num_epochs: int | None


class StreamOptions(OrderOptions, _SharedOptions, total=False):
    """The keyword arguments of SampleStream."""

    batch_size: int | None
    start: int


class ResumeOptions(_SharedOptions, total=False):
    """The keyword arguments of TokenLoader.from_state."""

    device: str | int | torch.device | None
    prefetch: int | None
    io_threads: int
    compare_ranks: float | None


class LoaderOptions(OrderOptions, ResumeOptions, total=False):
    """The keyword arguments of TokenLoader."""
