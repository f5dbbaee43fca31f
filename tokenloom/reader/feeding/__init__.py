"""Feeding a training process: rows become batches of tensors, ahead of need.

host_feed    batches in host memory
cuda_feed    batches on a CUDA device
read_ahead   cold files, read before their rows are copied
prefetch     the background thread
timing       where the time goes
"""
