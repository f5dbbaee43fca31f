"""The tasks of a verification, and the documents that a build encodes a second time."""
