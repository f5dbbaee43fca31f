"""Examples of training on a version. Each file runs on its own: `python examples/train_small.py STORE/DATASET`."""
