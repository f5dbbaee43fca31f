"""Rows of sources: from raw values to texts and ids, one row at a time or in columns."""
