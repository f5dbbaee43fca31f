"""The class of a token: one byte that says which part of a conversation it is.

docs/reference/format.md describes its bits. A version with conversations has a byte for each token in the `.mask` files
beside its shards. A policy says of each of the 256 classes whether a model learns such a token.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

TEMPLATE, PLAIN_TEXT, SYSTEM, DEVELOPER, USER, ASSISTANT, REASONING, TOOL_CALL, TOOL_OUTPUT = range(9)
ROLES = ("template", "text", "system", "developer", "user", "assistant", "reasoning", "tool_call", "tool_output")
ROLE_BITS = 0b1111
ENDS_TURN = 1 << 4  # ends a turn of the assistant
LAST_TURN = 1 << 5  # in the last turn of the assistant
BEGINS = 1 << 6  # the first token of a conversation, which no context precedes
MAY_LEARN = 1 << 7  # not of a message that is kept out of the loss
TEXT_CLASS = PLAIN_TEXT | MAY_LEARN  # the tokens of plain text have it
#: Of a token that was imported with a mask, by whether that says it is a target. A mask has no turns, so the policies
#: "assistant" and "last" both give it again.
MASK_CLASSES = np.array([USER | MAY_LEARN, ASSISTANT | LAST_TURN | MAY_LEARN], np.uint8)

POLICIES = ("assistant", "last", "all")
_LEARNED = {"text", "assistant", "reasoning", "tool_call"}
#: the policies that are sets of roles, by these roles
POLICY_OF = {frozenset(_LEARNED): "assistant", frozenset(ROLES): "all"}


def parse_policy(text: str) -> str | list[str]:
    """Return the policy that a text names: one of POLICIES, or roles that commas separate; see learned_classes."""
    return text if text in POLICIES else [name.strip() for name in text.split(",")]


def learned_classes(learn: str | Collection[str]) -> NDArray[np.bool_]:
    """Return whether a token of each class is a target, (256,).

    Args:
        learn: "assistant": plain text, and what the assistant writes; "last": of conversations, only the last turn of
            the assistant; "all": every token except those of messages that are kept out; or names of ROLES.

    Raises ValueError if it is none of these.
    """
    classes = np.arange(256)
    may: NDArray[np.bool_] = (classes & MAY_LEARN > 0) & (classes & BEGINS == 0)
    if learn == "all":
        return may
    names = _LEARNED if isinstance(learn, str) else set(learn) if isinstance(learn, Collection) else set()
    if (isinstance(learn, str) and learn not in ("assistant", "last")) or not names or names - set(ROLES):
        raise ValueError(f'learn is "assistant", "last", "all" or a list of roles ({", ".join(ROLES)}), not {learn!r}')
    chosen: NDArray[np.bool_] = may & np.isin(classes & ROLE_BITS, [ROLES.index(name) for name in names])
    if learn == "last":
        chosen &= (classes & LAST_TURN > 0) | (classes & ROLE_BITS == PLAIN_TEXT)
    return chosen
