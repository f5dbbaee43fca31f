"""Take the text or conversation and the id of a row from Python values, and decide whether the filter keeps the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.errors import BadRow, message_of
from tokenloom.spec.row_filter import Comparison, Members, columns_of, holds, parse_filter
from tokenloom.spec.values import WHOLE_ROW
from tokenloom.tasks.sources.base import Options
from tokenloom.tasks.sources.rows.conversations import ROLES, Conversations, instead_of_text
from tokenloom.tasks.sources.rows.decoding import Decoding
from tokenloom.tasks.sources.rows.literals import compare
from tokenloom.tasks.sources.rows.path_columns import OPTION
from tokenloom.tasks.sources.rows.shown_names import json_type, shown_names

_MISSING = object()


def is_conversation(value: object) -> bool:
    """Return whether a row's value is a list of messages, as chat datasets have them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and ROLES & item.keys() for item in value)
    )


class Fields:
    """Takes the text and id of rows, and decides which rows the filter keeps.

    Args:
        options: see SourceReader; if `text` is None or ".", the row itself is its text, unless there are `messages`.
        parses_numbers: whether all values are text, as in CSV; a filter's numbers are then compared as numbers.
    """

    def __init__(self, options: Options, *, parses_numbers: bool = False) -> None:
        self._conversations = Conversations(options) if options.get("messages") is not None else None
        named_text = options["text"] if self._conversations is None else self._conversations.key
        self._text_key: str | None = None if named_text == WHOLE_ROW else named_text
        self._id_key: str | None = options.get("id")
        self.has_id = self._id_key is not None
        self._filter = parse_filter(options["filter"]) if options.get("filter") else None
        self._parses_numbers = parses_numbers
        self.path_columns: dict[str, str | None] = options.get(OPTION, {})
        named = [*(columns_of(self._filter) if self._filter else []), *([self._id_key] if self._id_key else [])]
        named += [self._conversations.tools] if self._conversations and self._conversations.names_tools else []
        self.missing_keys = set(named)  # keys that no row has had so far
        self.decoding = Decoding(options)

    def keeps(self, place: str, row: int, value: Any) -> bool:
        """Return whether the filter keeps a row; raises BadRow if a value can't be compared."""
        return self._filter is None or holds(
            self._filter, lambda comparison: self._compare(place, row, value, comparison)
        )

    def text(self, place: str, row: int, value: Any) -> str | None:
        """Return the text of a row, None if it is null; raises BadRow if the row has no text, or no conversation."""
        text = value if self._text_key is None else self._pick(place, row, value, self._text_key)
        if self._conversations is not None:
            tools = self._found(value, self._conversations.tools)
            return self._conversations.text(place, row, text, None if tools is _MISSING else tools, value)
        if isinstance(text, list) and all(item is None or isinstance(item, str) for item in text):
            text = "\n".join(item for item in text if item is not None)
        if text is not None and not isinstance(text, str):
            what = "it" if self._text_key is None else repr(self._text_key)
            if is_conversation(text):
                step = instead_of_text(self._text_key or WHOLE_ROW)
                raise BadRow(f"{place}: {what} is a conversation; {step}", row, "not_text")
            raise BadRow(f"{place}: {what} is {json_type(text)}, not text; repair the row", row, "not_text")
        return None if text is None else self.decoding.clean(place, row, text, "text")

    def id(self, place: str, row: int, value: Any) -> str | None:
        """Return the id of a row as text, None if it has none; raises BadRow if it is not a string or an integer."""
        if self._id_key is None:
            return None
        found = self._found(value, self._id_key)
        if found is _MISSING or found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, str | int):
            kind = json_type(found)
            raise BadRow(
                f"{place}: id {self._id_key!r} is {kind}, not a string or an integer; repair the row", row, "bad_id"
            )
        return self.decoding.clean(place, row, str(found), "id")

    def _found(self, value: Any, key: str) -> Any:
        found = _look_up(value, key)
        if found is _MISSING:
            found = self.path_columns.get(key, _MISSING)
        if found is not _MISSING:
            self.missing_keys.discard(key)
        return found

    def _pick(self, place: str, row: int, value: Any, key: str) -> Any:
        found = self._found(value, key)
        if found is not _MISSING:
            return found
        if not isinstance(value, Mapping):
            step = f"set text: {WHOLE_ROW} if each row is a text" if isinstance(value, str) else "repair the row"
            if is_conversation(value):
                step = f"set messages: {WHOLE_ROW}, since the row is a conversation"
            message = f"{place}: {json_type(value)} where an object with the key {key!r} is expected; {step}"
            raise BadRow(message, row, "missing_key")
        keys = shown_names(value)
        option = "text" if self._conversations is None else "messages"
        raise BadRow(f"{place}: no key {key!r}; its keys are: {keys}. Set {option}: to one of them", row, "missing_key")

    def _compare(self, place: str, row: int, value: Any, comparison: Comparison | Members) -> bool:
        found = self._found(value, comparison.column)
        if found is _MISSING:
            return False
        is_of_path = comparison.column in self.path_columns and _look_up(value, comparison.column) is _MISSING
        try:
            return compare(found, comparison, parses_numbers=self._parses_numbers or is_of_path)
        except ValueError as error:
            raise BadRow(
                f"{place}: {message_of(error)}; repair the row or check the filter", row, "bad_filter"
            ) from error


def _look_up(value: Any, key: str) -> Any:
    """Return the value of a dotted key; a key that itself contains the dots comes first."""
    if isinstance(value, Mapping) and key in value:
        return value[key]
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
        if value is None:  # everything under a null is null, as in parquet
            return None
    return value
