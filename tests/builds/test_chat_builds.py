"""Builds of conversations: what each option of a spec means for them, what is refused, and what is counted."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.chats import CHATML, chat_spec, chat_tokenizer, conversation
from tests.builders.datasets import build, build_record, listed_files, local_store, make_spec, manifest_json
from tests.builders.row_files import write_rows
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.cli.main import main
from tokenloom.errors import BadRow, GateFailed, InputError, SpecError, TokenizerError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.storage.formats.manifest import MASK, QUARANTINE
from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import load_manifest, read_tokenizer_files, version_path
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.building.plan import plan_build
from tokenloom.tokenizers import load_tokenizer

GOOD = [conversation("the dog", "a fox"), conversation("who jumps", "the fox", "over what", "the lazy dog")]
NO_TARGET = {"messages": [{"role": "user", "content": "and then"}]}


def documents(spec: BuildSpec, version: str) -> list[dict[str, Any]]:
    """Return the documents of a version from its shards and masks: place, split, content, text, what is learned."""
    store = local_store(spec.store, spec.dataset)
    manifest = load_manifest(store, version)
    definition = manifest.tokenizer_definition | {"kind": manifest.tokenizer.kind}
    tokenizer = load_tokenizer(definition, read_tokenizer_files(store, manifest))
    tables, found = VersionTables(store, manifest), []
    for entry in manifest.shards:
        shard = StoredShard(store, version, entry)
        for batch in tables.open(entry).batches():
            for each in tables.documents(entry, batch):
                start, end = each["start"], each["start"] + each["num_tokens"]
                ids, classes = shard.tokens(start, end), shard.classes(start, end)
                assert (ids[-1], classes[-1] & 0b1111) in ((manifest.tokenizer.eot_id, 0), (ids[-1], 1))
                learned = ids[learned_classes("assistant")[classes]]
                found.append({**each, "text": tokenizer.decode(ids[:-1]), "learned": tokenizer.decode(learned)})
    return sorted(found, key=lambda each: (each["source"], each["path"], each["row"]))


def learned(spec: BuildSpec) -> list[str]:
    """Build a spec; return what is learned of each document, in the order of the rows."""
    return [each["learned"] for each in documents(spec, build(spec).version)]


def refused(spec: BuildSpec, error: type[Exception], message: str) -> None:
    """Check that a build ends with an error of one line that has this message."""
    with pytest.raises(error, match=re.escape(message)) as found:
        build(spec)
    assert "\n" not in str(found.value)


def test_a_build_of_conversations_has_a_mask_and_learns_the_turns_and_their_ends(tmp_path: Path) -> None:
    spec = chat_spec(tmp_path, GOOD)
    result = build(spec)
    first, second = documents(spec, result.version)
    assert first["text"] == "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\na fox<|im_end|>\n"
    assert (first["learned"], second["learned"]) == ("a fox<|im_end|>", "the fox<|im_end|>the lazy dog<|im_end|>")
    manifest = manifest_json(local_store(spec.store, "data"), result.version)
    chat = manifest["spec"]["chat"]
    assert (chat["template"], chat["special_tokens_in_content"]) == (CHATML, "text")
    assert manifest["spec"]["sources"][0]["layout"] == "messages"
    assert all(MASK in entry.files for entry in load_manifest(local_store(spec.store, "data"), result.version).shards)
    encoded = build_record(local_store(spec.store, "data"), result.version).encoded["chats"]
    assert encoded.chat == ChatCounts(conversations=2, turns=3, ended_turns=3)
    assert encoded.bytes == sum(len(each["text"].encode()) for each in (first, second))  # not of the JSON of the rows


def test_a_new_template_moves_nothing_between_splits_and_makes_another_version(tmp_path: Path) -> None:
    rows = [conversation(f"the dog {i}", f"a fox {i}") for i in range(60)]
    splits = {"train": 0.5, "validation": 0.5}
    first = chat_spec(tmp_path, rows, splits=splits)
    one = documents(first, build(first).version)
    second = chat_spec(
        tmp_path, rows, "{{ bos_token }}" + CHATML, splits=splits, chat={"arguments": {"bos_token": "<s>"}}
    )
    other = documents(second, build(second).version)
    place = ("row", "split", "content")
    assert [[each[key] for key in place] for each in one] == [[each[key] for key in place] for each in other]
    assert {each["split"] for each in one} == {"train", "validation"}
    assert [each["learned"] for each in one] == [each["learned"] for each in other]
    assert other[0]["text"] == "<s>" + one[0]["text"]


def test_texts_and_conversations_stand_in_one_dataset(tmp_path: Path) -> None:
    texts = write_rows(tmp_path / "texts.jsonl", [{"text": "the lazy dog"}, {"text": "a quick fox"}])
    alone = make_spec(
        tmp_path / "alone",
        [{"kind": "jsonl", "path": str(texts), "name": "texts"}],
        tokenizer=chat_tokenizer(tmp_path / "tokenizer"),
    )
    spec = chat_spec(tmp_path, GOOD)
    both = spec.model_copy(update={"sources": [*spec.sources, *alone.sources]})
    found = documents(both, build(both).version)
    assert [each["learned"] for each in found] == [
        "a fox<|im_end|>",
        "the fox<|im_end|>the lazy dog<|im_end|>",
        "the lazy dog<|endoftext|>",
        "a quick fox<|endoftext|>",
    ]
    (tmp_path / "chat.jinja").write_text(CHATML + "{# another #}")
    again = build(both)
    assert (again.num_encoded, again.num_partitions) == (1, 2)  # a template is nothing to texts
    plain = manifest_json(local_store(alone.store, "data"), build(alone).version)
    assert "chat" not in plain["spec"]
    assert not [name for name in plain["files"] if name.endswith(MASK)]


def test_options_of_documents_count_what_a_conversation_says(tmp_path: Path) -> None:
    rows = [
        {**conversation("12", "34"), "keep": 1},
        {**conversation("123", "456"), "keep": 1},
        {**conversation("1234", "5678"), "keep": 1},
        {**conversation("123", "45 6"), "keep": 0},
        conversation("", ""),
    ]
    size = len(canonical(conversation("123", "456")).encode())
    limits = {"min_chars": 5, "max_chars": 7, "max_bytes": size}
    spec = chat_spec(tmp_path, rows, documents=limits, source={"filter": "keep == 1"})
    assert learned(spec) == ["456<|im_end|>"]
    refused(chat_spec(tmp_path, rows, documents={"max_bytes": size - 1}), BadRow, f"a document of {size:,} bytes")
    assert learned(chat_spec(tmp_path, rows[-1:] + rows[:1])) == ["34<|im_end|>"]


def shouting(chat: dict[str, Any]) -> Any:
    """Return a conversation in capitals, None if it speaks of foxes, or a number."""
    if "fox" in str(chat):
        return None
    if "number" in str(chat):
        return 5
    if "roles" in str(chat):
        return {"messages": [{"role": "narrator", "content": "x"}]}
    messages = [one | {"content": one["content"].upper()} for one in chat["messages"]]
    return chat | {"messages": messages}


def test_a_transform_gets_and_returns_the_normalized_conversation(tmp_path: Path) -> None:
    documents = {"transform": {"function": f"{__name__}:shouting", "version": "1"}}
    rows = [conversation("the dog", "answers"), conversation("the fox", "jumps")]
    spec = chat_spec(tmp_path, rows, documents=documents)
    result = build(spec)
    assert learned(spec) == ["ANSWERS<|im_end|>"]
    assert result.rows["filtered"] == 1
    wrong = chat_spec(tmp_path, [conversation("number", "x")], documents=documents)
    refused(wrong, InputError, "shouting failed: TypeError: it returned int, not a conversation or None; correct that")
    wrong = chat_spec(tmp_path, [conversation("roles", "x")], documents=documents)
    refused(wrong, InputError, "shouting failed: BadConversation: messages[0] has role 'narrator'")


def test_exclusion_takes_hashes_and_conversations_whatever_their_weights(tmp_path: Path) -> None:
    rows = [conversation(f"the dog {i}", "answers") for i in range(4)]
    spec = chat_spec(tmp_path, rows)
    content = documents(spec, build(spec).version)[3]["content"]
    weighted = {"messages": [rows[1]["messages"][0], rows[1]["messages"][1] | {"weight": 0}]}
    lines = [json.dumps(rows[0]), json.dumps(weighted), content, json.dumps("the dog 2")]
    (tmp_path / "exclude.txt").write_text("\n".join(lines))
    fewer = chat_spec(tmp_path, rows, documents={"exclude": str(tmp_path / "exclude.txt")})
    result = build(fewer)
    assert [each["row"] for each in documents(fewer, result.version)] == [
        documents(spec, build(spec).version)[2]["row"]
    ]
    assert result.rows["excluded"] == 3
    (tmp_path / "exclude.txt").write_text('{"messages": [{"role": "narrator"}]}')
    refused(fewer, InputError, "exclude.txt, line 1: messages[0] has role 'narrator'")


@pytest.mark.parametrize(("option", "kept", "filtered"), [("drop", 2, 1), ("keep", 3, 0)])
def test_a_conversation_without_a_target_is_dropped_or_kept(
    tmp_path: Path, option: str, kept: int, filtered: int
) -> None:
    spec = chat_spec(tmp_path, [*GOOD, NO_TARGET], documents={"without_target": option})
    result = build(spec)
    assert (result.rows["kept"], result.rows["filtered"]) == (kept, filtered)
    counts = build_record(local_store(spec.store, "data"), result.version).encoded["chats"].chat
    assert counts is not None
    assert (counts.dropped, counts.without_target) == ((1, 0) if option == "drop" else (0, 1))
    assert any("nothing is learned of 1 of 3 conversations" in line for line in result.facts.warnings)


def test_conversations_of_which_the_template_leaves_something_out_are_counted_in_one_line(tmp_path: Path) -> None:
    plain = CHATML[CHATML.index("{%- for message") :].replace("message.tool_calls or []", "[]")
    call = {"function": {"name": "jump", "arguments": {"over": "the fox"}}}
    called = [GOOD[0]["messages"][0], {"role": "assistant", "content": "so", "tool_calls": [call]}]
    rows = [*GOOD, {"messages": called}, {**GOOD[1], "tools": [{"name": "jump"}]}]
    spec = chat_spec(tmp_path, rows, plain, documents={"deduplicate": False}, source={"tools": "tools"})
    result = build(spec)
    counts = build_record(local_store(spec.store, "data"), result.version).encoded["chats"].chat
    assert counts == ChatCounts(conversations=4, turns=6, ended_turns=6, incomplete=2)
    line = "source chats: the template leaves tools, calls or messages out of 2 of 4 conversations; "
    assert [warning.startswith(line) for warning in result.facts.warnings].count(True) == 1
    complete = build(chat_spec(tmp_path, rows, source={"tools": "tools"}))
    assert not [warning for warning in complete.facts.warnings if "the template leaves" in warning]


def test_a_block_of_generation_that_is_never_reached_is_named(tmp_path: Path) -> None:
    template = CHATML + "{% if false %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endif %}"
    hint = "if the template has {% generation %}, check that it gets there for messages of the assistant"
    refused(chat_spec(tmp_path, GOOD, template), InputError, f"or without a target (2; {hint})")
    result = build(chat_spec(tmp_path, GOOD, template, documents={"without_target": "keep"}))
    assert [line for line in result.facts.warnings if line.endswith(f"see documents.without_target; {hint}")]
    result = build(chat_spec(tmp_path, [*GOOD, NO_TARGET]))
    assert not [line for line in result.facts.warnings if hint in line]


def test_a_conversation_without_a_target_fails_even_where_bad_rows_are_skipped(tmp_path: Path) -> None:
    rules = {"without_target": "fail", "on_error": "skip"}
    spec = chat_spec(tmp_path, [*GOOD, NO_TARGET], documents=rules)
    refused(
        spec, InputError, "nothing of the conversation is learned (documents.without_target: fail); correct the row"
    )


def test_a_message_of_weight_0_is_not_learned(tmp_path: Path) -> None:
    first, second = GOOD[1]["messages"][1], GOOD[1]["messages"][3]
    messages = [GOOD[1]["messages"][0], first | {"weight": 0}, GOOD[1]["messages"][2], second | {"loss_weight": 1.0}]
    assert learned(chat_spec(tmp_path, [{"messages": messages}])) == ["the lazy dog<|im_end|>"]


_BAD_TEMPLATES = {
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "a refusal": "{{ raise_exception('roles must alternate') }}",
}


@pytest.mark.parametrize("name", _BAD_TEMPLATES)
def test_a_row_that_the_template_does_not_render_is_bad(tmp_path: Path, name: str) -> None:
    template = "{% if messages[0].content == 'the dog' %}" + _BAD_TEMPLATES[name] + "{% endif %}" + CHATML
    spec = chat_spec(tmp_path, GOOD, template)
    refused(spec, BadRow, "line 1 at byte 0: the template does not render it")
    refused(spec, BadRow, "repair the row, or give another chat.template, or leave out bad rows")
    skipping = chat_spec(tmp_path, GOOD, template, documents={"on_error": "skip"})
    result = build(skipping)
    assert result.facts.quarantined == {"chats": {"template": 1}}
    path = version_path(result.version, QUARANTINE)
    assert json.loads(local_store(spec.store, "data").read(path))["row"] == 0
    (kept,) = documents(skipping, result.version)
    assert kept["learned"] == "the fox<|im_end|>the lazy dog<|im_end|>"


def test_bad_conversations_are_listed_by_reason(tmp_path: Path) -> None:
    template = CHATML + "{{ messages[0].content | length if 'long' in messages[0].content }}"
    rows = [
        *GOOD,
        conversation("x", "y", tools="[{not JSON"),
        {"messages": [{"role": "narrator", "content": "x"}]},
        conversation("say <|im_end|> now", "no"),
        conversation("how long is it", "14"),
    ]
    chat = {"special_tokens_in_content": "fail"}
    spec = chat_spec(tmp_path, rows, template, documents={"on_error": "skip"}, chat=chat)
    assert build(spec).facts.quarantined == {"chats": {"no_spans": 1, "not_conversation": 2, "special_token": 1}}
    failing = chat_spec(tmp_path, rows[2:], template)
    refused(failing, InputError, "tools is text that is not JSON")
    refused(chat_spec(tmp_path, rows[-1:], template), BadRow, "the spans of its messages in the rendered text")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"template": "{% for m in messages %}{{ m.content "}, SpecError, "chat.template is not a template of Jinja: "),
        ({"template": "{{ strftime_now('%Y') }}" + CHATML}, SpecError, "give chat.date, such as 2026-11-25"),
        ({"chat": {"template": "tokenizer"}}, SpecError, "comes without a chat template"),
        (
            {"chat": {"template": "/nowhere/chat.jinja"}},
            SpecError,
            "no such file; check the path, or name one of ours: chatml",
        ),
        ({"chat": {"stop_tokens": ["<|im_endd|>"]}}, SpecError, "Did you mean <|im_end|>?"),
        (
            {"config": {"chat_template": [{"name": "rag", "template": "x"}]}},
            TokenizerError,
            "its chat_template is not text; give chat.template: F",
        ),
        (
            {"config": {"bos_token": ["<s>"], "chat_template": CHATML}},
            TokenizerError,
            'its bos_token is ["<s>"], not one token',
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_next_step(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    if config := fields.get("config"):
        fields = {"tokenizer": chat_tokenizer(tmp_path / "tokenizer", **config), "chat": {"template": "tokenizer"}}
    refused(chat_spec(tmp_path, GOOD, **fields), error, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("chat: {date: 2026-11-25}", "chat: no source holds conversations; give messages: KEY to one, or remove chat"),
        ("documents: {without_target: keep}", "documents.without_target: no source holds conversations"),
    ],
)
def test_options_of_conversations_need_a_source_with_messages(tmp_path: Path, options: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    text = "dataset: d\nstore: s\nsources: [{kind: text, path: a.txt}]\ntokenizer: byte\n"
    (tmp_path / "spec.yaml").write_text(text + options)
    with pytest.raises(SpecError, match=re.escape(message)):
        load_spec(tmp_path / "spec.yaml")


def test_a_spec_file_names_template_and_date_as_people_write_them(tmp_path: Path) -> None:
    chat_spec(tmp_path, GOOD)
    spec = (
        "dataset: data\nstore: store\nsources: [{kind: jsonl, path: chats.jsonl, messages: messages}]\n"
        "tokenizer: {kind: huggingface, path: tokenizer, eot: <|endoftext|>}\n"
        "chat: {template: chat.jinja, date: 2026-11-25, stop_tokens: <|im_end|>, arguments: {a: [1, null]}}\n"
    )
    (tmp_path / "spec.yaml").write_text(spec)
    loaded = load_spec(tmp_path / "spec.yaml")
    assert (str(loaded.chat.date), loaded.chat.stop_tokens) == ("2026-11-25", ["<|im_end|>"])
    manifest = manifest_json(local_store(loaded.store, "data"), build(loaded).version)
    assert manifest["spec"]["chat"]["arguments"] == {"a": [1, None]}
    verify = ["verify", f"{loaded.store}/data", "--deep", "--spec", str(tmp_path / "spec.yaml")]
    assert main(verify) == 0  # without the layout, which the version has recorded
    (tmp_path / "spec.yaml").write_text(spec.replace("2026-11-25", "2026-11-26"))
    assert main(verify) == 2  # it differs in chat
    (tmp_path / "spec.yaml").write_text(spec.replace("2026-11-25", "yesterday"))
    with pytest.raises(SpecError, match=r"spec.yaml:5: chat.date: .*valid date.*; got 'yesterday'"):
        load_spec(tmp_path / "spec.yaml")
    (tmp_path / "spec.yaml").write_text(spec.replace("[1, null]", "2026-01-01"))
    with pytest.raises(SpecError, match=r"chat.arguments.a: input was not a valid JSON value"):
        load_spec(tmp_path / "spec.yaml")


@pytest.mark.parametrize("named", ["text", "list", "file"])
def test_the_template_and_the_special_tokens_come_with_the_tokenizer(tmp_path: Path, named: str) -> None:
    template = "{{ bos_token }}" + CHATML
    lists = [{"name": "other", "template": "x"}, {"name": "default", "template": template}]
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    config["chat_template"] = {"text": template, "list": lists, "file": "not this one"}[named]
    tokenizer = chat_tokenizer(tmp_path / "tokenizer", **config)
    if named == "file":
        (tmp_path / "tokenizer" / "chat_template.jinja").write_text(template)
    spec = chat_spec(tmp_path, GOOD, tokenizer=tokenizer, chat={"template": "tokenizer"})
    result = build(spec)
    assert documents(spec, result.version)[0]["text"].startswith("<s><|im_start|>user")
    chat = manifest_json(local_store(spec.store, "data"), result.version)["spec"]["chat"]
    assert chat["special_tokens"] == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    other = chat_spec(
        tmp_path, GOOD, tokenizer=tokenizer, chat={"template": "tokenizer", "arguments": {"bos_token": "<think>"}}
    )
    assert documents(other, build(other).version)[0]["text"].startswith("<think><|im_start|>user")


def test_an_older_special_tokens_map_names_special_tokens(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(tmp_path / "tokenizer", bos_token="<|endoftext|>")
    (tmp_path / "tokenizer" / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}}')
    spec = chat_spec(tmp_path, GOOD, "{{ bos_token }}" + CHATML, tokenizer=tokenizer)
    assert documents(spec, build(spec).version)[0]["text"].startswith("<s><|im_start|>user")


def test_gates_of_conversations_pass_and_fail(tmp_path: Path) -> None:
    passing = {"max_documents_without_target": 0, "min_learned_share": 0.1}
    passing |= {"stop_token_learned": True, "no_doubled_bos": True}
    result = build(chat_spec(tmp_path, GOOD, checks=passing))
    assert [gate.passed for gate in result.gates] == [True] * 4
    assert result.gates[1].found.endswith("of conversations)")
    template = "{{ '<s><s>' }}" + CHATML.replace("<|im_end|>\\n' }}\n{%- endfor", "\\n' }}\n{%- endfor")
    failing = passing | {"min_learned_share": 0.9}
    tokenizer = chat_tokenizer(tmp_path / "tokenizer", bos_token="<s>")
    spec = chat_spec(tmp_path / "other", [*GOOD, NO_TARGET], template, checks=failing, tokenizer=tokenizer)
    with pytest.raises(GateFailed) as error:
        build(spec)
    assert [(gate["name"], gate["passed"]) for gate in error.value.gates] == [(name, False) for name in failing]
    assert "3 of 3 turns of the assistant end without one" in str(error.value)
    assert "2 of 2 conversations begin with two" in str(error.value)
    assert "found 1 of 3 conversations" in str(error.value)


def test_gates_of_conversations_say_that_texts_have_none(tmp_path: Path) -> None:
    texts = write_rows(tmp_path / "a.jsonl", [{"text": "a text"}])
    checks = {"stop_token_learned": True, "no_doubled_bos": False}
    result = build(make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(texts)}], checks=checks))
    assert [(gate.name, gate.passed, gate.compared) for gate in result.gates] == [("stop_token_learned", True, False)]


def test_a_tryout_counts_conversations_that_are_rendered(tmp_path: Path) -> None:
    rows = [NO_TARGET, *(conversation(f"the dog {i}", "answers") for i in range(9))]
    spec = chat_spec(tmp_path, rows, limit=4)
    result = build(spec)
    assert (result.tag, result.rows["kept"], result.rows["filtered"]) == ("tryout", 4, 1)


def test_where_finds_a_conversation_and_says_why_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = chat_spec(tmp_path, [*GOOD, NO_TARGET], documents={"min_chars": 6})
    build(spec)
    reference = f"{spec.store}/data"

    def where(*arguments: str) -> dict[str, Any]:
        main(["where", reference, "--json", *arguments])
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    def of_messages(value: Any) -> dict[str, Any]:
        (tmp_path / "chat.json").write_text(json.dumps(value))
        return where("--messages", str(tmp_path / "chat.json"))

    turns = [("human", "the dog"), ("gpt", "a fox")]
    shared = {"conversations": [{"from": name, "value": text} for name, text in turns]}
    for value in (GOOD[0], GOOD[0]["messages"], shared, {"instruction": "the dog", "output": "a fox"}):
        assert [each["row"] for each in of_messages(value)["documents"]] == [0]
    assert of_messages(conversation("not", "there"))["status"] == "not_found"
    assert of_messages(conversation("a", "b"))["reason"] == "it has 2 characters, and documents.min_chars is 6"
    why = "nothing of it is learned, and documents.without_target is drop"
    assert of_messages(NO_TARGET)["reason"] == why
    row = len(json.dumps(GOOD[0])) + len(json.dumps(GOOD[1])) + 2
    assert where("--path", "chats.jsonl", "--row", str(row))["reason"] == why
    assert where("--path", "chats.jsonl", "--row", "0")["documents"][0]["row"] == 0
    for value in ({"no": "chat"}, GOOD, [{"instruction": "the dog", "output": "a fox"}]):
        message = of_messages(value)["error"]["message"]
        assert "of none of the layouts" in message
        assert message.endswith("; write one conversation to the file, in any layout")


def test_a_deep_verification_needs_nothing_but_the_version_and_its_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[{"from": "human", "value": f"the dog {i}"}, {"from": "gpt", "value": "jumps"}] for i in range(5)]
    spec = chat_spec(tmp_path, [{"turns": row} for row in rows], source={"messages": "turns"})
    result = build(spec)
    (tmp_path / "chat.jinja").unlink()
    assert main(["verify", f"{spec.store}/data", "--deep", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["documents_encoded_again"], found["damages"], found["warnings"]) == (5, [], [])
    shard = max(load_manifest(local_store(spec.store, "data"), result.version).shards, key=lambda each: each.tokens)
    mask = local_store(spec.store, "data").local(version_path(result.version, shard.name)).with_suffix(MASK)
    data = np.frombuffer(mask.read_bytes(), np.uint8).copy()
    data[3] ^= 1
    mask.write_bytes(data.tobytes())
    assert main(["verify", f"{spec.store}/data", "--json"]) == 3


def test_a_version_of_other_rules_is_read_but_neither_reused_nor_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = chat_spec(tmp_path, GOOD)
    with monkeypatch.context() as patched:
        patched.setattr("tokenloom.tasks.building.chat.ChatDefinition", partial(ChatDefinition, rules=1))
        old = build(spec)
    new = build(spec)
    assert (new.num_encoded, new.version == old.version) == (1, False)
    capsys.readouterr()
    reference = f"{spec.store}/data@{old.version}"
    assert main(["verify", reference, "--deep", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["documents_encoded_again"], found["damages"]) == (0, [])
    assert "2 of its documents are not compared; build the version again" in found["warnings"][0]
    assert main(["inspect", reference]) == 0
    assert main(["where", reference, "--path", "chats.jsonl", "--row", "0"]) == 0


def test_a_template_that_writes_far_more_than_it_is_given_changes_nothing_but_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*GOOD, NO_TARGET, conversation("the fox", "roles"), {"messages": []}, *GOOD]
    whole = build(spec := chat_spec(tmp_path, rows, documents={"on_error": "skip"}))
    monkeypatch.setattr("tokenloom.tasks.building.documents.PART_CHARS", 1)
    alone = spec.model_copy(update={"store": str(tmp_path / "alone")})
    parts = build(alone)
    assert whole.rows == parts.rows
    assert whole.rows["quarantined"] == 1
    assert listed_files(spec, whole.version) == listed_files(alone, parts.version)


def test_each_option_of_chat_names_another_version(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"arguments": {"a": None}},
        {"date": "2026-11-25"},
        {"stop_tokens": ["<|im_end|>"]},
        {"special_tokens_in_content": "token"},
    ]
    versions = [plan_build(chat_spec(tmp_path, GOOD, chat=option), None).build.version for option in options]
    versions.append(plan_build(chat_spec(tmp_path, GOOD, CHATML + "{# another #}"), None).build.version)
    versions.append(plan_build(chat_spec(tmp_path, GOOD, documents={"without_target": "keep"}), None).build.version)
    assert len(set(versions)) == len(versions)
    named = chat_spec(tmp_path, GOOD, source={"layout": "messages"}, documents={"without_target": "drop"})
    assert plan_build(named, None).build.version == versions[0]  # as it is recognized
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "chat.jinja").rename(tmp_path / "elsewhere" / "renamed")
    moved = named.model_copy(
        update={"chat": named.chat.model_copy(update={"template": f"{tmp_path}/elsewhere/renamed"})}
    )
    assert plan_build(moved, None).build.version == versions[0]
