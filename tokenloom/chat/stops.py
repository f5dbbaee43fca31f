"""The text with which a template ends a turn where no token of the tokenizer does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.chat.definition import ChatDefinition
from tokenloom.errors import BadConversation
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.wording import counted

_QUESTION, _REPLY = "question", "reply0"


def stop_as_text(definition: ChatDefinition, tokenizer: Tokenizer) -> str:
    """Return what ends a turn, and how many tokens it is, as a clause of a message; "" if a token ends it, or nothing.

    Example: "'<|im_end|>', which ends a turn in the template, is not a token of gpt2 but 7 ordinary tokens there".
    """
    from tokenloom.chat.template import ChatTemplate  # late: versions of texts need no Jinja

    user = {"role": "user", "content": _QUESTION}
    said, template = [user, {"role": "assistant", "content": _REPLY}], ChatTemplate(definition)
    try:
        _, reply, after = template.render(said).rpartition(_REPLY)
        before_user = template.render([*said, user]).rpartition(_REPLY)[2].partition(_QUESTION)[0]
    except BadConversation:
        return ""
    reference: Any = getattr(tokenizer, "reference", tokenizer)
    stop, added = next(iter(after.split()), ""), [token.text for token in reference.chat_tokens().added]
    if not reply or not stop or any(token in stop or (token in after and token in before_user) for token in added):
        return ""
    num_tokens = tokenizer.encode(pa.array([_REPLY, _REPLY + stop], pa.large_string()), np.dtype(np.uint32)).num_tokens
    ordinary = counted(int(num_tokens[1]) - int(num_tokens[0]), "ordinary token")
    return f"{stop!r}, which ends a turn in the template, is not a token of {tokenizer.name} but {ordinary} there"
