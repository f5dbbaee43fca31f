"""Feeding a training process: batches as tensors, made ahead of need, and timed."""
