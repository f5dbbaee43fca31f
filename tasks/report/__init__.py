"""The report of a version: one page of HTML with its figures, made from the store alone.

`figures` reads them, `page` renders report.html with them; `catalogue` lists a store.
"""
