"""Kinds of sources and formats of tokens: each is a class (see SourceReader), imported on first use."""

from __future__ import annotations

from importlib import import_module

from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, Rows
from tokenloom.tasks.sources.reader import SourceReader

__all__ = ["FileRange", "Options", "PartitionRange", "Rows", "SourceReader", "make_reader"]

_READERS = {  # the class that reads a kind; of another kind, the class Reader of the module with its name
    "jsonl": "tokenloom.tasks.sources.records.JsonReader",
    "csv": "tokenloom.tasks.sources.records.CsvReader",
    "text": "tokenloom.tasks.sources.records.TextReader",
    "arrayrecord": "tokenloom.tasks.sources.records.ArrayRecordReader",
    "huggingface": "tokenloom.tasks.sources.hugging_face.Reader",
}
_TOKEN_READERS = {  # format of the kind tokens -> the class that reads it
    "megatron": "tokenloom.tasks.sources.token_formats.Megatron",
    "olmo": "tokenloom.tasks.sources.token_formats.Olmo",
    "llmc": "tokenloom.tasks.sources.token_formats.Llmc",
    "nanogpt": "tokenloom.tasks.sources.token_formats.NanoGpt",
    "datatrove": "tokenloom.tasks.sources.token_formats.Datatrove",
    "huggingface": "tokenloom.tasks.sources.hugging_face.TokenRows",
}


def make_reader(options: Options) -> SourceReader:
    """Return the reader of a source.

    Args:
        options: `kind`, and how a file is read, such as the text column.
    """
    kind = options["kind"]
    by_name = _READERS.get(kind, f"tokenloom.tasks.sources.{kind}.Reader")
    module, _, name = (_TOKEN_READERS[options["format"]] if kind == "tokens" else by_name).rpartition(".")
    reader: SourceReader = getattr(import_module(module), name)(options)
    return reader
