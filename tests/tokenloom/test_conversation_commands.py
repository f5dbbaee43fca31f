"""plan, peek, inspect and the report show conversations: layouts, roles, what is learned, and the normalized form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.chats import CHATML, chat_tokenizer, conversation
from tests.builders.commands import run_json
from tests.builders.row_files import write_rows
from tokenloom.cli.main import main

_CALL = {
    "messages": [
        {"role": "user", "content": "the dog"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "jump", "arguments": '{"over": "the fox"}'}}]},
        {"role": "tool", "content": "it jumps", "name": None},
        {"role": "assistant", "content": "the dog jumps"},
    ],
    "tools": [{"name": "jump", "parameters": {"over": None, "type": "object"}}],
}
_NORMALIZED_CALL = {"type": "function", "function": {"name": "jump", "arguments": {"over": "the fox"}}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec of conversations and texts, built into its store."""
    folder = tmp_path_factory.mktemp("conversations")
    write_rows(folder / "chats.jsonl", [_CALL, *(conversation("who", f"fox {i}") for i in range(20))])
    write_rows(folder / "texts.jsonl", [{"text": f"a fox and a dog {i}"} for i in range(3)])
    (folder / "chatml.jinja").write_text(CHATML)
    spec = {
        "dataset": "chat",
        "store": "./store",
        "sources": [
            {"kind": "jsonl", "path": "chats.jsonl", "messages": "messages", "tools": "tools", "name": "chats"},
            {"kind": "jsonl", "path": "texts.jsonl", "name": "texts"},
        ],
        "tokenizer": chat_tokenizer(folder / "tokenizer"),
        "chat": {"template": "chatml.jinja"},
        "splits": {"train": 1.0},
    }
    (folder / "chat.yaml").write_text(json.dumps(spec))
    assert main(["build", str(folder / "chat.yaml"), "--direct", "--workers", "0"]) == 0
    return folder


def _lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert main([*arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_plan_says_layout_and_template_and_shows_the_first_conversation(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _lines(capsys, "plan", str(project / "chat.yaml"))
    (said,) = (line for line in lines if line.startswith("conversations: "))
    assert said.startswith(f"conversations: chats has the layout messages; template {project}/chatml.jinja")
    first = lines.index(next(line for line in lines if line.startswith("the first, ")))
    assert lines[first].startswith(f"the first, {project}/chats.jsonl, line 1 at byte 0")
    assert "  > assistant    the dog jumps<|im_end|>" in lines[first:]
    of_users = _lines(capsys, "plan", str(project / "chat.yaml"), "--learn", "user")
    assert [line for line in of_users if line.startswith("  > ")] == ["  > user         the dog"]
    chat = run_json(capsys, "plan", str(project / "chat.yaml"))["chat"]
    assert chat["layouts"] == {"chats": "messages"}
    assert "".join(run["text"] for run in chat["first"] if run["learned"]).endswith("the dog jumps<|im_end|>")


def test_plan_names_what_is_wrong_with_the_first_rows_of_each_source(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = project / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.role + (m.content or '') }}{% endfor %}")
    sources = [
        {"kind": "jsonl", "path": f"{project}/chats.jsonl", "messages": "messages", "name": name, **more}
        for name, more in (("chats", {}), ("called", {"tools": "tools"}))
    ]
    options = ["--set", f"chat.template={template}", "--set", f"sources={json.dumps(sources)}"]
    warnings = run_json(capsys, "plan", str(project / "chat.yaml"), *options)["warnings"]
    ends = "end without a stop token, so a model does not learn to end them"
    leaves = "the template leaves tools, calls or messages out"
    for name in ("chats", "called"):
        first = f"first rows of source {name}: "
        assert [line.partition(";")[0].removeprefix(first) for line in warnings if line.startswith(first)] == [
            f"21 of 21 turns of the assistant {ends}",
            f"{leaves} of 1 of 20 conversations",
        ]


def test_a_stop_that_is_no_token_of_the_tokenizer_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "tokenizer={kind: byte}", "--set", "dataset=bytes"]
    named = (
        "; '<|im_end|>', which ends a turn in the template, is not a token of byte but 10 ordinary tokens "
        "there: give a tokenizer that has it, another chat.template, or this text as chat.stop_tokens"
    )
    for command in (["plan"], ["build", "--direct", "--workers", "0"]):
        warnings = run_json(capsys, *command, str(project / "chat.yaml"), *options)["warnings"]
        assert any(named in warning for warning in warnings)
    learned = run_json(capsys, "plan", str(project / "chat.yaml"), *options, "--set", "chat.stop_tokens=<|im_end|>")
    assert not any("stop token" in line for line in learned["warnings"])


def test_peek_prints_runs_and_the_normalized_form(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = run_json(capsys, "peek", str(project / "store/chat"), "--count", "100")["documents"]
    texts = [document for document in documents if document["source"] == "texts"]
    assert [text.keys() & {"runs", "conversation"} for text in texts] == [set()] * 3
    chats = {document["row"]: document for document in documents if document["source"] == "chats"}
    called = chats[0]
    messages = called["conversation"]["messages"]
    assert messages[1] == {"role": "assistant", "tool_calls": [_NORMALIZED_CALL]}
    assert messages[2] == {"role": "tool", "content": "it jumps"}  # null is no name
    assert [run["start"] for run in called["runs"][1:]] == [run["end"] for run in called["runs"][:-1]]
    assert called["runs"][-1]["end"] == called["num_tokens"]
    roles = {run["role"]: run["learned"] for run in called["runs"]}
    assert roles["tool_call"]
    assert not roles["tool_output"]
    lines = _lines(capsys, "peek", str(project / "store/chat"), "--count", "100")
    assert sum(line.endswith("<|im_end|>") and line.startswith("  > assistant    fox ") for line in lines) == 20
    called = _lines(capsys, "peek", str(project / "store/chat"), "--count", "100", "--learn", "user, tool_output")
    assert {"  > user         who", "  > tool_output  it jumps"} <= set(called)
    assert not any("> assistant" in line for line in called)
    everything = _lines(capsys, "peek", str(project / "store/chat"), "--count", "100", "--learn", "all")
    assert "  > user         who" in everything


def test_peek_does_without_a_source_that_is_gone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "chats.jsonl").rename(project / "away")
    try:
        documents = run_json(capsys, "peek", str(project / "store/chat"), "--count", "100")["documents"]
    finally:
        (project / "away").rename(project / "chats.jsonl")
    assert {document["conversation"] for document in documents if "runs" in document} == {None}


def test_inspect_and_the_report_count_roles_turns_and_the_learned_share(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_json(capsys, "inspect", str(project / "store/chat"))
    documents = run_json(capsys, "peek", str(project / "store/chat"), "--count", "100")["documents"]
    learned = sum(
        run["end"] - run["start"] for document in documents for run in document.get("runs", ()) if run["learned"]
    )
    learned += sum(document["num_tokens"] for document in documents if "runs" not in document)
    assert found["conversations"]["conversations"] == 21
    assert found["conversations"]["turns"] == 22
    assert found["conversations"]["learned"] == learned
    assert sum(found["conversations"]["tokens"].values()) == found["splits"]["train"]["tokens"]
    lines = _lines(capsys, "inspect", str(project / "store/chat"))
    assert any(line.startswith("  chat       21 conversations, 22 ended turns of the assistant; ") for line in lines)
    (page,) = (project / "store/chat/reports").iterdir()
    assert "21 conversations with 22 ended turns of the assistant." in page.read_text()
