"""The order of samples: which sample stands at each position of the endless stream. docs/order.md shows it."""

from __future__ import annotations

from tokenloom.reader.order.epochs import MAX_SAMPLES, ORDER_VERSION, ORDERS, Order, epoch_keys, permute

__all__ = ["MAX_SAMPLES", "ORDERS", "ORDER_VERSION", "Order", "epoch_keys", "permute"]
