"""Find the documents of a text, a content or a source row in a version, or why there are none.

contents      what a lookup returns; by content and by text
source_rows   the spec that says where the sources are; reads a row of a source again
rows          by path and row
"""
