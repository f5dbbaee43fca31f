"""Rows to documents: the rules of the spec, excluded contents, and the quarantine of bad rows."""
