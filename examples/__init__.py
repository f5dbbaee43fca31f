"""Examples of training on a version; each file runs alone: `python examples/train_small.py STORE/DATASET`."""
