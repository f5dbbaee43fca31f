"""All packings by name, and what each does to a shard; docs/guides/extending.md adds one."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.packing.base import Concat, Document, DocumentPadded, Packing, ShardPlan
from tokenloom.storage.packing.best_fit import OVERLONG, BestFit

PACKINGS: Mapping[str, Packing] = {
    packing.name: packing for packing in (Concat(), Document(), DocumentPadded(), *map(BestFit, OVERLONG))
}
#: the names of "best_fit" with its options, such as "best_fit_drop_pad8"
_BEST_FIT = re.compile(r"best_fit(?:_(drop|keep_start))?(?:_pad([2-9]|[1-9][0-9]{1,8}))?")


def packing_name(packing: str, overlong: str | None, pad_documents: int | None = None) -> str:
    """Return the name of a packing with these options: "best_fit", "drop", 8 -> "best_fit_drop_pad8".

    Raises ValueError if an option is out of range, or of another packing than "best_fit". None changes nothing.
    """
    if overlong not in (None, *OVERLONG):
        raise ValueError(f"overlong: one of {', '.join(OVERLONG)}, not {overlong!r}")
    found = _BEST_FIT.fullmatch(packing)
    old_overlong, old_multiple = found.groups() if found else (None, None)
    if overlong is not None and (not found or old_overlong not in (None, overlong)):
        raise ValueError(f"overlong={overlong!r} is of the packing best_fit, not of {packing!r}; omit it")
    if pad_documents is not None and (not found or old_multiple not in (None, str(pad_documents))):
        raise ValueError(f"pad_documents={pad_documents} is of the packing best_fit, not of {packing!r}")
    if not found:
        return packing
    return BestFit(overlong or old_overlong or "split", pad_documents or int(old_multiple or 1)).name


def packing_named(name: str) -> Packing:
    """Return a packing by its full name, see packing_name; raise ValueError if there is none."""
    if name not in PACKINGS and (found := _BEST_FIT.fullmatch(name)):
        return BestFit(found[1] or "split", int(found[2] or 1))
    if name not in PACKINGS:
        raise ValueError(f"packing: one of {', '.join(PACKINGS)}, not {name!r}")
    return PACKINGS[name]


def sample_key(packing: str, seq_len: int) -> str:
    """Return how messages show a packing and T: "best_fit/2048"."""
    return f"{packing}/{seq_len}"


def num_samples(packing: str, seq_len: int, num_tokens: int, offsets: UInt64s | None = None) -> int:
    """Return how many samples a shard has.

    Args:
        packing: the full name of one.
        seq_len: T, in [1, 2**31).
        num_tokens: the number of the shard's tokens.
        offsets: (num_documents + 1,) of the shard; "concat" needs none.

    Raises:
        ValueError: an argument out of range, or offsets that are missing or contradict `num_tokens`.
    """
    found = check_packing(packing, seq_len)
    return found.count(seq_len, _checked_offsets(found, num_tokens, offsets))


def plan_shard(packing: str, seq_len: int, num_tokens: int, offsets: UInt64s | None = None) -> ShardPlan:
    """Return where the samples of a shard are; see num_samples for arguments and errors."""
    found = check_packing(packing, seq_len)
    return found.plan(seq_len, _checked_offsets(found, num_tokens, offsets))


def check_packing(packing: str, seq_len: int) -> Packing:
    """Return a packing; raise ValueError if there is none of this name, or `seq_len` is out of its range."""
    found = packing_named(packing)
    if not 1 <= operator.index(seq_len) < 2**31:
        raise ValueError(f"seq_len must be in [1, 2**31), not {seq_len}")
    if seq_len % found.pad_documents:
        raise ValueError(
            f"{packing} pads documents: seq_len must be a multiple of {found.pad_documents}, not {seq_len}"
        )
    return found


def _checked_offsets(packing: Packing, num_tokens: int, offsets: UInt64s | None) -> UInt64s:
    """Return what Packing.plan needs; raise ValueError if offsets are missing or contradict the shard's tokens."""
    if offsets is None and packing.follows_documents:
        raise ValueError(f"{packing.name} needs the document offsets")
    if offsets is None:
        return np.array([0, num_tokens], np.uint64)
    if not len(offsets) or (int(offsets[0]), int(offsets[-1])) != (0, num_tokens):
        raise ValueError(f"the document offsets do not run from 0 to the shard's {num_tokens} tokens")
    return offsets


@dataclass(frozen=True)
class PackingShares:
    """The padding and the cut documents of a packing, in one shard or summed over several.

    A document is cut if no sample holds all of its tokens. A token that two samples share counts once.
    """

    num_samples: int
    padding_tokens: int
    slot_tokens: int  # num_samples * (T + 1)
    cut_documents: int
    num_documents: int

    @property
    def padding_share(self) -> float:
        """Padding in all slots, in [0, 1]."""
        return self.padding_tokens / max(1, self.slot_tokens)

    @property
    def cut_share(self) -> float:
        """Cut documents in all documents, in [0, 1]."""
        return self.cut_documents / max(1, self.num_documents)

    def __add__(self, other: PackingShares) -> PackingShares:
        return PackingShares(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def shares_of(packing: str, seq_len: int, num_tokens: int, offsets: UInt64s) -> PackingShares:
    """Return the shares of a packing in a shard, in 24 bytes for each piece; see num_samples for arguments and errors.

    A document is whole if one piece holds all of it: of those that begin with it or before, the one that reaches
    furthest.
    """
    plan = plan_shard(packing, seq_len, num_tokens, offsets)
    _, starts, lengths = plan.pieces(np.arange(len(plan)))
    by_start = np.argsort(starts, kind="stable")
    starts, ends = starts[by_start], (starts + lengths)[by_start]
    reach = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(ends)])  # by the pieces before
    firsts, lasts = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    is_cut = (lasts > firsts) & (reach[np.searchsorted(starts, firsts, side="right")] < lasts)
    slot_tokens = len(plan) * (seq_len + 1)
    return PackingShares(
        num_samples=len(plan),
        padding_tokens=slot_tokens - int(lengths.sum()),
        slot_tokens=slot_tokens,
        cut_documents=int(is_cut.sum()),
        num_documents=len(firsts),
    )
