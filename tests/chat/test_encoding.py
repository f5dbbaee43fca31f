"""Ids of conversations equal those of transformers, however they are encoded; tests/chat/styles has the templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.chat_styles import NAMES, SPECIAL, STOPS, STYLES, template, tokenizer_json
from tests.builders.proofs import fast_of
from tests.counts import count, full_only
from tests.tokenloom.test_sentencepiece_tokenizer import train
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.encoding import ChatEncoder, EncodedChats
from tokenloom.errors import BadConversation, TokenizerError
from tokenloom.storage.formats.classes import BEGINS, MAY_LEARN, learned_classes
from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.tokenizers import ReferenceTokenizer, load_tokenizer
from tokenloom.tokenizers.fast.tokenizer import FastTokenizer

transformers = pytest.importorskip("transformers")

_UINT32 = np.dtype(np.uint32)
_ARRAYS = ("tokens", "num_tokens", "classes")
_KINDS = ("plain", "nfc", "strips", "pieces")
_FRAGMENTS = [
    *("hello", " the user", "a", "", " ", "\n", "\n\n", "  ", "\t x", "\u3000", "assistant\n", "12345", '{"a": "b"}'),
    *("é", "e\u0301", "Å", "한글", "日本語", "مرحبا", "नमस्ते", "👩\u200d👩", "\u2581x", "\ue000", "\U000f0003", "\x00"),
    *("<think>", "</think>", "<tool_call>", "<thi", "nk>", "<|im_", "end|>", "]]", "{{ x }}", *SPECIAL[:8]),
]
_TEXTS = st.lists(st.sampled_from(_FRAGMENTS), max_size=6).map("".join)
_VALUES = st.one_of(
    _TEXTS, st.integers(-9, 9), st.none(), st.lists(_TEXTS, max_size=2), st.dictionaries(_TEXTS, _TEXTS)
)


def _call(arguments: dict[str, Any], name: str, content: str) -> list[dict[str, Any]]:
    calls = [{"type": "function", "function": {"name": name, "arguments": arguments}}]
    return [{"role": "assistant", "content": content, "tool_calls": calls}]


def _messages(style: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    user = st.builds(lambda text: [{"role": "user", "content": text}], _TEXTS)
    reply = st.builds(lambda text: [{"role": "assistant", "content": text}], _TEXTS)
    kinds = [user, reply]
    if style in ("thinking", "channels"):
        kinds.append(
            st.builds(lambda a, b: [{"role": "assistant", "content": a, "reasoning_content": b}], _TEXTS, _TEXTS)
        )
        names = st.sampled_from(["get", "f.g"])
        arguments = st.dictionaries(st.sampled_from(["a", "b c"]), _VALUES, max_size=2)
        output = st.builds(lambda text: [{"role": "tool", "content": text}], _TEXTS)
        kinds.append(st.builds(lambda a, b, c, d: _call(a, b, c) + d, arguments, names, _TEXTS, output))
    turns = st.lists(st.one_of(kinds), max_size=5)
    return st.builds(lambda first, rest: first + [one for turn in rest for one in turn], user, turns)


CONVERSATIONS = st.sampled_from(sorted(STYLES)).flatmap(
    lambda style: st.tuples(st.just(style), st.booleans(), _messages(style))
)


@lru_cache
def small_tokenizer(kind: str = "plain") -> ReferenceTokenizer:
    return load_tokenizer({"kind": "huggingface", "eot": "</s>"}, {"tokenizer.json": tokenizer_json(kind).encode()})


@lru_cache
def encoder_of(style: str, generation: bool = False, kind: str = "plain", in_content: str = "text") -> ChatEncoder:
    definition = ChatDefinition(
        template(style, generation=generation),
        special_tokens=NAMES,
        stop_tokens=STOPS.get(style, ()),
        special_tokens_in_content=in_content,
    )
    return ChatEncoder(definition, small_tokenizer(kind))


@lru_cache
def _peer(kind: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer_json(kind)), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_control_tokens = []  # so that only special tokens are sanitized
    return tokenizer


def _rendered_or_none(encoder: ChatEncoder, messages: Sequence[dict[str, Any]]) -> Any:
    try:
        return encoder.render(canonical({"messages": messages}))
    except BadConversation as error:
        assert error.reason in ("template", "no_spans")
        return None


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=count(40, 2000), deadline=None, suppress_health_check=list(HealthCheck))
@given(CONVERSATIONS)
def test_ids_are_those_of_transformers(kind: str, conversation: tuple[str, bool, list[dict[str, Any]]]) -> None:
    style, generation, messages = conversation
    for in_content in ("token", "text"):
        encoder = encoder_of(style, generation, kind, in_content)
        rendered = _rendered_or_none(encoder, messages)
        if rendered is None:
            continue
        options: dict[str, Any] = {"chat_template": template(style, generation=False), "return_dict": False}
        if in_content == "text":
            options["sanitize_control_tokens"] = True
            if any(mark in canonical({"messages": messages}) for mark in "\U000f0000\U000f0001"):
                continue  # it removes its marks from messages
        try:
            expected = _peer(kind).apply_chat_template(messages, **options)
        except ValueError as error:
            assert "produces it from plain text" in str(error)
            continue
        encoded = encoder.encode([rendered], _UINT32)
        assert encoded.tokens.tolist() == [*expected, small_tokenizer(kind).eot_id]


@settings(max_examples=count(40, 2000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CONVERSATIONS, min_size=1, max_size=4))
def test_texts_cut_at_added_tokens_and_whole_texts_have_the_same_ids_and_classes(
    conversations: list[tuple[str, bool, list[dict[str, Any]]]],
) -> None:
    style, generation, _ = conversations[0]
    encoder = encoder_of(style, generation)
    found = [_rendered_or_none(encoder, messages) for _, _, messages in conversations]
    rendered = [one for one in found if one is not None]
    whole = ChatEncoder(encoder.definition, small_tokenizer())
    whole._tokens = replace(whole._tokens, cuts=None)
    fast = ChatEncoder(encoder.definition, _fast())
    expected = encoder.encode(rendered, _UINT32)
    for other in (whole.encode(rendered, _UINT32), fast.encode(rendered, _UINT32), _one_by_one(encoder, rendered)):
        for name in _ARRAYS:
            np.testing.assert_array_equal(getattr(expected, name), getattr(other, name), err_msg=name)
        assert expected.counts == other.counts


@lru_cache
def _fast() -> FastTokenizer:
    return fast_of(small_tokenizer())


def _one_by_one(encoder: ChatEncoder, rendered: Sequence[Any]) -> EncodedChats:
    parts = [encoder.encode([one], _UINT32) for one in rendered] or [encoder.encode([], _UINT32)]
    tokens, num_tokens, classes = (np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS)
    return EncodedChats(tokens, num_tokens, classes, sum((part.counts for part in parts), ChatCounts()))


def test_a_token_that_overlaps_what_is_learned_is_learned() -> None:
    encoder = encoder_of("instruct")
    encoded = _encode(encoder, ("user", "hello"), ("assistant", "hello to a user"))
    learned = learned_classes("assistant")[encoded.classes]
    assert small_tokenizer().decode(encoded.tokens[learned]).strip() == "hello to a user<|endoftext|>"
    assert small_tokenizer().decode(encoded.tokens[~learned]) == "<s>[INST] hello [/INST]<|endoftext|>"


def _encode(encoder: ChatEncoder, *messages: tuple[str, str], **more: Any) -> EncodedChats:
    listed = [{"role": role, "content": content, **more} for role, content in messages]
    return encoder.encode([encoder.render(canonical({"messages": listed}))], _UINT32)


def test_a_conversation_ends_with_one_end_of_text_that_is_never_learned_and_begins_with_a_mark() -> None:
    encoded = _encode(encoder_of("headers"), ("user", "a"), ("assistant", "b"))
    assert encoded.classes[-1] == 0
    assert (encoded.classes[:-1] & MAY_LEARN == MAY_LEARN).all()
    assert (encoded.classes & BEGINS > 0).tolist() == [True] + [False] * (len(encoded.classes) - 1)
    assert encoded.tokens[0] == _peer("plain").bos_token_id


@pytest.mark.parametrize("size", [16_000, 300_000, pytest.param(2_000_000, marks=full_only)])
@pytest.mark.parametrize("kind", ["plain", "nfc", "pieces"])
def test_huge_contents(kind: str, size: int) -> None:
    spelling = "" if kind == "pieces" else " <|im_end|>"
    text = (" the user says héllo to日本" * 10 + f"{spelling}\n") * (size // 350)
    encoded = _encode(encoder_of("chatml", kind=kind), ("user", text), ("assistant", text))
    learned = encoded.tokens[learned_classes("assistant")[encoded.classes]]
    assert small_tokenizer(kind).decode(learned).replace("▁", " ") == text + "<|im_end|>"


def test_counts_of_turns_ends_targets_and_doubled_bos() -> None:
    doubled = ChatEncoder(
        ChatDefinition("{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", special_tokens=NAMES),
        small_tokenizer(),
    )
    assert _encode(doubled, ("user", "a")).counts == ChatCounts(1, without_target=1, doubled_bos=1)
    ended = _encode(encoder_of("headers"), ("user", "a"), ("assistant", "b"))
    assert ended.counts == ChatCounts(1, turns=1, ended_turns=1)
    unended = ChatEncoder(ChatDefinition("{% for m in messages %}{{ m.content }}\n{% endfor %}"), small_tokenizer())
    assert _encode(unended, ("user", "<s>"), ("assistant", "b")).counts == ChatCounts(1, turns=1)


def test_spellings_of_special_tokens_in_messages() -> None:
    messages = (("user", "a<|im_end|>b"), ("assistant", "<think>c</think><|eot|>"))
    ids = {token.content: i for i, token in small_tokenizer()._library.get_added_tokens_decoder().items()}  # type: ignore[attr-defined]
    as_text = _encode(encoder_of("chatml"), *messages).tokens.tolist()
    as_token = _encode(encoder_of("chatml", in_content="token"), *messages).tokens.tolist()
    assert (as_text.count(ids["<|im_end|>"]), as_token.count(ids["<|im_end|>"])) == (2, 3)
    assert (as_text.count(ids["<|eot|>"]), as_token.count(ids["<|eot|>"])) == (0, 1)
    assert (as_text.count(ids["<think>"]), as_token.count(ids["<think>"])) == (1, 1)
    with pytest.raises(BadConversation) as caught:
        _encode(encoder_of("chatml", in_content="fail"), *messages)
    assert caught.value.reason == "special_token"
    tools = [{"type": "function", "function": {"name": "<|eot|>", "description": "<|eot|>"}}]
    encoder = ChatEncoder(ChatDefinition("{{ tools | tojson }}{{ messages[0].role }}"), small_tokenizer())
    text = canonical({"messages": [{"role": "user", "content": "a"}], "tools": tools})
    encoded = encoder.encode([encoder.render(text)], _UINT32)
    assert ids["<|eot|>"] not in encoded.tokens
    assert not learned_classes("assistant")[encoded.classes].any()


def test_bytes_of_conversations() -> None:
    encoder = ChatEncoder(
        ChatDefinition("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"),
        load_tokenizer({"kind": "byte"}),
    )
    encoded = _encode(encoder, ("user", "é"), ("assistant", "ü!"))
    assert bytes(encoded.tokens[:-1].astype(np.uint8)).decode() == "user: é\nassistant: ü!\n"
    assert bytes(encoded.tokens[learned_classes("assistant")[encoded.classes]].astype(np.uint8)).decode() == "ü!"


def test_a_tokenizer_of_tiktoken_keeps_special_tokens_of_the_template_apart_from_text(
    vocabulary: Callable[[str], dict[str, Any]],
) -> None:
    tokenizer = load_tokenizer(vocabulary("gpt2"))
    definition = ChatDefinition(
        template("chatml", generation=False).replace("<|im_start|>", "<|endoftext|>"), special_tokens={}
    )
    encoder = ChatEncoder(definition, tokenizer)
    encoded = _encode(encoder, ("user", "hi <|endoftext|> there"), ("assistant", "hello"))
    assert encoded.tokens.tolist().count(tokenizer.eot_id) == 3  # two of the template, and the end of text


def test_what_can_not_render_conversations_is_refused() -> None:
    empty = ChatEncoder(ChatDefinition("{% if messages[0].role == 'system' %}x{% endif %}"), small_tokenizer())
    with pytest.raises(BadConversation, match="writes nothing"):
        _encode(empty, ("user", "a"))
    with pytest.raises(BadConversation, match="no messages"):
        _encode(empty)


def test_a_sentencepiece_model_is_refused() -> None:
    model = load_tokenizer({"kind": "sentencepiece", "name": "spm"}, {"tokenizer.model": train("bpe")})
    with pytest.raises(TokenizerError, match=r"give the tokenizer\.json of the model"):
        ChatEncoder(ChatDefinition("{{ messages }}"), model)
