"""Find the documents of a text, a content or a source row in a version, or why there are none.

outcomes      what a lookup returns
tables        the document tables of a version: by key, or row by row
known_spec    the spec that says where the sources are
contents      by content and by text
source_rows   reads a row of a source again
rows          by path and row
"""
