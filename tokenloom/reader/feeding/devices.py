"""Which feed serves a device."""

from __future__ import annotations

import torch

from tokenloom.reader.feeding.cuda_feed import CudaFeed
from tokenloom.reader.feeding.feed import Feed
from tokenloom.reader.feeding.host_feed import HostFeed
from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.batch_format import BatchFormat


def make_feed(
    form: BatchFormat, batch_size: int, chunk_batches: int, prefetch: int, device: torch.device, times: PhaseTimes
) -> Feed:
    """Return the feed of a device, for chunks of at most `chunk_batches` batches and `prefetch` batches ahead."""
    if device.type == "cuda":
        return CudaFeed(form, batch_size, device, times)
    num_chunks = -(-prefetch // chunk_batches) + 3  # and one that is being made, one taken and one in use
    return HostFeed(form, batch_size, chunk_batches, num_chunks, device, times)
