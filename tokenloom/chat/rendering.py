"""Conversations to text: what their template writes, and what each part of that is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tokenloom.chat.conversation import NOT_CONVERSATION, ChatDefinition, parse
from tokenloom.chat.marks import Marker, any_of, unclear
from tokenloom.chat.spans import Rendered, read_spans
from tokenloom.chat.template import TEMPLATE, ChatTemplate, to_json
from tokenloom.chat.turns import read_turns
from tokenloom.errors import BadConversation, SpecError
from tokenloom.tokenizers.base import AddedToken, Tokenizer, special_tokens_hint
from tokenloom.wording import counted

SPECIAL_TOKEN = "special_token"  # the reason of a row with the spelling of one
_QUESTION, _REPLY = "question", "reply0"
_SURROGATE = re.compile("[\ud800-\udfff]")
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


class ChatRenderer:
    """Renders conversations.

    Args:
        definition: the template.
        added: the added tokens of the tokenizer.
        name: the name of the tokenizer, for messages.

    Raises SpecError if the template is not valid or a stop token unknown.
    """

    def __init__(self, definition: ChatDefinition, added: Sequence[AddedToken], name: str) -> None:
        self._definition, self._template = definition, ChatTemplate(definition)
        special = [token.text for token in added if token.special]
        ordinary = [token.text for token in added if not token.special and not token.text.isspace()]
        as_token = special if definition.special_tokens_in_content == "token" else []
        for token in definition.stop_tokens:
            if token not in {one.text for one in added} and token not in definition.template:
                hint = special_tokens_hint(special, token)
                raise SpecError(f"chat.stop_tokens: {token!r} is not a token of {name}, nor in the template; {hint}")
        as_text = [] if as_token else special
        marker = Marker(as_text, [*ordinary, *as_token])
        self._turns = read_turns(self._template, marker, definition, any_of(special), any_of([*special, *ordinary]))
        # A message may spell the generation prompt: its tokens get marks too.
        starts = "".join(pattern.pattern for pattern in [self._turns.prompt, *self._turns.starts.values()])
        outside = [token for token in [*ordinary, *as_token] if re.escape(token) not in starts]
        self._marker = Marker(as_text, outside)

    def render(self, text: str) -> Rendered:
        """Return a conversation as its template writes it, and what each part of it is.

        Args:
            text: canonical JSON, see chat.conversation.

        Raises BadConversation if the template refuses it, or what its parts are is not certain.
        """
        conversation = parse(text)
        if not conversation["messages"]:
            raise BadConversation("it has no messages; leave it out", NOT_CONVERSATION)
        plain = self._template.render(conversation["messages"], conversation.get("tools"))
        if not plain:
            raise BadConversation("the template writes nothing of it; leave it out", TEMPLATE)
        if not plain.isascii() and _SURROGATE.search(plain):
            raise BadConversation("the template writes a lone surrogate, which no token has; repair it", TEMPLATE)
        addresses = _ADDRESS.findall(plain.lower())
        if addresses and not all(map(f"{text}{self._definition.template}".lower().count, addresses)):
            raise BadConversation("the template writes a place in memory; call the method with brackets", TEMPLATE)
        rendered = self._rendered(conversation, plain)
        leaves_out_tools = conversation.get("tools") and self._leaves_out_tools(conversation, text, plain)
        return replace(rendered, is_incomplete=True) if leaves_out_tools else rendered

    def _leaves_out_tools(self, conversation: dict[str, Any], text: str, plain: str) -> bool:
        """Return whether a text is the same without the conversation's tools; `text` is its canonical JSON."""
        if "tools" not in self._definition.template:
            return True
        described = to_json(conversation["tools"][0]["function"].get("description", ""))[1:-1]
        is_of_tools = text.find(described) > text.rfind('],"tools":[') and described not in self._definition.template
        if is_of_tools and described in plain:  # usual: nothing else has the description of the first
            return False
        try:
            return self._template.render(conversation["messages"]) == plain
        except BadConversation:  # it has calls of tools that are not there
            return False

    def _rendered(self, conversation: dict[str, Any], plain: str) -> Rendered:
        marked = self._marker.mark(conversation, plain)
        if self._definition.special_tokens_in_content == "fail" and any(piece.is_spelling for piece in marked.pieces):
            problem = "a message has the spelling of a special token; set chat.special_tokens_in_content, or repair it"
            raise BadConversation(problem, SPECIAL_TOKEN)
        try:
            marked_text = self._template.render_marked(marked)
        except BadConversation as error:
            raise unclear("the template refuses its strings with marks around them") from error
        return read_spans(plain, marked_text, marked, self._turns, has_generation=self._template.has_generation)


def stop_as_text(definition: ChatDefinition, tokenizer: Tokenizer) -> str:
    """Name the text that ends a turn, and its number of tokens, in a clause; "" if a token ends it, or nothing.

    Example: "'<|im_end|>', which ends a turn in the template, is not a token of gpt2 but 7 ordinary tokens there".
    """
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
