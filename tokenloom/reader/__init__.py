"""Read a published version in training.

dataset, mixture    what is read: TokenDataset, Mixture, and what a state names
loader, evaluation  batches for a training process: TokenLoader, EvaluationPass; iterable: for torch's DataLoader
order/              which sample is at each position of a stream
streams             the endless sequence of samples of a dataset or a mixture
shards/             from samples to rows of tokens
producer, feeding/  from rows to batches of tensors, ahead of need
ranks, state        which rank this process is, and where it is in the stream
masks, decoding     attention within documents; text again
"""

from __future__ import annotations

from tokenloom.reader.dataset import TokenDataset

__all__ = ["TokenDataset"]
