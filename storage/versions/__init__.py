"""Versions, the tags that name them, and the records that a build keeps beside them."""
