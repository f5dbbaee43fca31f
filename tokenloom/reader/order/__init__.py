"""The order of samples: which sample is at each position of the endless stream. docs/concepts/order.md defines it.

epochs        the orders "block", "full" and "sequential", epoch after epoch
permutation   the keyed permutation that moves shards and samples
schedule      whose turn a position is, in a mixture of several datasets
steps         which positions a rank takes
"""

from __future__ import annotations

from tokenloom.reader.order.epochs import MAX_SAMPLES, ORDER_VERSION, ORDERS, Order, epoch_keys
from tokenloom.reader.order.permutation import permute, unpermute
from tokenloom.reader.order.schedule import Schedule
from tokenloom.reader.order.steps import Steps

__all__ = ["MAX_SAMPLES", "ORDERS", "ORDER_VERSION", "Order", "Schedule", "Steps", "epoch_keys", "permute", "unpermute"]
