"""The gates of conversations: whether they have targets, and whether those are what a model should learn; warnings too.

All but the learned share count what was rendered, before duplicates are dropped: a wrong template is wrong there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from tokenloom.storage.formats.classes import PLAIN_TEXT, ROLE_BITS, learned_classes
from tokenloom.storage.formats.statistics import ChatCounts, add_chats
from tokenloom.storage.formats.version_files import BuildRecord, GateResult
from tokenloom.tasks.publishing.class_figures import sum_by_class
from tokenloom.tasks.shuffling.documents_found import NO_TURN_HINT
from tokenloom.wording import counted


def _without_target(name: str, limit: float, build: BuildRecord) -> GateResult:
    chat = _chat(build)
    found = chat.without_target + chat.dropped
    shown = f"{found:,} of {counted(chat.conversations + chat.dropped, 'conversation')}"
    return GateResult(name, f"<= {limit:,}", shown, found <= limit)


def _learned_share(name: str, limit: float, build: BuildRecord) -> GateResult:
    by_class = sum_by_class(split.classes for split in build.statistics.values())
    of_chats = by_class * (np.arange(256) & ROLE_BITS != PLAIN_TEXT)
    learned, total = int(of_chats[learned_classes("assistant")].sum()), int(of_chats.sum())
    share = Fraction(learned, max(1, total))
    shown = f"{float(share):.4g} ({learned:,} of {counted(total, 'token')} of conversations)"
    return GateResult(name, f">= {limit!r}", shown, share >= Fraction(repr(limit)))


def _stop_token(name: str, limit: float, build: BuildRecord) -> GateResult:
    chat = _chat(build)
    missing = chat.turns - chat.ended_turns
    shown = f"{missing:,} of {counted(chat.turns, 'turn')} of the assistant end without one"
    return GateResult(name, "a stop token ends every turn", shown, missing == 0)


def _doubled_bos(name: str, limit: float, build: BuildRecord) -> GateResult:
    chat = _chat(build)
    shown = f"{chat.doubled_bos:,} of {counted(chat.conversations, 'conversation')} begin with two"
    return GateResult(name, "one beginning-of-text token at most", shown, chat.doubled_bos == 0)


def chat_warnings(rows: str, chat: ChatCounts, stop_as_text: Callable[[], str]) -> Iterator[str]:
    """Yield a line for each fault of conversations.

    Args:
        rows: which they are, such as "source NAME".
        chat: what was counted of them.
        stop_as_text: see tokenloom.chat.rendering; called only if turns lack a stop token.
    """
    if missing := chat.turns - chat.ended_turns:
        step = "give chat.stop_tokens, or a template that writes one"
        if stop := stop_as_text():
            step = f"{stop}: give a tokenizer that has it, another chat.template, or this text as chat.stop_tokens"
        yield (
            f"{rows}: {missing:,} of {counted(chat.turns, 'turn')} of the assistant end without a stop token, so a "
            f"model does not learn to end them; {step}"
        )
    if chat.doubled_bos:
        yield (
            f"{rows}: {counted(chat.doubled_bos, 'conversation')} begin with two beginning-of-text tokens; write it in "
            "the template or in the first message, not in both"
        )
    if chat.incomplete:
        yield (
            f"{rows}: the template leaves tools, calls or messages out of {chat.incomplete:,} of "
            f"{counted(chat.conversations, 'conversation')}; give a chat.template that writes them, or drop such rows"
        )
    if chat.dropped or chat.without_target:
        kept = f", and {chat.without_target:,} of them are kept" if chat.without_target else ""
        total = chat.conversations + chat.dropped
        hint = "" if chat.turns else f"; {NO_TURN_HINT}"
        yield (
            f"{rows}: nothing is learned of {chat.dropped + chat.without_target:,} of "
            f"{counted(total, 'conversation')}{kept}; see documents.without_target{hint}"
        )


def _chat(build: BuildRecord) -> ChatCounts:
    return add_chats(source.chat for source in build.encoded.values()) or ChatCounts()


CHAT_GATES: dict[str, Callable[[str, float, BuildRecord], GateResult]] = {
    "max_documents_without_target": _without_target,
    "min_learned_share": _learned_share,
    "stop_token_learned": _stop_token,
    "no_doubled_bos": _doubled_bos,
}
