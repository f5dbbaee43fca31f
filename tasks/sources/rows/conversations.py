"""Make the text of a row that holds a conversation: canonical JSON of its normalized form.

What the row holds is normalized here, before anything is counted or limited, so that a conversation is the same from
every kind of source.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from tokenloom.chat.conversation import NOT_CONVERSATION, canonical
from tokenloom.chat.layouts import PAIR_KEYS, normalized, refuse_pair
from tokenloom.chat.messages import refuse_media
from tokenloom.errors import BadConversation, BadRow
from tokenloom.tasks.sources.base import Options
from tokenloom.tasks.sources.rows.decoding import Decoding

WANTED = "wanted_rows"  # in options: the numbers of rows, where the conversations of others are not needed
SYSTEM = "system"  # the key of a system prompt beside a conversation
_TOOLS = "tools"  # the key of the tools where the source names none
ROLES = {"role", "from"}  # each message of a conversation has one of these keys


def instead_of_text(key: str) -> str:
    """Return the next step where the `text` of a source is the key of conversations."""
    return f"set messages: {key} in place of text: {key}"


class Conversations:
    """Makes the texts of the conversations that a source names.

    Args:
        options: see SourceReader; without a `layout`, the texts are JSON of what the rows hold, to recognize it from.

    Attributes:
        key: the key or column of the conversations; "." if a row is one.
        tools: the key or column of their tools.
        names_tools: whether the source names it; otherwise rows need not have it.
    """

    def __init__(self, options: Options) -> None:
        self.key: str = options["messages"]
        self.tools: str = options.get("tools") or _TOOLS
        self.names_tools = options.get("tools") is not None
        self._layout: str | None = options.get("layout")
        self._wanted: Collection[int] | None = options.get(WANTED)
        self._decoding = Decoding(options)

    @property
    def refuses_pairs(self) -> bool:
        """Whether a row with both sides of a preference pair is refused; not if the source names one side."""
        return self.key.split(".")[0] not in PAIR_KEYS

    def text(self, place: str, row: int, value: Any, tools: Any, siblings: Any = None) -> str | None:
        """Return the text of a row, None if it has no conversation, or none that is needed.

        Args:
            place: how a message names the row.
            row: its number.
            value: its conversation.
            tools: its tools, None for none.
            siblings: the row, which may have other keys.

        Raises BadRow if the value is not a conversation.
        """
        if self._wanted is not None and row not in self._wanted:
            return None
        system = None
        try:
            if isinstance(siblings, Mapping):
                refuse_media("it", siblings)
                if self.refuses_pairs:
                    refuse_pair(siblings)
                system = siblings.get(SYSTEM)
            if value is None or value == "":  # CSV's null
                return None
            if self._layout is None:
                text = json.dumps(value, default=str)
            else:
                text = canonical(normalized(value, self._layout, tools, system))
        except BadConversation as error:
            raise BadRow(f"{place}: {error}", row, error.reason) from error
        except RecursionError as error:  # of the value as it is; a normalized one is limited
            raise BadRow(f"{place}: nested too deeply; repair the row", row, NOT_CONVERSATION) from error
        return self._decoding.clean(place, row, text, "conversation")
