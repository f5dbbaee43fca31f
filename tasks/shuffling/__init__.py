"""Divide the key range of each split, and merge spills into shards."""
