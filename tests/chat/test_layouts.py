"""The normalized form of conversations in each layout, what identifies them, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.chat.conversation import ChatDefinition, canonical, content_hashes, num_chars, parse
from tokenloom.chat.layouts import normalized, recognized
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation

_HI = {"content": "Hi", "role": "user"}
_HELLO = {"content": "Hello!", "role": "assistant"}
_CALL = {"type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": 1}}}
_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
_ARGUMENTS = [{"b": 2, "a": 1}, '{"b": 2, "a": 1}', {"b": 2, "c": None, "a": 1}, '{"b": 2, "a": 1, "c": null}']


def messages_of(*messages: Any, layout: str = "messages") -> list[dict[str, Any]]:
    """Return the messages of a normalized conversation."""
    found: list[dict[str, Any]] = normalized(list(messages), layout)["messages"]
    return found


def problem(value: Any, layout: str = "messages", tools: Any = None) -> str:
    """Return why a value is refused."""
    with pytest.raises(BadConversation) as caught:
        canonical(normalized(value, layout, tools))
    assert caught.value.reason == "not_conversation"
    return str(caught.value)


def identity(conversation: dict[str, Any]) -> list[int]:
    """Return what identifies a conversation, as two words."""
    words: list[int] = content_hashes(pa.array([canonical(conversation)]))[0].tolist()
    return words


@pytest.mark.parametrize(
    ("layout", "value"),
    [
        ("messages", [_HI, _HELLO]),
        ("messages", json.dumps([_HI, _HELLO])),
        ("messages", {"messages": json.dumps([_HI, _HELLO]), "tools": []}),
        ("messages", [{**_HI, "tool_calls": None, "name": None}, {**_HELLO, "weight": 1, "tool_calls": []}]),
        (
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "value": "i"}]}, _HELLO],
        ),
        ("sharegpt", [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]),
        ("sharegpt", {"conversations": [{"from": "user", "value": "Hi"}, {"from": "bot", "value": "Hello!"}]}),
        ("alpaca", {"instruction": "Hi", "input": "", "output": "Hello!", "system": None, "history": None}),
        ("prompt_completion", {"prompt": "Hi", "completion": "Hello!"}),
        ("prompt_completion", {"prompt": [_HI], "completion": [_HELLO]}),
    ],
)
def test_every_layout_becomes_the_same_normalized_form(layout: str, value: Any) -> None:
    assert recognized([None, value]) == layout
    found = canonical(normalized(value, layout))
    turns = parse(found)["messages"]
    assert turns == [_HI, _HELLO]
    assert normalized(parse(found), "messages") == parse(found)


def test_alpaca_joins_instruction_and_input_and_puts_system_and_history_first() -> None:
    row = {"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief.", "history": [["Hi", "Hello!"]]}
    found = normalized(row, "alpaca")["messages"]
    assert [(one["role"], one["content"]) for one in found] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello!"),
        ("user", "Add.\n1 2"),
        ("assistant", "3"),
    ]
    assert normalized({**row, "history": '[["Hi", "Hello!"]]'}, "alpaca")["messages"] == found


def test_a_system_prompt_beside_a_list_of_messages_comes_first() -> None:
    expected = [{"content": "Be brief.", "role": "system"}, _HI, _HELLO]
    assert normalized({"messages": [_HI, _HELLO], "system": "Be brief."}, "messages")["messages"] == expected
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]
    assert normalized({"conversations": turns, "system": "Be brief."}, "sharegpt")["messages"] == expected
    pair = {"prompt": [_HI], "completion": [_HELLO]}
    assert normalized({**pair, "system": "Be brief."}, "prompt_completion")["messages"] == expected
    for system in (None, "", "Be brief."):
        assert normalized(expected, "messages", None, system)["messages"] == expected
    assert "the system prompt beside its messages is not that" in problem({"messages": expected, "system": "Be long."})


def test_what_the_assistant_says_in_a_prompt_is_not_learned() -> None:
    row = {"prompt": [_HI, _HELLO, {"role": "user", "content": "Why?"}], "completion": "So."}
    found = normalized(row, "prompt_completion")["messages"]
    assert [one.get("train") for one in found] == [None, False, None, None]


_MARKS = ["train", "training", "weight", "loss_weight", "loss", "loss_mask", "step_loss_mask", "masked"]


@pytest.mark.parametrize("key", _MARKS)
@pytest.mark.parametrize("layout", ["messages", "sharegpt"])
def test_marks_of_other_trainers_keep_a_message_out_or_say_nothing(key: str, layout: str) -> None:
    turn = _HELLO if layout == "messages" else {"from": "gpt", "value": "Hello!"}
    learned = [_HELLO], [{**_HELLO, "train": False}]
    for value in (0, 0.0, False, 1, 1.0, True):
        assert messages_of({**turn, key: value}, layout=layout) == learned[bool(value) == (key == "masked")]
    assert messages_of({**turn, key: None}, layout=layout) == [_HELLO]
    for refused in (0.5, 2, -1, "0", [1], float("nan")):
        assert f"{key} is" in problem([{**turn, key: refused}], layout)
    other = {"weight" if key == "train" else "train": key == "masked"}
    assert "contradict each other; keep one" in problem([{**turn, key: 1, **other}], layout) or key == "train"


@pytest.mark.parametrize("key", ["trainable", "weights", "Loss"])
def test_a_key_that_may_say_what_is_learned_is_an_error_that_names_it(key: str) -> None:
    detail = [{"begin_offset": 0, "end_offset": 8, "train": False}]
    assert f"messages[1].{key} is not known, and may say what is learned" in problem([_HI, {**_HELLO, key: detail}])
    assert messages_of({**_HELLO, key: None, "note": "x"}) == [_HELLO]
    part = {"type": "text", "text": "Hello!"}
    assert "content[0] is not to be learned" in problem([{**_HELLO, "content": [{**part, "train": False}]}])
    assert f"content[0].{key} is not known" in problem([{**_HELLO, "content": [{**part, key: 1}]}])


@pytest.mark.parametrize("layout", ["messages", "sharegpt"])
def test_train_detail_names_parts_of_a_content_that_is_text(layout: str) -> None:
    turn = _HELLO if layout == "messages" else {"from": "gpt", "value": "Hello!"}
    first, last = ({"begin_offset": at, "end_offset": at + 2, "train": at > 0} for at in (0, 3))
    for value in ([last, first], json.dumps([last, first])):
        assert messages_of({**turn, "train_detail": value}, layout=layout) == [
            {**_HELLO, "train_detail": [last, first]}
        ]
    assert messages_of({**turn, "train_detail": None}, layout=layout) == [_HELLO]
    for wrong in ({"end_offset": 6}, {"begin_offset": -1}, {"end_offset": 2}, {"end_offset": 4.0}, {"train": 1}):
        named = "messages[0].train_detail[1] is {" + f"'begin_offset': {wrong.get('begin_offset', 3)}"
        assert named in problem([{**turn, "train_detail": [first, last | wrong]}], layout)
    wrong_lists: list[Any] = [[], {}, 1, "[]"]
    for refused in wrong_lists:
        assert "messages[0].train_detail is not a list" in problem([{**turn, "train_detail": refused}], layout)
    called = (
        {"from": "function_call", "value": json.dumps(_CALL)}
        if layout == "sharegpt"
        else {**_HELLO, "content": [{"type": "text", "text": "Hello!"}]}
    )
    assert "train_detail" in problem([{**called, "train_detail": [first]}], layout)
    whole, cut = (
        {"messages": messages_of({**turn, **more}, layout=layout)} for more in ({}, {"train_detail": [first]})
    )
    assert identity(whole) == identity(cut)


@pytest.mark.parametrize("arguments", _ARGUMENTS)
def test_calls_are_the_same_as_objects_json_text_parts_and_turns(arguments: Any) -> None:
    call = {"name": "add", "arguments": arguments}
    text = json.dumps(call)
    for message in (
        {"role": "assistant", "tool_calls": [{"type": "function", "index": 0, "function": call}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": json.dumps([call])},
        {"role": "assistant", "tool_calls": [{"function": call, "id": None, "type": None}]},
        {"role": "assistant", "function_call": call},
        {"role": "assistant", "content": [{"type": "tool_call", "value": text}]},
        {"role": "assistant", "content": [{"type": "tool_call", "value": call}]},
    ):
        assert messages_of(message) == [{"role": "assistant", "tool_calls": [_CALL]}]
    for value in (text, call, json.dumps([call])):
        turn = {"from": "function_call", "value": value}
        assert messages_of(turn, layout="sharegpt") == [{"role": "assistant", "tool_calls": [_CALL]}]


def test_parallel_calls_keep_their_order_and_ids() -> None:
    calls = [{"name": f"f{i}", "arguments": {}} for i in range(3)]
    (message,) = messages_of({"from": "function_call", "value": json.dumps(calls)}, layout="sharegpt")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f0", "f1", "f2"]
    (message,) = messages_of({"role": "assistant", "tool_calls": [{**_CALL, "id": "c1"}, {**_CALL, "id": "c2"}]})
    assert [call["id"] for call in message["tool_calls"]] == ["c1", "c2"]
    answer = {"role": "function", "content": "3", "tool_call_id": "c1", "name": "add"}
    assert messages_of(answer) == [{**answer, "role": "tool"}]
    for speaker in ("observation", "tool", "function_response"):
        assert messages_of({"from": speaker, "value": "3"}, layout="sharegpt") == [{"content": "3", "role": "tool"}]


def test_arguments_that_are_not_an_object_stay_the_text_that_a_model_wrote() -> None:
    for text in ("add(1, 2)", "[1, 2]", '{"a": '):
        (message,) = messages_of({"role": "assistant", "tool_calls": [{"name": "add", "arguments": text}]})
        assert message["tool_calls"][0]["function"]["arguments"] == text
    empty: list[Any] = [None, "", {}, "{}"]
    for arguments in empty:
        (message,) = messages_of({"role": "assistant", "tool_calls": [{"name": "add", "arguments": arguments}]})
        assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("tools", [[_TOOL], json.dumps([_TOOL]), [json.dumps(_TOOL)], [_TOOL["function"]]])
def test_tools_are_the_same_as_objects_and_json_text_beside_and_inside_a_conversation(tools: Any) -> None:
    expected = {"messages": [_HI, _HELLO], "tools": [_TOOL]}
    assert normalized([_HI, _HELLO], "messages", tools) == expected
    assert normalized({"messages": [_HI, _HELLO], "tools": tools}, "messages") == expected
    nothing: list[Any] = [None, "", [], "[]", "null"]
    assert all(normalized([_HI], "messages", none) == {"messages": [_HI]} for none in nothing)
    system = {"role": "system", "content": [{"type": "tools", "value": tools}]}
    assert normalized([system, _HI], "messages") == {"messages": [_HI], "tools": [_TOOL]}
    system["content"] = [{"type": "text", "text": "Be brief."}, {"type": "tools", "value": tools}]
    assert normalized([system, _HI], "messages") == {
        "messages": [{"content": "Be brief.", "role": "system"}, _HI],
        "tools": [_TOOL],
    }


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_one_name(key: str) -> None:
    expected = [{"content": "Hello!", "reasoning_content": "Greet.", "role": "assistant"}]
    assert messages_of({**_HELLO, key: "Greet."}) == expected
    parts = [{"type": "reasoning", "value": "Greet."}, {"type": "text", "value": "Hello!"}]
    assert messages_of({"role": "assistant", "content": parts}) == expected
    assert messages_of({"role": "assistant", "content": parts, key: "Greet."}) == expected
    assert "two different reasonings" in problem([{"role": "assistant", "content": parts, key: "Wave."}])


def _user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def _calling(*calls: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [*calls]}]


_REFUSED: dict[str, list[tuple[Any, str]]] = {
    "messages": [
        ([], "it has no messages"),
        ({"rows": [_HI]}, "it is an object, not a list of messages, nor has it one; set layout:"),
        ("Hi", "the conversation is text that is not JSON"),
        ([_HI, "Hello!"], "messages[1] is text, not an object"),
        ([{"content": "Hi"}], "messages[0] has role 'None'"),
        ([_HI, {"role": "critic", "content": "No."}], "messages[1] has role 'critic'; it must be one of"),
        (_user(7), "messages[0].content is a number, not text"),
        (_user(None), "messages[0] (user) has no content"),
        (_user("Hi", tool_calls=[_CALL]), "messages[0] (user) calls tools"),
        (_user("Hi", images=["a.png"]), "messages[0] has images, which are not supported"),
        (_user([{"type": "image_url", "image_url": "a"}]), "messages[0].content[0] ('image_url') is not a part with a"),
        (_user([{"type": "text"}]), "messages[0].content[0] ('text') is not a part with a value"),
        (
            _user([{"type": "tool_call", "value": _CALL}, {"type": "text", "text": "x"}]),
            "content[1] is a text: a template",
        ),
        (_calling({"arguments": {}}), "a tool call is not an object with"),
        (_calling({"name": "add", "arguments": [1]}), "messages[0]: the arguments of 'add' are a list, not an object"),
        (_calling({"name": "add", "arguments": {"a": float("nan")}}), "its tools or arguments are not JSON values"),
        ({"messages": [_HI], "tools": {"name": "add"}}, "tools are an object, not a list"),
        ({"messages": [_HI], "tools": [{"type": "x"}]}, "tools[0] does not describe a function with a name"),
    ],
    "alpaca": [
        ({"instruction": "Hi"}, "it is not an object with instruction and output, as alpaca has"),
        ({"instruction": "Hi", "output": "x", "history": [["Hi"]]}, "history is not a list of pairs of texts"),
        ([_HI], "as alpaca has; set layout:, or set messages: ."),
    ],
    "prompt_completion": [({"prompt": "Hi", "chosen": "a", "rejected": "b"}, "it is a preference pair")],
}


@pytest.mark.parametrize("layout", _REFUSED)
def test_whatever_the_form_cannot_hold_is_refused_with_its_place(layout: str) -> None:
    for value, expected in _REFUSED[layout]:
        assert expected in problem(value, layout)


def test_nesting_that_is_too_deep_is_refused() -> None:
    deep: Any = {}
    for depth in range(100_000):
        call = {"role": "assistant", "tool_calls": [{"name": "add", "arguments": deep}]}
        if depth == 100:
            canonical(normalized([call], "messages"))
        if depth in (101, 99_999):
            assert "nested too deeply" in problem([call])
        deep = {"a": deep}
    assert "is text that is not JSON (maximum recursion depth" in problem("[" * 100_000)


@pytest.mark.parametrize(
    ("values", "fit"),
    [
        ([{"instruction": "a", "output": "b", "prompt": "a", "completion": "b"}], "alpaca and prompt_completion"),
        ([[_HI], [{"from": "human", "value": "Hi"}]], "messages and sharegpt"),
    ],
)
def test_a_layout_that_fits_two_ways_is_to_be_named(values: list[Any], fit: str) -> None:
    with pytest.raises(BadConversation, match=f"it is of {fit} of the layouts .* set layout: to the one to read"):
        recognized(values)


def test_what_is_damaged_or_empty_says_nothing_of_the_layout() -> None:
    turns = [{"from": "human", "value": "Hi"}]
    assert recognized([None, [], "", "{", 7, [{}], {"conversations": []}, turns]) == "sharegpt"
    nothing: list[list[Any]] = [[], [None], ["Hi"], [[]], [{"text": "Hi"}], [[_HI, {"text": "Hi"}]]]
    for none in nothing:
        with pytest.raises(BadConversation, match=r"of none of the layouts .*; set messages: to the key"):
            recognized(none)
    with pytest.raises(BadConversation, match="preference pair"):
        recognized([{"conversations": turns, "chosen": turns[0], "rejected": turns[0]}])


_KEYS = st.permutations(["id", "type", "function"])


@given(st.permutations(["role", "content", "tool_calls"]), _KEYS, st.permutations(["name", "arguments"]))
def test_a_template_sees_every_mapping_in_the_order_of_the_row(turn: Any, call: Any, function: Any) -> None:
    made = {"name": "add", "arguments": {"b": {"d": 1, "c": 2}, "a": 3}}
    calls = {"id": "c1", "type": "function", "function": {key: made[key] for key in function}}
    whole = {"role": "assistant", "content": "", "tool_calls": [{key: calls[key] for key in call}]}
    row = [{key: whole[key] for key in turn}]
    template = ChatTemplate(ChatDefinition("{{ messages | tojson }}"))
    for value in (row, json.dumps(row), pa.array([row]).to_pylist()[0]):
        found = parse(canonical(normalized(value, "messages")))
        assert template.render(found["messages"]) == json.dumps(row)


@pytest.mark.parametrize("keys", [["name", "arguments"], ["arguments", "name"]])
def test_a_call_that_was_text_has_its_name_before_its_arguments(keys: list[str]) -> None:
    call = json.dumps({key: {"name": "add", "arguments": {"b": 2, "a": 1}}[key] for key in keys})
    for turn, layout in (
        ({"from": "function_call", "value": call}, "sharegpt"),
        ({"role": "assistant", "tool_calls": [call]}, "messages"),
    ):
        (message,) = messages_of(turn, layout=layout)
        assert json.dumps(message["tool_calls"]) == json.dumps([_CALL])


def test_identities_are_pinned() -> None:
    # Splits, duplicates and lists of excluded conversations depend on them.
    texts = [canonical({"messages": [_HI, _HELLO]}), canonical({"messages": [_HI], "tools": [_TOOL]})]
    assert [f"{high:016x}{low:016x}" for high, low in content_hashes(pa.array(texts)).tolist()] == [
        "072ba7ccf600520ce30aa30158447a5b",
        "55c4b0f3d55003daebeda4138024280f",
    ]
    assert content_hashes(pa.array([], pa.large_string())).shape == (0, 2)


def test_characters_are_those_of_contents_reasoning_and_arguments() -> None:
    message = {
        "role": "assistant",
        "content": "héllo",
        "reasoning": "ab",
        "tool_calls": [_CALL, {"name": "f", "arguments": "xyz"}],
    }
    assert num_chars(canonical(normalized([{**_HI, "name": "long name"}, message], "messages"))) == 2 + 5 + 2 + 13 + 3


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_CALLS = st.fixed_dictionaries(
    {"name": st.text(min_size=1), "arguments": st.dictionaries(st.text(), _JSON, max_size=3) | st.text()},
    optional={"id": st.text() | st.none()},
)
_TOOLS = st.fixed_dictionaries({"name": st.text(), "parameters": st.dictionaries(st.text(), _JSON, max_size=3)})
_PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), min_size=1, max_size=3)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "tool", "function"]), "content": st.text() | _PARTS},
        optional={"name": st.text() | st.none(), "weight": st.sampled_from([0, 1, None]), "extra": _JSON},
    )
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.text() | _PARTS},
        optional={
            "tool_calls": st.lists(_CALLS, max_size=2),
            "reasoning_content": st.text(),
            "train": st.booleans(),
        },
    ),
    min_size=1,
    max_size=5,
)


@given(messages=_MESSAGES, tools=st.lists(_TOOLS, max_size=2))
def test_normalizing_is_idempotent_and_its_text_comes_back(messages: list[Any], tools: list[Any]) -> None:
    found = normalized(messages, "messages", tools)
    text = canonical(found)
    assert "\n" not in text
    assert parse(text) == found
    assert normalized(parse(text), "messages") == found
    assert normalized(json.dumps(messages), "messages", json.dumps(tools)) == found
    assert canonical(normalized(parse(text), "messages")) == text


@given(messages=_MESSAGES, tools=st.lists(_TOOLS, max_size=2))
def test_what_identifies_a_conversation_is_its_sorted_json_without_weights(
    messages: list[Any], tools: list[Any]
) -> None:
    found = normalized(messages, "messages", tools)
    bare = {**found, "messages": [{k: v for k, v in one.items() if k != "train"} for one in found["messages"]]}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: such a row is bad
        return
    assert identity(found) == identity(bare)
    assert identity(found) == identity(json.loads(text))


_REAL: dict[str, tuple[str, str, Counter[str]]] = {  # key, layout, messages by role
    "alpaca_en_demo.json": (".", "alpaca", Counter(user=999, assistant=999)),
    "glaive_toolcall_en_demo.json": ("conversations", "sharegpt", Counter(user=746, assistant=746 + 211, tool=211)),
    "reason_tool_use_demo_50.jsonl": ("messages", "messages", Counter(system=50, user=70, assistant=112, tool=42)),
    "v1_sft_demo.jsonl": ("messages", "messages", Counter(user=500, assistant=500)),
}


@pytest.mark.parametrize("name", _REAL)
def test_every_row_of_real_data_becomes_a_conversation(name: str, data_dir: Path) -> None:
    key, layout, roles = _REAL[name]
    rows = real_rows(data_dir / "chat" / name)
    values = [row if key == "." else row[key] for row in rows]
    assert recognized(values[:100]) == layout
    found = [normalized(value, layout, row.get("tools")) for value, row in zip(values, rows, strict=True)]
    messages = [message for one in found for message in one["messages"]]
    assert Counter(message["role"] for message in messages) == roles
    assert all(normalized(parse(canonical(one)), "messages") == one for one in found)
    assert {"tools" in one for one in found} == ({True, False} if "tool" in name else {False})
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
    if name.startswith("v1"):
        assert all(("train" in message) is (message["role"] == "user") for message in messages)


def real_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON array or of JSON lines."""
    text = path.read_text()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
