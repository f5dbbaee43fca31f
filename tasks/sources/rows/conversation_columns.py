"""Make the texts of conversations from columns of Arrow record batches: lists of structs, or JSON text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.chat.layouts import PAIR_KEYS, PAIRS, ROW_KEYS
from tokenloom.errors import BadRow, InputError
from tokenloom.spec.values import WHOLE_ROW
from tokenloom.tasks.sources.base import Options
from tokenloom.tasks.sources.rows.column_names import field_type, has_column, is_list, value_type
from tokenloom.tasks.sources.rows.conversations import SYSTEM, Conversations
from tokenloom.tasks.sources.rows.shown_names import shown_names


class ConversationColumns:
    """Makes the texts of conversations from columns.

    Args:
        options: see SourceReader, and Conversations.
    """

    def __init__(self, options: Options) -> None:
        self._conversations = Conversations(options)

    def names(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns that hold conversations, their tools and system prompts.

        Args:
            schema: a file's schema.
            url: for messages.

        Raises InputError if one is missing or of a wrong type, or if the rows are preference pairs.
        """
        named = self._conversations
        if named.refuses_pairs and all(key in schema.names for key in PAIR_KEYS):
            raise InputError(f"{url}, each row: {PAIRS}")
        names = [named.key]
        if named.key == WHOLE_ROW:
            names = [key for key in ROW_KEYS if key in schema.names]
        elif not _may_hold(kind := value_type(field_type(schema, named.key, url, "messages"))):
            raise InputError(
                f"{url}: column {named.key!r} is {kind}; a column of conversations holds lists of structs, or JSON "
                "text. Set messages: to such a column"
            )
        if not names:
            raise InputError(
                f"{url}: no column of a conversation ({', '.join(ROW_KEYS)}); its columns are: "
                f"{shown_names(schema.names)}. Set messages: to one of them"
            )
        if named.names_tools or has_column(schema, named.tools):
            field_type(schema, named.tools, url, "tools")  # raises if there is no such column, or two
            names.append(named.tools)
        return [*names, *[SYSTEM] * (SYSTEM in schema.names and SYSTEM not in names)]

    def texts(
        self, columns: dict[str, pa.Array], numbers: NDArray[np.uint64], url: str, bad: dict[int, BadRow]
    ) -> pa.Array:
        """Return the texts of conversations, (n,) large_string; null, and noted in `bad`, for those that are none.

        Args:
            columns: the columns that `names` names, of n rows.
            numbers: (n,) the numbers of the rows.
            url: for messages.
            bad: rows that are bad already, whose texts do not matter.
        """
        named, texts = self._conversations, []
        values = {name: _values(column, numbers, url, bad) for name, column in columns.items()}
        for row, *found in zip(numbers.tolist(), *values.values(), strict=True):
            parts = dict(zip(values, found, strict=True))
            value = parts if named.key == WHOLE_ROW else parts[named.key]
            try:
                text = named.text(f"{url}, row {row}", row, value, parts.get(named.tools), parts)
            except BadRow as error:
                text, bad[row] = None, error.changed()
            texts.append(text)
        return pa.array(texts, pa.large_string())


def _may_hold(kind: pa.DataType) -> bool:
    types = pa.types
    if is_list(kind):
        return bool(types.is_struct(kind.value_type))
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in (*texts, types.is_binary_view, types.is_struct, types.is_null))


def _values(column: pa.Array, numbers: NDArray[np.uint64], url: str, bad: dict[int, BadRow]) -> list[Any]:
    """Return values as Python has them, n; None, and noted in `bad`, for those that are not UTF-8."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_value(one, row, url, bad) for one, row in zip(column, numbers.tolist(), strict=True)]


def _value(value: pa.Scalar, row: int, url: str, bad: dict[int, BadRow]) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        problem = "invalid UTF-8 in its conversation; repair the file"
        bad[row] = BadRow(f"{url}, row {row}: {problem}", row, "invalid_utf8")
        return None
