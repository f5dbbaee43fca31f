"""Retention: the deletion of versions that nothing keeps and of leftovers, and what uses the space."""
