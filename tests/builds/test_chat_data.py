"""Conversations, real where available: their learned text is that of the rendered spans, widened to whole tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.builders.chat_tokenizer import SPECIAL
from tests.builders.chats import CHATML
from tests.builders.datasets import build, listed_files, local_store, make_spec
from tests.counts import count
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.layouts import normalized
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import load_manifest
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tokenizers import load_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # full counts, on a busy machine
_SOURCES = {
    "alpaca": ("alpaca_en_demo.json", "."),
    "glaive": ("glaive_toolcall_en_demo.json", "conversations"),
    "reason": ("reason_tool_use_demo_50.jsonl", "messages"),
    "v1": ("v1_sft_demo.jsonl", "messages"),
}
_LAYOUTS = {"alpaca": "alpaca", "glaive": "sharegpt", "reason": "messages", "v1": "messages"}
_ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def _rows(path: Path) -> dict[int, Any]:
    """Return the rows of a file by their number: a position in an array, the byte of a line."""
    data = path.read_bytes()
    if data.lstrip().startswith(b"["):
        return dict(enumerate(json.loads(data)))
    lines = data.splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)]).tolist()
    return {start: json.loads(line) for start, line in zip(starts, lines, strict=False)}


def _conversations(any_data: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the normalized conversations of each source by row."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name, (file, key) in _SOURCES.items():
        rows, layout = _rows(any_data / "chat" / file), _LAYOUTS[name]
        found[name] = {
            i: normalized(row if key == "." else row[key], layout, row.get("tools")) for i, row in rows.items()
        }
    return found


@pytest.fixture(scope="module")
def spec(any_data: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildSpec:
    """A build of all conversations, with the vocabulary of GPT-NeoX and tokens around messages."""
    folder = tmp_path_factory.mktemp("chats")
    library = tokenizers.Tokenizer.from_file(str(any_data / "tokenizers" / "gpt-neox-20b" / "tokenizer.json"))
    library.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in SPECIAL])
    library.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in _ADDED])
    library.save(str(folder / "tokenizer.json"))
    (folder / "chat.jinja").write_text(CHATML)
    sources = [
        {"kind": "jsonl", "name": name, "path": str(any_data / "chat" / file), "messages": key}
        for name, (file, key) in _SOURCES.items()
    ]
    tokenizer = {"kind": "huggingface", "path": str(folder / "tokenizer.json"), "eot": "<|endoftext|>"}
    chat = {"template": str(folder / "chat.jinja")}
    return make_spec(folder / "store", sources, tokenizer=tokenizer, chat=chat, shard_tokens=100_000)


def test_from_shards_alone_the_learned_text_is_that_of_the_spans_widened_to_whole_tokens(
    spec: BuildSpec, any_data: Path
) -> None:
    version = build(spec).version
    store = local_store(spec.store, spec.dataset)
    manifest = load_manifest(store, version)
    tables = VersionTables(store, manifest)
    path = spec.tokenizer.model_dump()["path"]
    library = tokenizers.Tokenizer.from_file(path)
    tokenizer = load_tokenizer(spec.tokenizer.model_dump())
    encoder = ChatEncoder(ChatDefinition(CHATML), tokenizer)
    added = {i: len(token.content.encode()) for i, token in library.get_added_tokens_decoder().items()}
    tokens = [library.id_to_token(i) or "" for i in range(tokenizer.vocab_size)]
    num_bytes = np.array([added.get(i, len(token)) for i, token in enumerate(tokens)])  # a letter is a byte there
    conversations = _conversations(any_data)
    is_learned, num_compared = learned_classes("assistant"), 0
    for entry in manifest.shards:
        shard = StoredShard(store, version, entry)
        found = [each for batch in tables.open(entry).batches() for each in tables.documents(entry, batch)]
        ids, classes = shard.tokens(0, entry.tokens), shard.classes(0, entry.tokens)
        for each in found[:: count(3, 1)]:
            rendered = encoder.render(canonical(conversations[each["source"]][each["row"]]))
            span = slice(each["start"], each["start"] + each["num_tokens"])
            encoding = library.encode(rendered.text, add_special_tokens=False)
            assert encoding.ids == ids[span][:-1].tolist()
            of_chars = is_learned[np.frombuffer(rendered.classes, np.uint8)]
            of_bytes = np.repeat(of_chars, [len(char.encode()) for char in rendered.text])
            ends = np.cumsum(num_bytes[encoding.ids])
            assert ends[-1] == len(of_bytes)
            wanted = np.logical_or.reduceat(of_bytes, ends - num_bytes[encoding.ids])
            assert wanted.tolist() == is_learned[classes[span]][:-1].tolist()
            assert classes[span][-1] == 0
            num_compared += 1
    assert num_compared >= manifest.num_documents // count(3, 1) > 500


def test_two_workers_make_the_same_bytes(spec: BuildSpec, tmp_path: Path) -> None:
    alone = spec.model_copy(update={"store": str(tmp_path)})
    first, second = build(spec), build(alone, 2)
    assert first.version == second.version
    assert listed_files(spec, first.version) == listed_files(alone, second.version)
