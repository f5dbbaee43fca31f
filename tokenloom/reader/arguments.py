"""Checks of arguments; a message names the argument, the rule and the value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, SupportsIndex, TypeVar

_Self = TypeVar("_Self")
_Parameters = ParamSpec("_Parameters")


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


def refuses_dataloader_arguments(
    init: Callable[Concatenate[_Self, _Parameters], None],
) -> Callable[Concatenate[_Self, _Parameters], None]:
    """Return an `__init__` whose TypeError for an argument of torch's DataLoader says what takes its place."""
    own = signature(init).parameters.keys()
    where = "this loader: " if "batch_size" in own else "a dataset: in TokenLoader(dataset, batch_size), "

    @wraps(init)
    def checked(self: _Self, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        for name in kwargs.keys() & _INSTEAD.keys() - own:
            raise TypeError(f"{name} is an argument of torch's DataLoader, not of {where}{_INSTEAD[name]}")
        init(self, *args, **kwargs)

    return checked
