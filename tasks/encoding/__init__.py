"""Encode partitions into spills."""
