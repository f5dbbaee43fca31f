"""Feeding a training process: rows become batches of tensors, ahead of need.

feed         what a feed is; host_feed, cuda_feed: batches in host memory, and on a CUDA device
devices      which feed serves a device
read_ahead   cold files, read before their rows are copied
prefetch     the background thread
timing       where the time goes
"""
