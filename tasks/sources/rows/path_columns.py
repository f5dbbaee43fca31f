"""Columns in the path of a file, as Hive and Spark write them: year=2021/lang=en/part-0.parquet.

A file's own column of the same name comes first. Values are text, and a filter's numbers are compared with the numbers
that they spell, as in CSV. So what a value means depends on its own path alone, not on the other files of the source.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from tokenloom.errors import InputError
from tokenloom.spec.row_filter import columns_of, parse_filter
from tokenloom.tasks.sources.base import Options

OPTION = "path_columns"  # the option of a file that maps columns to values
_NULL = "__HIVE_DEFAULT_PARTITION__"


def path_columns(path: str, options: Options) -> dict[str, Any]:
    """Return the option with the columns of a path that a source names as filter, id or text; {} if there are none.

    They decide how the file is read, so the names of its spills cover them.

    Args:
        path: relative to the root of the source.
        options: those of the source; the files of a Hugging Face source, which has a `split`, are read by the rules of
            the package, which has no such columns.

    Raises InputError for a value that is not UTF-8 in its URL encoding.
    """
    named = {options.get("id"), options.get("text")}
    named.update(columns_of(parse_filter(options["filter"])) if options.get("filter") else [])
    columns: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, mark, value = folder.partition("=")
        if mark and (name := _decoded(name, path)) in named:
            columns[name] = None if value == _NULL else _decoded(value, path)
    return {OPTION: columns} if columns and "split" not in options else {}


def _decoded(text: str, path: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {text!r} is not UTF-8 in its URL encoding; rename the folder") from error
