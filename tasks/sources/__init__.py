"""Kinds of sources: each is a module with a `Reader` (see base.py), imported on first use."""

from __future__ import annotations

from importlib import import_module

from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, Rows, SourceReader

__all__ = ["FileRange", "Options", "PartitionRange", "Rows", "SourceReader", "make_reader"]

_MODULES = {
    "parquet": "tokenloom.tasks.sources.parquet",
    "jsonl": "tokenloom.tasks.sources.jsonl",
    "csv": "tokenloom.tasks.sources.csv_rows",
    "text": "tokenloom.tasks.sources.text",
    "arrow": "tokenloom.tasks.sources.arrow",
    "arrayrecord": "tokenloom.tasks.sources.array_record",
    "huggingface": "tokenloom.tasks.sources.hugging_face",
    "tokens": "tokenloom.tasks.sources.tokens.reader",
}


def make_reader(options: Options) -> SourceReader:
    """Return the reader of a source.

    Args:
        options: `kind`, and how a file is read, such as the text column.
    """
    reader: SourceReader = import_module(_MODULES[options["kind"]]).Reader(options)
    return reader
