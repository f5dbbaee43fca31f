"""The report of a version: one page of HTML with its figures, made from the store alone.

`collect` reads the figures, `charts` draws them, `page` puts them on a page and keeps it in the store.
"""
