"""Files of tokens that another trainer's tools made: a document is its ids, without those that mark its begin and end.

Each format is a module: what is in a file, and where its documents are.
"""

from __future__ import annotations

from importlib import import_module

from tokenloom.tasks.sources.base import Options
from tokenloom.tasks.sources.reader import SourceReader


def make_reader(options: Options) -> SourceReader:
    """Return the reader of the files of a `format`."""
    module = import_module(f"tokenloom.tasks.sources.tokens.{options['format']}")
    reader: SourceReader = module.Format(options)
    return reader
