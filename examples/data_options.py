"""The options that all examples share: which samples they train and evaluate on. The defaults fit any dataset."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from typing import Any

from tokenloom import TokenDataset
from tokenloom.storage.packing.packings import PACKINGS

_LENGTHS = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_SHORT = 32  # a split that needs a shorter seq_len is not evaluated


@dataclass(frozen=True)
class DataOptions:
    """Which samples an example reads.

    Args:
        seq_len: tokens in a sample; None for 512, or for 256, 128, ... if a split has no sample of 512.
        packing: see TokenDataset; "concat" takes documents of any length.
        batch_size: samples in a batch.
        evaluation_batches: how many batches an evaluation takes, at most; None for the whole split.
    """

    seq_len: int | None = None
    packing: str = "concat"
    batch_size: int = 8
    evaluation_batches: int | None = 8

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Add the dataset and the options to a command line."""
        parser.add_argument("reference", help="STORE/DATASET@TAG_OR_VERSION; name a version if the tag can move")
        parser.add_argument("--seq-len", type=_positive, help="tokens in a sample (default: 512, or what fits)")
        parser.add_argument("--packing", default=cls.packing, choices=PACKINGS, help=f"(default: {cls.packing})")
        parser.add_argument("--batch-size", type=_positive, default=cls.batch_size, help=f"(default: {cls.batch_size})")
        few = cls.evaluation_batches
        parser.add_argument("--evaluation-batches", type=_positive, default=few, help=f"at most (default: {few})")

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> DataOptions:
        """Return the options that were given on the command line."""
        return cls(arguments.seq_len, arguments.packing, arguments.batch_size, arguments.evaluation_batches)

    def open(self, reference: str, *others: str, **options: Any) -> tuple[TokenDataset, list[TokenDataset | None]]:
        """Return the split `train` and others, with the longest seq_len of which each has a sample.

        A split that is missing or has no samples is None, with a UserWarning that says why.

        Args:
            reference: STORE/DATASET@TAG_OR_VERSION.
            others: splits to evaluate on.
            options: of TokenDataset.

        Raises ValueError if `train` has no samples.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*: no samples:", UserWarning)
            for seq_len in [self.seq_len] if self.seq_len else _LENGTHS:
                train = TokenDataset(reference, "train", seq_len, packing=self.packing, **options)
                there = [split for split in others if split in train.manifest["splits"]]
                found = {s: TokenDataset(reference, s, seq_len, packing=self.packing, **options) for s in there}
                is_for_all = all(len(data) or not data.num_tokens for data in found.values())
                if len(train) and (is_for_all or seq_len <= _SHORT):
                    break
        if not len(train):
            raise ValueError(train.why_empty())
        for split in others:
            if split not in found:
                warnings.warn(f"{train.reference}: no split {split!r}, so it is not evaluated", stacklevel=2)
            elif not len(found[split]):
                warnings.warn(f"not evaluated: {found.pop(split).why_empty()}", stacklevel=2)
        return train, [found.get(split) for split in others]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


DEFAULTS = DataOptions()
