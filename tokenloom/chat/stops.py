"""The text with which a template ends a turn where no token of the tokenizer does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.chat.definition import ChatDefinition
from tokenloom.errors import BadConversation
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.wording import counted

_REPLY = "reply0"


def stop_as_text(definition: ChatDefinition, tokenizer: Tokenizer) -> str:
    """Return what ends a turn, and how many tokens it is, as a clause of a message; "" if a token ends it, or nothing.

    Example: "'<|im_end|>', which ends a turn in the template, is not a token of gpt2 but 7 ordinary tokens there".
    """
    from tokenloom.chat.template import ChatTemplate  # late: versions of texts need no Jinja

    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _REPLY}]
    try:
        _, reply, after = ChatTemplate(definition).render(messages).rpartition(_REPLY)
    except BadConversation:
        return ""
    reference: Any = getattr(tokenizer, "reference", tokenizer)
    if not reply or not after.strip() or any(token.text in after for token in reference.chat_tokens().added):
        return ""
    stop = after.split()[0]
    num_tokens = tokenizer.encode(pa.array([_REPLY, _REPLY + stop], pa.large_string()), np.dtype(np.uint32)).num_tokens
    ordinary = counted(int(num_tokens[1]) - int(num_tokens[0]), "ordinary token")
    return f"{stop!r}, which ends a turn in the template, is not a token of {tokenizer.name} but {ordinary} there"
