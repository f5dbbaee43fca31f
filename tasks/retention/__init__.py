"""Retention: which versions a policy keeps, the collection of the others and of leftovers, and what uses the space."""
