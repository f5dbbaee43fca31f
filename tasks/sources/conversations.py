"""Make the texts of conversations from columns: lists of structs, JSON text, or JSON text of whole rows.

What a row holds is normalized here, before anything is counted or limited, so that a conversation is the same from
every kind of source.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.chat.conversation import NOT_CONVERSATION, canonical
from tokenloom.chat.layouts import PAIR_KEYS, PAIRS, ROW_KEYS, normalized, refuse_pair
from tokenloom.chat.messages import refuse_media
from tokenloom.errors import BadConversation, BadRow, InputError
from tokenloom.spec.syntax import WHOLE_ROW
from tokenloom.tasks.sources.base import WANTED, BadValue, Options, PlaceOf
from tokenloom.tasks.sources.values import (
    LISTS,
    STRINGS,
    Decoding,
    field_type,
    has_column,
    look_up,
    parse_json,
    shown_names,
    value_at,
    value_type,
)

_SYSTEM = "system"  # the key of a system prompt beside a conversation
_TOOLS = "tools"  # the key of the tools where the source names none


class ConversationColumns:
    """Makes the texts of the conversations that a source names.

    Args:
        options: see SourceReader; without a `layout`, the texts are JSON of what the rows hold, to recognize it from.

    Attributes:
        missing_keys: the key of the tools if the source names it and no row of JSON has had it so far.
    """

    def __init__(self, options: Options) -> None:
        self._key: str = options["messages"]
        self._tools: str = options.get("tools") or _TOOLS
        self._names_tools = options.get("tools") is not None
        self.missing_keys = {self._tools} if self._names_tools else set[str]()
        self._refuses_pairs = self._key.split(".")[0] not in PAIR_KEYS  # a source may name one side of the pairs
        self._layout: str | None = options.get("layout")
        self._wanted: Collection[int] | None = options.get(WANTED)
        self._decoding = Decoding(options)

    def names(self, schema: pa.Schema, url: str) -> list[str]:
        """Return the dotted names of the columns that hold conversations, their tools and system prompts.

        Args:
            schema: a file's schema.
            url: for messages.

        Raises InputError if one is missing or of a wrong type, or if the rows are preference pairs.
        """
        if WHOLE_ROW in schema.names:
            return [WHOLE_ROW]
        if self._refuses_pairs and all(key in schema.names for key in PAIR_KEYS):
            raise InputError(f"{url}, each row: {PAIRS}")
        names = [self._key]
        if self._key == WHOLE_ROW:
            names = [key for key in ROW_KEYS if key in schema.names]
        elif not _may_hold(kind := value_type(field_type(schema, self._key, url, "messages"))):
            raise InputError(
                f"{url}: column {self._key!r} is {kind}; a column of conversations holds lists of structs, or JSON "
                "text. Set messages: to such a column"
            )
        if not names:
            raise InputError(
                f"{url}: no column of a conversation ({', '.join(ROW_KEYS)}); its columns are: "
                f"{shown_names(schema.names)}. Set messages: to one of them"
            )
        self.missing_keys = set()
        if self._names_tools or has_column(schema, self._tools):
            field_type(schema, self._tools, url, "tools")  # raises if there is no such column, or two
            names.append(self._tools)
        return [*names, *[_SYSTEM] * (_SYSTEM in schema.names and _SYSTEM not in names)]

    def texts(
        self, columns: dict[str, pa.Array], numbers: NDArray[np.uint64], place_of: PlaceOf, bad: dict[int, BadRow]
    ) -> pa.Array:
        """Return the texts of conversations, (n,) large_string; null, and noted in `bad`, for those that are none.

        Args:
            columns: the columns that `names` names, of n rows.
            numbers: (n,) the numbers of the rows.
            place_of: how a message names a row.
            bad: rows that are bad already, whose texts do not matter.
        """
        # the strings in a struct need not be UTF-8, so they are decoded one row at a time
        values = [one if pa.types.is_nested(one.type) else one.to_pylist() for one in columns.values()]
        texts: list[str | None] = []
        for row, *found in zip(numbers.tolist(), *values, strict=True):
            text = None
            if row not in bad and (self._wanted is None or row in self._wanted):
                try:
                    decoded = [value.as_py() if isinstance(value, pa.Scalar) else value for value in found]
                    text = self._text(dict(zip(columns, decoded, strict=True)))
                except UnicodeDecodeError:
                    problem = BadValue("invalid UTF-8 in its conversation; repair the file", "invalid_utf8")
                    bad[row] = problem.at(place_of(row), row)
                except BadValue as error:
                    bad[row] = error.at(place_of(row), row)
            texts.append(text)
        return pa.array(texts, pa.large_string())

    def _text(self, parts: dict[str, Any]) -> str | None:
        """Return the text of a row, None if it has no conversation; raises BadValue if it has something else."""
        row = parse_json(parts[WHOLE_ROW]) if WHOLE_ROW in parts else parts
        value = row if self._key == WHOLE_ROW else value_at(row, self._key, "messages")
        has_tools, tools = look_up(row, self._tools)
        if has_tools:
            self.missing_keys.discard(self._tools)
        system = None
        try:
            if isinstance(row, Mapping):
                refuse_media("it", row)
                if self._refuses_pairs:
                    refuse_pair(row)
                system = row.get(_SYSTEM)
            if value is None or value == "":  # CSV's null
                return None
            if self._layout is None:
                text = json.dumps(value, default=str)
            else:
                text = canonical(normalized(value, self._layout, tools, system))
        except BadConversation as error:
            raise BadValue(str(error), error.reason) from error
        except RecursionError as error:  # a value that is not normalized has no limit of depth
            raise BadValue("nested too deeply; repair the row", NOT_CONVERSATION) from error
        return self._decoding.clean(text, "conversation")


def _may_hold(kind: pa.DataType) -> bool:
    if isinstance(kind, LISTS):
        return bool(pa.types.is_struct(kind.value_type))
    return kind in STRINGS or pa.types.is_struct(kind) or pa.types.is_null(kind)
