"""What each part of a rendered conversation is: with blocks of `generation`, and from marks alone."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.builders.chat_styles import NAMES, STOPS, template
from tests.chat.test_encoding import CONVERSATIONS, encoder_of, small_tokenizer
from tests.counts import count
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.spans import Rendered
from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import (
    ENDS_TURN,
    LAST_TURN,
    MAY_LEARN,
    ROLE_BITS,
    ROLES,
    TEMPLATE,
    learned_classes,
)

USER: dict[str, Any] = {"role": "user", "content": "hi"}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "hello"}


def _encoder(text: str, **fields: Any) -> ChatEncoder:
    return ChatEncoder(ChatDefinition(text, **{"special_tokens": NAMES} | fields), small_tokenizer())


def _render(text: str, messages: list[dict[str, Any]], tools: Any = None, **fields: Any) -> Rendered:
    conversation = {"messages": messages} | ({"tools": tools} if tools else {})
    return _encoder(text, **fields).render(canonical(conversation))


def _segments(rendered: Rendered) -> list[tuple[str, int]]:
    pairs = groupby(zip(rendered.text, rendered.classes, strict=True), key=itemgetter(1))
    return [("".join(char for char, _ in chars), kind) for kind, chars in pairs]


def _shown(rendered: Rendered) -> list[tuple[str, str]]:
    """Return the segments and their roles, with ! after that of a stop token."""
    return [(text, ROLES[kind & ROLE_BITS] + "!" * (kind & ENDS_TURN > 0)) for text, kind in _segments(rendered)]


def _learned(rendered: Rendered, learn: str = "assistant") -> list[str]:
    """Return the learned texts, neighbours joined."""
    table, texts, follows = learned_classes(learn), [""], False
    for text, kind in _segments(rendered):
        if table[kind]:
            texts = [*texts[:-1], texts[-1] + text] if follows else [*texts, text]
        follows = bool(table[kind])
    return texts[1:]


@settings(max_examples=count(150, 5000), deadline=None, suppress_health_check=list(HealthCheck))
@given(CONVERSATIONS)
def test_marks_alone_show_what_blocks_of_generation_say(conversation: tuple[str, bool, list[dict[str, Any]]]) -> None:
    style, _, messages = conversation
    text = canonical({"messages": messages})
    try:
        marked, said = (encoder_of(style, generation).render(text) for generation in (False, True))
    except BadConversation:
        return
    assert marked.text == said.text
    mine, theirs = _learned_places(marked), _learned_places(said)
    assert mine <= theirs  # nothing else is learned
    written = [message.get(name, "a") for message in messages for name in ("content", "reasoning_content")]
    # Tokens that are found in messages get no marks.
    if all(one.strip() and not re.search("</?t", one) for one in written):
        assert {place for place in theirs - mine if not said.text[place].isspace()} == set()


def _learned_places(rendered: Rendered) -> set[int]:
    table = learned_classes("assistant")
    return {place for place, kind in enumerate(rendered.classes) if table[kind]}


@pytest.mark.parametrize("generation", [False, True])
@pytest.mark.parametrize(
    ("style", "learned"),
    [
        ("chatml", ["hello<|im_end|>", "bye<|im_end|>"]),
        ("headers", ["hello<|eot|>", "bye<|eot|>"]),
        ("next", ["\nhello<|user|>", "\nbye"]),
        ("instruct", ["hello</s>", "bye</s>"]),
        ("thinking", ["hello<|im_end|>", "bye<|im_end|>"]),
        ("channels", ["<|channel|>final<|message|>hello<|end|>", "<|channel|>final<|message|>bye<|ret|>"]),
    ],
)
def test_each_style_of_template(style: str, learned: list[str], generation: bool) -> None:
    messages = [USER, ASSISTANT, {**USER, "content": "well"}, {**ASSISTANT, "content": "bye"}]
    rendered = _render(template(style, generation=generation), messages, stop_tokens=STOPS.get(style, ()))
    assert _learned(rendered) == learned
    assert _learned(rendered, "last") == learned[1:]
    assert rendered.num_turns == 2
    assert rendered.num_ended == sum(text.endswith(">") for text in learned)


_CONTENTS = st.lists(
    st.sampled_from(["hello", " to", " a user", "assistant", "\n", " ", "é", "👩", "<think>", "</think>", "</s>"]),
    min_size=1,
    max_size=6,
).map("".join)


@settings(max_examples=count(60, 3000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["chatml", "headers", "instruct"]), st.booleans(), _CONTENTS, st.data())
def test_a_token_with_characters_that_train_detail_keeps_out_is_not_learned(
    style: str, generation: bool, content: str, data: st.DataObject
) -> None:
    assume(re.sub("</?think>", "", content).strip())
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(content))))), len(content)]
    parts = [
        {"begin_offset": begin, "end_offset": end - 1, "train": train}
        for begin, end in pairwise(cuts)
        if begin < end and (train := data.draw(st.sampled_from([True, False, None]))) is not None
    ]
    assume(parts)
    encoder, turn = encoder_of(style, generation), ASSISTANT | {"content": content}
    whole, cut = (
        encoder.render(canonical({"messages": [USER, one]})) for one in (turn, turn | {"train_detail": parts})
    )
    trims = style != "chatml"
    header = _render(template(style, generation=generation), [USER, ASSISTANT]).text.index("hello")
    trimmed = len(content) - len(content.lstrip()) if trims else 0
    learned = {at for part in parts if part["train"] for at in range(part["begin_offset"], part["end_offset"] + 1)}
    length = len(content.strip()) if trims else len(content)
    kept_out = {header + at for at in range(length) if trimmed + at not in learned}
    assert cut.text == whole.text
    expected, found = (encoder.encode([one], np.dtype(np.uint32)) for one in (whole, cut))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    of_bytes = np.repeat(
        [place in kept_out for place in range(len(cut.text))], [len(char.encode()) for char in cut.text]
    )
    ends = np.cumsum(encoder._tokens.num_bytes[found.tokens[:-1]])
    is_kept_out = [of_bytes[start:end].any() for start, end in pairwise([0, *ends])]
    for learn in ("assistant", "all"):
        table = learned_classes(learn)
        np.testing.assert_array_equal(
            table[found.classes[:-1]], table[expected.classes[:-1]] & ~np.array(is_kept_out, bool)
        )
    assert (found.counts.turns, found.counts.ended_turns) == (1, 1)


def test_a_content_with_train_detail_that_the_template_changes_is_refused() -> None:
    detail = {"begin_offset": 0, "end_offset": 8, "train": False}
    thinking = {"content": "<think>\na\n</think>\n\nb", "train_detail": [detail]}
    messages = [USER, ASSISTANT | thinking, USER, ASSISTANT]
    with pytest.raises(BadConversation, match=r"the content of messages\[1\], so its train_detail has no place"):
        _render(template("thinking", generation=False), messages)


_NO_PROMPT = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


@pytest.mark.parametrize("before", [[], [USER], [USER, ASSISTANT, {"role": "tool", "content": "1"}]])
@pytest.mark.parametrize("said", ["\n\n cat", "<think>\nOkay</think>\n\nHi", " <think>why", "", " \n"])
def test_a_turn_without_a_generation_prompt_begins_after_its_header(said: str, before: list[dict[str, Any]]) -> None:
    rendered = _render(_NO_PROMPT, [*before, ASSISTANT | {"content": said}, USER])
    assert _learned(rendered)[-1] == f"{said}<|im_end|>"
    assert rendered.num_ended == rendered.num_turns


_CALL = {"type": "function", "function": {"name": "get", "arguments": {"n": 5}}}
_SILENT = ASSISTANT | {"content": ""}
_CALLING = _SILENT | {"tool_calls": [_CALL]}
_OUTPUT = {"role": "tool", "content": "1"}
_CALLS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}"
    "{% if m.tool_calls %}{{ '<|call|>[' }}{% for c in m.tool_calls %}{{ '{\"name\": \"' + c.function.name }}"
    "{{ '\", \"arguments\": ' }}{{ c.function.arguments | tojson }}{{ '}' }}{% endfor %}{{ ']' }}"
    "{% else %}{{ m.content }}{% endif %}{{ '</s>' }}{% endif %}{% endfor %}"
)
_CALLED_TEXT = '<|call|>[{"name": "get", "arguments": {"n": 5}}]</s>'
_MANY_ENDS = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}{{ '<|end|>response<|channel|>' "
    "if m.role == 'assistant' }}{{ '<|eot|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_MANY = "<|message|>hello<|end|>response<|channel|><|eot|>"
_NEXT_HEADER = (
    "{% for m in messages %}{{ {'user': USER, 'assistant': '<|assistant|>'}[m.role] + m.content }}{% endfor %}"
)
_NO_CALLS = _NO_PROMPT + "END{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_UPPER = "{% for m in messages %}{{ '\n' + m.role.upper() + ': ' + m.content + '</s>' }}{% endfor %}"
_UPPER += "{% if add_generation_prompt %}{{ '\n\nASSISTANT:' }}{% endif %}"
_USERS_WRITE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content + '<|im_end|><|im_start|>assistant ' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)
_FIRST_OUTPUT = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% set before = messages[loop.index0 - 1].role %}"
    "{{ raise_exception('no call') if before not in ('assistant', 'tool') }}"
    "{{ '[tool]' if before != 'tool' }}({{ m.content }})"
    "{% else %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}"
    "[end]{% endif %}{% endfor %}{{ '[assistant]' if add_generation_prompt }}"
)
_THOUGHT = "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>"
_REASONING = [USER, _SILENT | {"reasoning_content": "why"}]
_TWICE = [USER, ASSISTANT, USER, ASSISTANT]
#: Templates that hide where a turn begins or ends: what is learned, and how many turns end with a stop token.
_HIDDEN: dict[str, tuple[str, list[dict[str, Any]], list[str], int]] = {
    "calls without a prompt": (_CALLS, [USER, _CALLING, USER, ASSISTANT], [_CALLED_TEXT, "hello</s>"], 2),
    "no ends": (_CALLS.replace("</s>", ""), [USER, _CALLING, USER, ASSISTANT], [_CALLED_TEXT[:-4], "hello"], 0),
    "several tokens end": (_MANY_ENDS, [USER, ASSISTANT, USER, _SILENT], [_MANY, _MANY.replace("hello", "")], 2),
    "reasoning is last": (template("channels", generation=False), _REASONING, [f"{_THOUGHT}<|ret|>"], 1),
    "reasoning": (template("channels", generation=False), [*_REASONING, USER], [f"{_THOUGHT}<|end|>"], 1),
    "a token begins headers": (_NEXT_HEADER.replace("USER", "'<|user|>'"), _TWICE, ["hello", "hello"], 0),
    "headers": (_NEXT_HEADER.replace("USER", "'<|im_start|>user\n'"), _TWICE, ["hello", "hello"], 0),
    "calls left out": (_NO_CALLS.replace("END", ""), [USER, _CALLING, _OUTPUT], ["<|im_end|>"], 1),
    "an end of all": (
        _NO_CALLS.replace("END", "<|eot|>"),
        [USER, _CALLING, _OUTPUT, ASSISTANT],
        ["<|im_end|>", "hello<|im_end|>\n<|eot|>"],
        2,
    ),
    "a prompt with other white space": (_UPPER, _TWICE, ["hello</s>", "hello</s>"], 2),
    "a turn of white space": (
        _USERS_WRITE,
        [USER, _CALLING, _OUTPUT, ASSISTANT | {"content": "\nhello"}],
        ["<|im_end|>\nhello<|im_end|>"],
        2,
    ),
    "only the first output has a header": (
        _FIRST_OUTPUT,
        [USER, ASSISTANT | {"tool_calls": [_CALL]}, _OUTPUT, ASSISTANT],
        ["helloget[end]", "hello[end]"],
        0,
    ),
}


@pytest.mark.parametrize("case", _HIDDEN)
def test_a_turn_whose_borders_a_template_hides(case: str) -> None:
    text, messages, learned, num_ended = _HIDDEN[case]
    rendered = _render(text, messages)
    assert (_learned(rendered), rendered.num_ended) == (learned, num_ended)


def test_a_block_of_generation_may_set_the_variable_of_its_loop() -> None:
    text = (
        "{% for m in messages %}{% generation %}{% set m = {'a': m.content} %}{{ m.a }}!{% endgeneration %}{% endfor %}"
    )
    rendered = _render(text, [ASSISTANT, {**ASSISTANT, "train": False}])
    assert _shown(rendered) == [("hello!", "assistant"), ("hello!", "assistant")]
    assert _learned(rendered) == ["hello!"]


@pytest.mark.parametrize("generation", [False, True])
def test_calls_reasoning_and_outputs_have_roles_of_their_own(generation: bool) -> None:
    call = {"type": "function", "function": {"name": "get", "arguments": {"a": "x", "n": 5}}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]},
        {"role": "tool", "content": "out"},
        ASSISTANT,
    ]
    thinking = _shown(_render(template("thinking", generation=generation), messages))
    assert thinking[3:11] == [
        ("<think>\n", "assistant"),
        ("so", "reasoning"),
        ('\n</think>\n\n\n<tool_call>\n{"name": "', "assistant"),
        ('get", "arguments": {"a": "x", "n": 5}', "tool_call"),
        ("}\n</tool_call>", "assistant"),
        ("<|im_end|>", "assistant!"),
        ("\n<|im_start|>user\n<tool_response>\n", "template"),
        ("out", "tool_output"),
    ]
    channels = _shown(_render(template("channels", generation=generation), messages))
    assert ("<|call|>", "assistant!") in channels
    assert [text for text, role in channels if role == "tool_output"] == ["out"]
    assert [text for text, role in channels if role == "reasoning"] == ["so"]
    assert not any(
        "get to=assistant" in text for text in _learned(_render(template("channels", generation=generation), messages))
    )


def test_reasoning_between_think_tags() -> None:
    messages = [USER, {"role": "assistant", "content": "<think>\nso\n</think>\n\nhello"}]
    for text in (template("thinking", generation=False), template("chatml", generation=False)):
        shown = _shown(_render(text, messages))
        assert ("so", "reasoning") in shown
        assert ("\n</think>\n\nhello", "assistant") in shown


@pytest.mark.parametrize("generation", [False, True])
@pytest.mark.parametrize("style", ["chatml", "headers", "thinking"])
def test_an_empty_message_of_the_assistant_ends_its_turn(style: str, generation: bool) -> None:
    messages = [USER, {"role": "assistant", "content": ""}, USER, {"role": "assistant", "content": " "}]
    rendered = _render(template(style, generation=generation), messages)
    assert [text.strip()[:2] for text in _learned(rendered)] == ["<|", "<|"]
    assert (rendered.num_turns, rendered.num_ended) == (2, 2)


@pytest.mark.parametrize("more", ["assistant\n", "system\nUse tools<|im_end|>"])
def test_what_is_written_after_every_text_is_not_learned(more: str) -> None:
    text, messages = _NO_PROMPT + f"{{{{ '<|im_start|>{more}' }}}}", [USER, ASSISTANT, USER, ASSISTANT]
    with pytest.raises(BadConversation, match=r"more than the end of a turn after the last; name chat\.stop_tokens"):
        _render(text, messages)
    assert _learned(_render(text, messages, stop_tokens=["<|im_end|>"])) == ["hello<|im_end|>"] * 2


@pytest.mark.parametrize("generation", [False, True])
def test_what_is_kept_out_of_the_loss_may_not_be_learned_nor_its_stop_token(generation: bool) -> None:
    messages = [USER, {**ASSISTANT, "train": False}, {**USER, "train": False}, {**ASSISTANT, "content": "bye"}]
    rendered = _render(template("chatml", generation=generation), messages)
    assert _learned(rendered) == ["bye<|im_end|>"]
    assert _learned(rendered, "all")[1] == "\n<|im_start|>user\n"
    kept_out = [text for text, kind in _segments(rendered) if not kind & MAY_LEARN]
    assert "".join(kept_out) == "hello<|im_end|>hi"
    assert (rendered.num_turns, rendered.num_ended) == (1, 1)


def test_a_loop_of_tools_is_one_last_turn() -> None:
    call = {"type": "function", "function": {"name": "get", "arguments": {}}}
    messages = [USER, ASSISTANT, USER, {"role": "assistant", "content": "a", "tool_calls": [call]}]
    messages += [{"role": "tool", "content": "b"}, {"role": "assistant", "content": "c"}, USER]
    rendered = _render(template("thinking", generation=False), messages)
    last = "".join(text for text, kind in _segments(rendered) if kind & LAST_TURN)
    assert last == 'a\n<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call><|im_end|>c<|im_end|>'


def test_the_stop_tokens_of_the_spec_end_a_turn() -> None:
    text = "{% for m in messages %}{{ m.role }}: {{ m.content }} END\n{% endfor %}"
    rendered = _render(text, [USER, ASSISTANT])
    assert (_learned(rendered), rendered.num_ended) == (["hello END"], 0)
    rendered = _render(text, [USER, ASSISTANT], stop_tokens=("END",))
    assert _learned(rendered) == ["hello END"]
    assert rendered.num_ended == 1


def test_a_template_may_move_repeat_and_leave_out_what_others_say() -> None:
    text = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        "{% for m in messages if m.role != 'system' %}<|head|>{{ m.role }}<|/head|>{{ m.content }}<|eot|>{% endfor %}"
        "{{ messages[0].content }}"
    )
    messages = [USER, {"role": "system", "content": "be"}, ASSISTANT, {"role": "tool", "content": "out"}]
    rendered = _render(text, messages)
    assert _learned(rendered) == ["hello<|eot|>"]
    assert [role for _, role in _shown(rendered)][:3] == ["system", "template", "user"]


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{{ m.content | upper | replace('H', 'x') }}{{ m.content[0] }}{% endfor %}",
        "{% for m in messages %}{{ m.content | length }}{% endfor %}",
        "{% for m in messages %}{{ m.content == 'héllo' }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}<|eot|>{% endfor %}{{ messages[1].content }}",
        "{{ messages[1].content }}<|eot|>{{ messages[0].content }}<|eot|>{{ messages[1].content }}",
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}",
    ],
)
def test_what_is_not_certain_is_refused(text: str) -> None:
    messages = [{**USER, "content": "hi é"}, {**ASSISTANT, "content": "héllo"}, {**ASSISTANT, "content": "l"}]
    with pytest.raises(BadConversation) as caught:
        _render(text, messages)
    assert caught.value.reason == "no_spans"
    assert "are not certain" in str(caught.value)


@pytest.mark.parametrize(
    "private",
    ["\ue000", "\ue000\U000f0001", "\ue000\uf8ff\U000f0000\U0010fffd", "".join(map(chr, range(0xE000, 0xE100)))],
)
def test_private_use_characters_of_a_message_are_left_alone(private: str) -> None:
    messages = [{**USER, "content": private}, {**ASSISTANT, "content": f"{private}<think>{private}"}]
    rendered = _render(template("chatml", generation=False), messages)
    assert _learned(rendered) == [f"{private}<think>{private}<|im_end|>"]
    every = "".join(map(chr, [0xE000, *range(0xF0000, 0xFF000, 0x1000), *range(0x100000, 0x10F000, 0x1000)]))
    with pytest.raises(BadConversation, match="private-use characters of every range"):
        _render(template("chatml", generation=False), [{**USER, "content": every}])


def test_a_message_with_more_pieces_than_there_are_marks() -> None:
    messages = [USER, {**ASSISTANT, "content": "a<think>" * 7000}]
    assert _learned(_render(template("chatml", generation=False), messages)) == ["a<think>" * 7000 + "<|im_end|>"]


def test_tools_are_of_the_template() -> None:
    text = "{{ tools | tojson }}<|eot|>{% for m in messages %}{{ m.content }}<|eot|>{% endfor %}"
    rendered = _render(text, [USER, ASSISTANT], tools=[{"type": "function", "function": {"name": "<|eot|>"}}])
    first, kind = _segments(rendered)[0]
    assert (first.count("<|eot|>"), kind & ROLE_BITS) == (2, TEMPLATE)
    assert rendered.spellings == [(first.index("<|eot|>"), first.index("<|eot|>") + 7)]
    assert _learned(rendered) == ["hello<|eot|>"]


_OTHER_CALL = {"type": "function", "function": {"name": "put", "arguments": {"n": 5}}}
_TOOLS = [{"type": "function", "function": {"name": "get"}}]
_CALLED = [USER, ASSISTANT | {"tool_calls": [_CALL, _OTHER_CALL]}, {"role": "tool", "content": "out"}, ASSISTANT]


@pytest.mark.parametrize("generation", [False, True])
@pytest.mark.parametrize(
    ("style", "messages", "tools", "is_incomplete"),
    [
        ("thinking", _CALLED, None, False),
        ("thinking", _CALLED, _TOOLS, True),
        ("chatml", _CALLED, None, True),
        ("channels", _CALLED, None, True),  # it writes one call
        ("channels", [USER, {"role": "assistant", "tool_calls": [_CALL]}, _CALLED[2]], None, False),
        ("thinking", [USER, ASSISTANT | {"reasoning_content": "so"}, USER, ASSISTANT], None, False),
        ("headers", [USER, {"role": "tool", "content": " "}, ASSISTANT], None, False),
    ],
)
def test_what_a_template_leaves_out_is_seen(
    style: str, messages: list[dict[str, Any]], tools: Any, is_incomplete: bool, generation: bool
) -> None:
    assert _render(template(style, generation=generation), messages, tools).is_incomplete == is_incomplete


@pytest.mark.parametrize(
    ("head", "is_incomplete"),
    [
        ("", True),
        ("{{ tools | tojson }}", False),
        ("{{ tools | tojson if messages | length > 2 }}", True),
        ("{{ 'With tools.' if tools else raise_exception('no tools') }}", False),
    ],
)
def test_tools_are_left_out_where_a_text_is_the_same_without_them(head: str, is_incomplete: bool) -> None:
    text = head + template("chatml", generation=False)
    assert _render(text, [USER, ASSISTANT], _TOOLS).is_incomplete == is_incomplete
