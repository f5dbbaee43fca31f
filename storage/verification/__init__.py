"""Checks of every byte of a version."""
