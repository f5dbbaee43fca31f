"""What is learned of each document: from the shards alone, and from the rendered conversations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.builders.chat_tokenizer import MARKED, write_chat_tokenizer
from tests.builders.datasets import local_store, make_spec
from tests.builders.made_conversations import made_conversations
from tokenloom.chat.conversation import canonical, num_chars
from tokenloom.chat.definition import ChatDefinition
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.layouts import normalized
from tokenloom.errors import BadConversation
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.storage.formats.shard import open_shard
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.tiktoken_files import bytes_of_letters

Document = tuple[bytes, bytes]  # the text, and what of it is learned

#: What a conversation's first token is does not matter here: it is what it is learned as.
_LEARNED = learned_classes("assistant")[np.arange(256) & 0b10111111]


class TokenBytes:
    """The bytes of each token of a byte-level tokenizer.json."""

    def __init__(self, tokenizer: Path) -> None:
        made = json.loads(tokenizer.read_bytes())
        self._bytes = {number: bytes_of_letters(letters) for letters, number in made["model"]["vocab"].items()}
        self._bytes |= {token["id"]: token["content"].encode() for token in made["added_tokens"]}

    def of(self, ids: NDArray[np.integer]) -> list[bytes]:
        """Return the bytes of each of some ids."""
        return [self._bytes[token] for token in ids.tolist()]


def stored_documents(spec: BuildSpec, version: str, tokens: TokenBytes) -> Iterator[tuple[list[bytes], list[bool]]]:
    """Yield the bytes of each document's tokens, and which are learned: from the shards of a version alone."""
    store = local_store(spec.store, spec.dataset)
    for split in load_manifest(store, version).splits.values():
        for item in split.shards:
            path = store.local(version_path(version, item.name))
            shard = open_shard(path, verify="full")
            learned = _LEARNED[np.fromfile(path.with_suffix(".mask"), np.uint8)]
            offsets = shard.document_offsets.tolist()
            for start, end in pairwise(offsets):
                assert not learned[end - 1]  # the end-of-text token
                yield tokens.of(shard.tokens[start : end - 1]), learned[start : end - 1].tolist()


def digest(documents: Iterable[Document]) -> str:
    """Return the SHA-256 of documents, in whatever order they come."""
    each = sorted(hashlib.sha256(len(text).to_bytes(8) + text + learned).digest() for text, learned in documents)
    return hashlib.sha256(b"".join(each)).hexdigest()


def learned_in_shards(spec: BuildSpec, version: str, tokens: TokenBytes) -> list[Document]:
    """Return the text of each document of a version and what is learned of it."""
    return [
        (b"".join(parts), b"".join(part for part, is_learned in zip(parts, learned, strict=True) if is_learned))
        for parts, learned in stored_documents(spec, version, tokens)
    ]


class MadeConversations:
    """Files of made conversations with their spec, and what their rendering says is learned.

    Args:
        folder: where the files are written.
        num_made: of how many made conversations; those that the template refuses are left out.
    """

    def __init__(self, folder: Path, num_made: int) -> None:
        tokenizer = write_chat_tokenizer(folder / "tokenizer.json")
        (folder / "chat.jinja").write_text(MARKED)
        self.tokens = TokenBytes(folder / "tokenizer.json")
        self._encoder = ChatEncoder(ChatDefinition(MARKED), load_tokenizer(tokenizer))
        self.lines = list(dict.fromkeys(filter(None, map(self._good, made_conversations(num_made)))))
        (folder / "input").mkdir()
        for part in range(4):
            text = "".join(line + "\n" for line in self.lines[part::4])
            (folder / "input" / f"{part}.jsonl").write_text(text, "utf-8")
        source = {"kind": "jsonl", "path": str(folder / "input" / "*.jsonl"), "messages": "messages", "tools": "tools"}
        fields = {"chat": {"template": str(folder / "chat.jinja")}, "documents": {"without_target": "keep"}}
        self.spec = make_spec(folder / "store", [source], tokenizer=tokenizer, **fields)

    def _good(self, conversation: dict[str, Any]) -> str | None:
        try:
            line = canonical(normalized(conversation, "messages"))
            self._encoder.render(line)
        except BadConversation:
            return None
        return line if num_chars(line) else None  # a build leaves out an empty document

    def learned(self, spec: BuildSpec, version: str) -> list[Document]:
        """Return the text of each conversation and what its spans learn, widened to whole tokens of a version."""
        cuts = {b"".join(parts): parts for parts, _ in stored_documents(spec, version, self.tokens)}
        found = []
        for rendered in map(self._encoder.render, self.lines):
            text = rendered.text.encode()
            first = np.cumsum(np.frombuffer(text, np.uint8) & 0xC0 != 0x80) - 1  # the character of each byte
            is_learned = _LEARNED[np.frombuffer(rendered.classes, np.uint8)][first]
            learned, place = [], 0
            for part in cuts[text]:
                learned += [part] if is_learned[place : place + len(part)].any() else []
                place += len(part)
            found.append((text, b"".join(learned)))
        return found
