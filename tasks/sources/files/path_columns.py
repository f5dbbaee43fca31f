"""Columns that the folders of a path name, as Hive and Spark write them: `year=2021/lang=en/part-0.parquet`.

    ["year=2021/a.jsonl", "year=2022/b.jsonl"] -> [{"year": (2021, True)}, {"year": (2022, True)}]

They are found below the root of a source, so that they do not depend on where the files are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from urllib.parse import unquote

_FOLDER = re.compile(r"([^=/]+)=([^/]*)/")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NULL = "__HIVE_DEFAULT_PARTITION__"

Value = tuple[str | int | None, bool]


def path_columns(paths: Sequence[str], wanted: Collection[str]) -> list[dict[str, Value]]:
    """Return the columns of each path, without those that nothing reads: the value, and whether it is an integer.

    A column is of integers if every value of it is written as one, else of texts. Names and values are URL-decoded.

    Args:
        paths: of all files of a source, relative to its root.
        wanted: the columns that the source's spec names.
    """
    found = [{unquote(key): unquote(value) for key, value in _FOLDER.findall(path)} for path in paths]
    values: dict[str, set[str]] = {}
    for columns in found:
        for key, value in columns.items():
            values.setdefault(key, set()).add(value)
    integers = {key for key in values if all(_INTEGER.fullmatch(value) for value in values[key] - {_NULL})}
    return [{key: _value(columns[key], key in integers) for key in columns if key in wanted} for columns in found]


def _value(text: str, is_integer: bool) -> Value:
    return (None if text == _NULL else int(text) if is_integer else text), is_integer
