"""Kinds of sources; each is one module with a `Reader` (see base.py), imported when first used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tokenloom.tasks.sources.base import PartitionRange, Rows, SourceReader

__all__ = ["PartitionRange", "Rows", "SourceReader", "make_reader"]

_MODULES = {
    "parquet": "tokenloom.tasks.sources.parquet",
    "jsonl": "tokenloom.tasks.sources.jsonl",
    "csv": "tokenloom.tasks.sources.csv_rows",
    "text": "tokenloom.tasks.sources.text",
    "arrow": "tokenloom.tasks.sources.arrow",
    "arrayrecord": "tokenloom.tasks.sources.array_record",
    "huggingface": "tokenloom.tasks.sources.hugging_face",
}


def make_reader(options: Mapping[str, Any]) -> SourceReader:
    """Return the reader of a kind of source.

    Args:
        options: `kind` and what decides how a file is read, such as the text column.
    """
    reader: SourceReader = import_module(_MODULES[options["kind"]]).Reader(options)
    return reader
