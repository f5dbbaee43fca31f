"""Arguments: their checks, whose messages name the argument, the rule and the value; and options that are passed on."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
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

    Raises ValueError if torch or the machine has no such device, ModuleNotFoundError if torch is not installed.
    """
    if device == "numpy":
        return None
    try:
        import torch
    except ModuleNotFoundError as error:
        message = 'tensors need torch: pip install torch, or pass device="numpy" for batches of numpy arrays'
        raise ModuleNotFoundError(message, name="torch") from error
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(
            f'torch has no device {device!r}: "cuda" or "cuda:1" is a GPU, "mps" that of a Mac; "numpy" gives arrays'
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device}: torch finds no CUDA device on this machine")
    return found


_WORKERS = "threads make batches ahead: prefetch is how many, and io_threads read files"
_ORDER = 'order="block", "full" or "sequential", and seed, decide which sample comes when'
_PINNED = 'device="cuda" copies each batch from pinned memory'
#: What takes the place of arguments of torch's DataLoader.
_INSTEAD = (
    dict.fromkeys(["num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"], _WORKERS)
    | dict.fromkeys(["timeout", "worker_init_fn"], _WORKERS)
    | dict.fromkeys(["shuffle", "sampler", "batch_sampler", "generator", "in_order"], _ORDER)
    | dict.fromkeys(["pin_memory", "pin_memory_device"], _PINNED)
    | {"collate_fn": "samples have one length; `fields` of the dataset adds to a batch"}
    | dict.fromkeys(["batch_size", "drop_last"], "it means the same")
)


def refuse_others(others: Mapping[str, object], where: str) -> None:
    """Raise TypeError for arguments that there are not; for one of torch's DataLoader, it says what takes its place."""
    for name in others:
        if name in _INSTEAD:
            raise TypeError(f"{name} is an argument of torch's DataLoader, not of {where}{_INSTEAD[name]}")
        raise TypeError(f"got an unexpected keyword argument {name!r}")


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


class _RankOptions(TypedDict, total=False):
    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    dims: Sequence[str] | None


class StreamOptions(OrderOptions, _RankOptions, total=False):
    """The keyword arguments of SampleStream."""

    batch_size: int | None
    start: int
    drop_last: bool
    num_epochs: int | None


class _FeedOptions(_RankOptions, total=False):
    device: str | int | torch.device | None
    prefetch: int | None
    io_threads: int
    compare_ranks: float | None


class EvaluationOptions(OrderOptions, _FeedOptions, total=False):
    """The keyword arguments of EvaluationPass."""


class ResumeOptions(_FeedOptions, total=False):
    """The keyword arguments of TokenLoader.from_state."""

    drop_last: bool
    num_epochs: int | None
