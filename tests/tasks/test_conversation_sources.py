"""Conversations are read from every kind of source, and are the same from each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.chats import chat_spec
from tests.builders.row_files import Row, write_rows
from tokenloom.chat.conversation import parse
from tokenloom.errors import BadRow, InputError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building.plan import plan_build
from tokenloom.tasks.sources import Rows, make_reader, reader
from tokenloom.tasks.sources.base import WANTED

_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "number"}}}}}
_OTHER = {"type": "function", "function": {"name": "say", "parameters": {"properties": {"words": {"type": "string"}}}}}


def called(name: str, **arguments: Any) -> Row:
    """Return a message that calls a tool."""
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def chat_rows(count: int = 60) -> list[Row]:
    """Return rows with a conversation each, whose shapes differ, and columns beside it."""
    shapes: list[list[Row]] = [
        [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Héllo \U0001f600", "weight": 0}],
        [called("add", a=1, b=2), {"role": "tool", "content": "3", "tool_call_id": "c1"}],
        [called("say", words=["a", "b"], loud=True), {"role": "assistant", "content": "", "reasoning_content": "Hm."}],
        [{"role": "assistant", "content": "So.\r\n\u2028", "name": "bot"}],
    ]
    return [
        {
            "id": f"id-{i}",
            "lang": ("en", "de", "fr")[i % 3],
            "messages": [{"role": "user", "content": f"Question {i}?"}, *shapes[i % 4]],
            "tools": [[_TOOL], [_TOOL, _OTHER], [], None][i % 4],
        }
        for i in range(count)
    ]


def as_cells(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose lists are JSON text."""
    return [{key: json.dumps(one) if isinstance(one, list) else one for key, one in row.items()} for row in rows]


Write = Callable[[Path, Sequence[Row]], Path]


def _writer(name: str) -> Write:
    return lambda folder, rows: write_rows(folder / name, rows, 7)


def _writer_of_cells(name: str) -> Write:
    return lambda folder, rows: write_rows(folder / name, as_cells(rows), 7)


write_jsonl, write_parquet, write_arrow = map(_writer, ("a.jsonl", "a.parquet", "a.arrow"))
KINDS: dict[str, tuple[str, Write]] = {
    "jsonl": ("jsonl", write_jsonl),
    "json array": ("jsonl", _writer("a.json")),
    "parquet": ("parquet", write_parquet),
    "parquet of text": ("parquet", _writer_of_cells("a.parquet")),
    "arrow": ("arrow", write_arrow),
    "csv": ("csv", _writer_of_cells("a.csv")),
    "arrayrecord": ("arrayrecord", _writer("a.array_record")),
    "hugging face json": ("huggingface json", write_jsonl),
    "hugging face parquet": ("huggingface parquet", write_parquet),
    "hugging face arrow": ("huggingface arrow", write_arrow),
    "hugging face csv": ("huggingface csv", _writer_of_cells("a.csv")),
}


def batches(kind: str, path: Path, **options: Any) -> list[Rows]:
    """Read all rows of a file; `kind` may name a builder of the package datasets."""
    kind, _, builder = kind.partition(" ")
    chosen = {"messages": "messages", "layout": "messages", "delimiter": ",", "max_bytes": 2**28, **options}
    given = {"kind": kind, "text": None, **chosen}
    given |= {"name": builder, "split": "train", "data_files": str(path)} if builder else {}
    files = make_reader(given).files("" if builder else str(path))
    return [
        rows
        for file in files
        for reader in [make_reader({**given, **file.options})]
        for part in reader.partitions(file.url)
        for rows in reader.read(file.url, part)
    ]


def texts(kind: str, path: Path, **options: Any) -> list[str | None]:
    """Return the texts of all rows."""
    return [text for rows in batches(kind, path, **options) for text in rows.texts.to_pylist()]


@pytest.fixture(params=KINDS)
def kind_and_write(request: pytest.FixtureRequest) -> tuple[str, Write]:
    """Every kind of source, with the function that writes its file."""
    return KINDS[request.param]


def test_every_kind_gives_the_same_text_without_the_nulls_of_arrow(
    kind_and_write: tuple[str, Write], tmp_path: Path
) -> None:
    kind, write = kind_and_write
    found = texts(kind, write(tmp_path, chat_rows()))
    assert found == texts("jsonl", write_jsonl(tmp_path, chat_rows()))
    assert not any("null" in str(text) for text in found)
    conversations = [parse(str(text)) for text in found]
    assert [sorted(one) for one in conversations[:4]] == [["messages", "tools"]] * 2 + [["messages"]] * 2
    arguments = [one["messages"][1]["tool_calls"][0]["function"]["arguments"] for one in conversations[1:3]]
    assert arguments == [{"a": 1, "b": 2}, {"words": ["a", "b"], "loud": True}]
    assert conversations[1]["tools"] == [_TOOL, _OTHER]
    assert conversations[0]["messages"][2] == {"content": "Héllo \U0001f600", "role": "assistant", "train": False}


def test_filter_and_id_work_beside_conversations(kind_and_write: tuple[str, Write], tmp_path: Path) -> None:
    kind, write = kind_and_write
    rows = chat_rows()
    found = batches(kind, write(tmp_path, rows), filter='lang == "de"', id="id")
    kept = [text for one in found for text in one.texts.to_pylist()]
    assert [parse(text)["messages"][0]["content"] for text in kept] == [
        row["messages"][0]["content"] for row in rows if row["lang"] == "de"
    ]
    assert [name for one in found for name in (one.ids or pa.nulls(0)).to_pylist()] == [
        row["id"] for row in rows if row["lang"] == "de"
    ]
    assert sum(one.num_filtered for one in found) == 40


def test_a_row_without_a_conversation_is_null(kind_and_write: tuple[str, Write], tmp_path: Path) -> None:
    kind, write = kind_and_write
    rows = chat_rows(5)
    rows[3]["messages"] = None
    found = texts(kind, write(tmp_path, rows))
    assert [text is None for text in found] == [False, False, False, True, False]


def test_a_row_that_is_no_conversation_is_reported_or_skipped(
    kind_and_write: tuple[str, Write], tmp_path: Path
) -> None:
    kind, write = kind_and_write
    rows = chat_rows(12)
    rows[8]["messages"][0]["role"] = "critic"
    rows[10]["messages"] = []
    path = write(tmp_path, rows)
    with pytest.raises(
        BadRow, match=r"messages\[0\] has role 'critic'; it must be one of .*: repair the row"
    ) as caught:
        texts(kind, path)
    assert caught.value.reason == "not_conversation"
    assert str(path) in str(caught.value)
    found = batches(kind, path, on_error="skip")
    assert sum(len(one.texts) for one in found) == 10
    bad = [row for one in found for row in one.bad]
    assert [row.reason for row in bad] == ["not_conversation"] * 2
    assert "it has no messages" in str(bad[1])


def test_preference_pairs_are_refused_though_only_the_conversations_are_named(
    kind_and_write: tuple[str, Write], tmp_path: Path
) -> None:
    kind, write = kind_and_write
    message = {"from": "gpt", "value": "Hi"}
    turns = [{"from": "human", "value": "Hi"}]
    rows = [{"conversations": turns, "chosen": [message], "rejected": [message]}] * 3
    path = write(tmp_path, rows)
    with pytest.raises(InputError, match="preference pair"):
        texts(kind, path, messages="conversations", layout="sharegpt")
    chosen = texts(kind, path, messages="chosen", layout="sharegpt")  # whoever names one side wants it
    assert chosen == ['{"messages":[{"role":"assistant","content":"Hi"}]}'] * 3


def test_a_system_prompt_beside_the_conversation_is_its_first_message(
    kind_and_write: tuple[str, Write], tmp_path: Path
) -> None:
    kind, write = kind_and_write
    hello, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So."}
    prompt = {"role": "system", "content": "Be brief."}
    expected = json.dumps({"messages": [prompt, hello, answer]}, separators=(",", ":"))
    rows: list[Row] = [{"messages": [hello, answer], "system": "Be brief."}]
    assert texts(kind, write(tmp_path, rows)) == [expected]
    assert texts(kind, write(tmp_path, [{**rows[0], "messages": [prompt, hello, answer]}])) == [expected]
    row = {"prompt": "Hi", "completion": "So.", "system": "Be brief."}
    assert texts(kind, write(tmp_path, [row]), messages=".", layout="prompt_completion") == [expected]
    with pytest.raises(BadRow, match="the system prompt beside its messages is not that of its system message"):
        texts(kind, write(tmp_path, [{"messages": [prompt, hello], "system": "Be long."}]))


def test_only_wanted_conversations_are_made(kind_and_write: tuple[str, Write], tmp_path: Path) -> None:
    kind, write = kind_and_write
    path = write(tmp_path, chat_rows(9))
    all_rows = batches(kind, path)
    row = int(all_rows[0].rows[4])
    some = batches(kind, path, **{WANTED: frozenset([row])})
    assert [one.texts.null_count for one in some] == [len(one.texts) - (row in one.rows) for one in some]
    assert some[0].texts[4] == all_rows[0].texts[4]


def test_the_row_itself_may_be_a_conversation(kind_and_write: tuple[str, Write], tmp_path: Path) -> None:
    kind, write = kind_and_write
    rows = [{"instruction": "Add.", "input": f"{i}", "output": "3", "score": i, "system": ""} for i in range(9)]
    one = '{"messages":[{"role":"user","content":"Add.\\nX"},{"role":"assistant","content":"3"}]}'
    expected = [one.replace("X", str(i)) for i in range(9)]
    path = write(tmp_path, rows)
    assert texts(kind, path, messages=".", layout="alpaca") == expected
    assert texts(kind, path, messages=".", layout="alpaca", filter="score >= 5") == expected[5:]
    with pytest.raises(InputError, match=r"[sS]et messages:|has no 'prompt'"):
        texts(kind, path, messages=".", layout="prompt_completion")
    pairs = [{"prompt": "Hi", "completion": "So."}] * 2
    found = texts(kind, write(tmp_path, pairs), messages=".", layout="prompt_completion")
    assert found == ['{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"So."}]}'] * 2


def test_tools_may_have_another_name_and_a_missing_one_is_reported(
    kind_and_write: tuple[str, Write], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, write = kind_and_write
    rows = [{"functions" if key == "tools" else key: one for key, one in row.items()} for row in chat_rows(8)]
    path = write(tmp_path, rows)
    assert texts(kind, path, tools="functions") == texts("jsonl", write_jsonl(tmp_path, chat_rows(8)))
    if kind in ("jsonl", "arrayrecord", "huggingface json"):
        assert [one.missing_keys for one in batches(kind, write(tmp_path, rows), tools="schemas")][-1] == ("schemas",)
        monkeypatch.setattr(reader, "BATCH_BYTES", 1)  # so the last batch has no rows
        assert [one.missing_keys for one in batches(kind, write(tmp_path, rows), tools="schemas")][-1] == ("schemas",)
    else:
        with pytest.raises(InputError, match=r"no column 'schemas'.*Set tools:|no column 'schemas'.*set tools:"):
            texts(kind, path, tools="schemas")


def test_keys_of_conversations_may_be_dotted(tmp_path: Path) -> None:
    rows = [{"meta": {"chat": row["messages"], "tools": row["tools"]}} for row in chat_rows(8)]
    expected = texts("jsonl", write_jsonl(tmp_path, chat_rows(8)))
    for kind, write in (("jsonl", write_jsonl), ("parquet", write_parquet), ("arrow", write_arrow)):
        path = write(tmp_path, rows)
        assert texts(kind, path, messages="meta.chat", tools="meta.tools") == expected


def test_a_large_batch_of_structs_is_read_in_pieces(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "x" * 100_000}, called("add", a="y" * 100_000)]}] * 60
    for kind in ("parquet", "arrow"):
        found = batches(kind, write_rows(tmp_path / f"a.{kind}", rows, len(rows)))
        assert len(found) >= 3
        assert max(sum(map(len, one.texts.to_pylist())) for one in found) < 6_000_000
        assert [row for one in found for row in one.rows.tolist()] == list(range(60))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_bytes_that_are_not_utf8_in_a_struct_are_a_bad_row(kind: str, tmp_path: Path) -> None:
    contents = pa.array([b"good", b"\xff", b"good too"], pa.binary()).view(pa.string())
    message = pa.StructArray.from_arrays([pa.array(["user"] * 3), contents], ["role", "content"])
    table = pa.table({"messages": pa.ListArray.from_arrays([0, 1, 2, 3], message)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(BadRow, match="row 1: invalid UTF-8 in its conversation"):
        texts(kind, tmp_path / f"a.{kind}")
    (found,) = batches(kind, tmp_path / f"a.{kind}", on_error="skip")
    assert found.rows.tolist() == [0, 2]
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, "invalid_utf8")]


def test_a_lone_surrogate_is_a_bad_row_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"messages": [{"role": "user", "content": "\\ud800"}]}\n')
    with pytest.raises(BadRow, match="lone surrogate, in its conversation"):
        texts("jsonl", path)
    assert texts("jsonl", path, encoding_errors="replace") == ['{"messages":[{"role":"user","content":"\ufffd"}]}']


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_that_holds_no_conversations_is_refused(kind: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / f"a.{kind}", [{"score": 1, "words": ["a"], "messages": "{}"}] * 2)
    for name in ("score", "words"):
        with pytest.raises(
            InputError, match=rf"column '{name}' is .*; a column of conversations holds lists of structs"
        ):
            texts(kind, path, messages=name)
    with pytest.raises(InputError, match=r"no column 'chat'; its columns are: score, words, messages. Set messages:"):
        texts(kind, path, messages="chat")
    with pytest.raises(BadRow, match="it is an object, not a list of messages, nor has it one; set layout:"):
        texts(kind, path, messages=".")


def test_texts_say_how_conversations_are_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, chat_rows(1))
    with pytest.raises(BadRow, match=r"'messages' is an array, not text; .*, set messages: for conversations"):
        texts("jsonl", path, messages=None, text="messages")
    path.write_text(json.dumps([chat_rows(1)[0]["messages"]]))
    with pytest.raises(BadRow, match=r"an array where an object with .*, messages: \. for conversations"):
        texts("jsonl", path, messages=None, text="text")
    assert len(texts("jsonl", path, messages=".")) == 1


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "arrow", "arrayrecord", "huggingface"])
def test_a_source_names_its_texts_or_its_conversations(kind: str) -> None:
    place = {"name": "org/name"} if kind == "huggingface" else {"path": "a"}

    def parsed(**fields: Any) -> Any:
        return BuildSpec.model_validate(
            {"dataset": "data", "store": "store", "tokenizer": "byte", "sources": [{"kind": kind, **place, **fields}]}
        )

    (source,) = parsed(messages="chat", layout="sharegpt", tools="functions").sources
    assert (source.text, source.messages, source.layout, source.tools) == (None, "chat", "sharegpt", "functions")
    assert {"messages", "layout", "tools"} <= source.identity().keys()
    assert BuildSpec.model_validate(parsed(messages="chat").model_dump()).has_conversations
    assert not {"messages", "layout", "tools"} & parsed(text="body").sources[0].identity().keys()
    for fields, message in (
        ({"text": "body", "messages": "chat"}, "text and messages exclude each other: remove text"),
        ({"layout": "alpaca"}, "layout is an option of conversations: give messages"),
        ({"tools": "functions", "text": "body"}, "tools is an option of conversations: give messages"),
        ({"messages": "chat", "layout": "chatml"}, r"match pattern ..\(messages\|sharegpt\|alpaca\|prompt_completion"),
    ):
        with pytest.raises(ValueError, match=message):
            parsed(**fields)


@pytest.mark.parametrize(
    ("rows", "options", "layout"),
    [
        (chat_rows(3), {}, "messages"),
        ([{"messages": [{"from": "human", "value": "Hi"}]}], {}, "sharegpt"),
        ([{"instruction": "Hi", "output": "So."}], {"messages": "."}, "alpaca"),
        ([{"prompt": "Hi", "completion": "So."}], {"messages": "."}, "prompt_completion"),
        ([{"messages": None}, {}, {"messages": [7]}, {"messages": "{"}, *chat_rows(1)], {}, "messages"),
        ([{**chat_rows(1)[0], "lang": "xx"}], {"filter": 'lang == "en"'}, "messages"),
        (chat_rows(1), {"layout": "sharegpt"}, "sharegpt"),
    ],
)
def test_a_plan_recognizes_the_layout_from_the_first_rows(
    rows: list[Row], options: Row, layout: str, tmp_path: Path
) -> None:
    spec = chat_spec(tmp_path, rows, source=options)
    plan = plan_build(spec, None)
    assert [file.options["layout"] for file in plan.inputs] == [layout]
    assert plan.identity["sources"][0]["layout"] == layout
    named = plan_build(chat_spec(tmp_path, rows, source={**options, "layout": layout}), None)
    assert named.build.version == plan.build.version


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"messages": [{"role": "user", "from": "human", "content": "a", "value": "b"}]}],
            "set layout: to the one to",
        ),
        ([{"messages": "Hi"}], "of none of the layouts messages, sharegpt, alpaca, prompt_completion; set messages:"),
        ([{"messages": None}], "no conversation in its first rows; set layout:"),
        ([{"text": "Hi"}], "no key 'messages'; its keys are: text. Set messages: to one of them"),
        ([{**chat_rows(1)[0], "chosen": {}, "rejected": {}}], "preference pair"),
    ],
)
def test_a_plan_says_why_it_recognizes_no_layout(rows: list[Row], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        plan_build(chat_spec(tmp_path, rows), None)
    assert caught.value.source == "chats"
    assert str(tmp_path / "chats.jsonl") in str(caught.value)
