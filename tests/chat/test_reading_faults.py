"""The targets of conversations, from JSON lines to batches, where trainers' readers went wrong; see test_faults.py."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.builders.chat_tokenizer import MARKED, write_chat_tokenizer
from tests.builders.chats import bracketed
from tests.builders.datasets import build, make_spec
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.formats.classes import BEGINS
from tokenloom.tokenizers import load_tokenizer

_T = 160
_IGNORED = -100


def _conversation(number: int) -> dict[str, Any]:
    """Return a conversation of two turns, of which the second is beyond 100 tokens."""
    asked = f"Is {number} even?"
    said = ["yes" if number % 2 == 0 else "no", "because " + "as " * (20 + number)]
    roles = zip(("user", "assistant") * 2, (asked, said[0], "why?", said[1]), strict=True)
    return {"messages": [{"role": role, "content": content} for role, content in roles]}


def _shown(conversation: dict[str, Any]) -> str:
    """Return the text of a conversation with brackets around what is learned."""
    parts = []
    for message in conversation["messages"]:
        ends = ("[[", "]]") if message["role"] == "assistant" else ("", "")
        parts.append(f"<|im_start|>{message['role']}\n{ends[0]}{message['content']}<|im_end|>{ends[1]}\n")
    return "".join(parts)


class Version:
    """A version of conversations 0 to 5; its reference, and the text of ids."""

    def __init__(self, folder: Path) -> None:
        definition = write_chat_tokenizer(folder / "tokenizer.json")
        self.tokenizer = load_tokenizer(definition)
        self.conversations = list(map(_conversation, range(6)))
        (folder / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in self.conversations))
        (folder / "chat.jinja").write_text(MARKED)
        source = {"kind": "jsonl", "path": str(folder / "in.jsonl"), "messages": "messages"}
        chat = {"template": str(folder / "chat.jinja")}
        self.spec = make_spec(folder / "store", [source], tokenizer=definition, chat=chat)
        self.version = build(self.spec).version
        self.reference = f"{self.spec.store}/{self.spec.dataset}"

    def open(self, packing: str, **options: Any) -> TokenDataset:
        """Open the version."""
        return TokenDataset(self.reference, seq_len=_T, packing=packing, **options)

    def shown(self, ids: Sequence[int], labels: Sequence[int]) -> str:
        """Return the text of a row with brackets around the targets, to its first end of text.

        Args:
            ids: of the inputs.
            labels: of the inputs, shifted by one; each is -100 or the next id.
        """
        learned = [False, *(label != _IGNORED for label in labels[:-1])]
        end = list(ids).index(self.tokenizer.eot_id)
        assert all(label in (_IGNORED, follows) for label, follows in zip(labels, ids[1:], strict=False))
        return bracketed(ids[:end], learned[:end], lambda run: self.tokenizer.decode(np.array(run)))


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """A built version."""
    return Version(tmp_path_factory.mktemp("version"))


def test_labels_are_of_the_tokens_that_follow_and_no_others(version: Version) -> None:
    # A mask that is not shifted with the labels, or twice, learns the token before a reply and not its end.
    data = version.open("document_padded")
    found = [version.shown(sample["input_ids"].tolist(), sample["labels"].tolist()) for sample in data[:]]
    assert sorted(found) == sorted(map(_shown, version.conversations))


# ---- targets that are cut off


def _loss(batch: dict[str, Any]) -> float:
    """Return the sum of the losses of a batch, of a model to which all ids are equally likely."""
    labels = batch["labels"].flatten()
    return float(cross_entropy(torch.zeros(len(labels), 300), labels, reduction="sum", ignore_index=_IGNORED))


def test_a_batch_without_targets_is_counted_and_its_loss_is_a_number(version: Version) -> None:
    # A row whose reply is beyond T has no label left: a mean over its labels is NaN, and ends the training.
    data = TokenDataset(version.reference, seq_len=8, packing="best_fit", overlong="keep_start")
    batches = list(TokenLoader(data, 1, order="sequential", num_epochs=1))
    assert [batch["num_targets"] for batch in batches] == [0] * len(version.conversations)
    others = list(TokenLoader(version.open("best_fit"), 2, order="sequential", num_epochs=1, drop_last=False))
    steps = [*batches, *others]
    num_targets = sum(batch["num_targets"] for batch in steps)
    assert num_targets == sum(int((batch["labels"] != _IGNORED).sum()) for batch in others) > 0
    assert math.isclose(sum(map(_loss, steps)) / num_targets, math.log(300), rel_tol=1e-5)


def test_nothing_of_a_packed_neighbour_is_learned(version: Version) -> None:
    data = TokenDataset(version.reference, seq_len=2 * _T, packing="best_fit", fields=("document_ids", "classes"))
    (batch,) = list(TokenLoader(data, len(data), order="sequential", num_epochs=1))
    documents, begins = batch["document_ids"], batch["classes"] & BEGINS > 0
    assert int((documents[:, 1:] > documents[:, :-1]).sum()) > 0  # documents share rows
    assert (batch["labels"][begins] == _IGNORED).all()


def test_a_trace_counts_the_roles_and_targets_of_each_document(version: Version) -> None:
    data = version.open("best_fit", learn="last", fields=["classes"])
    for index, batch in enumerate(TokenLoader(data, 1, order="sequential", num_epochs=1, drop_last=False)):
        (sample,) = data.trace(index)["samples"]
        for document in sample["documents"]:
            labels = batch["labels"][0, max(0, document["start"] - 1) : document["end"] - 1]
            assert document["targets"] == int((labels != _IGNORED).sum()) > 0
            assert sum(document["roles"].values()) == document["end"] - document["start"]
            assert {"user", "assistant", "template"} >= set(document["roles"]) >= {"assistant"}
