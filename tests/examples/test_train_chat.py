"""examples/train_chat.py: packed conversations have the losses of a padded loop in plain torch, and a fault shows."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.builders.datasets import build, make_spec
from tokenloom.examples.data_options import DataOptions

_TEMPLATE = """\
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '</>' }}{%- endgeneration %}
    {%- else %}
        {{- message.content + '</>' }}
    {%- endif %}
{%- endfor %}
"""
SHORT = DataOptions(seq_len=96, packing="best_fit", batch_size=3, evaluation_batches=2)


def _built(folder: Path, path: Path, messages: str) -> str:
    (folder / "template.jinja").write_text(_TEMPLATE)
    source = {"kind": "jsonl", "path": str(path), "messages": messages}
    splits = {"train": 0.9, "validation": 0.1}
    spec = make_spec(folder / "store", [source], chat={"template": str(folder / "template.jinja")}, splits=splits)
    return f"{spec.store}/data@{build(spec).version}"


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference of a version of 80 conversations, one or two of which are a sample."""
    folder = tmp_path_factory.mktemp("conversations")
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {i}?"},
                {"role": "assistant", "content": f"It is {i * i}." * (1 + i % 3)},
            ]
        }
        for i in range(80)
    ]
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return _built(folder, path, "messages")


def _difference(example: ModuleType, reference: str, steps: int, options: DataOptions) -> float:
    losses = example.train(reference, steps, options=options, print_line=lambda line: None, compare=True)
    assert len(losses["packed"]) == len(losses["padded"]) == steps
    return float(np.max(np.abs(np.subtract(losses["packed"], losses["padded"]))))


@pytest.mark.parametrize("packing", ["best_fit", "concat", "document_padded"])
def test_packed_documents_have_the_losses_of_documents_alone(
    example: ModuleType, conversations: str, packing: str
) -> None:
    assert _difference(example, conversations, 2, DataOptions(96, packing, 3, 2)) < 1e-12


def test_attention_across_documents_shows(
    example: ModuleType, conversations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_mask = example.document_mask
    monkeypatch.setattr(example, "document_mask", lambda ids: document_mask(torch.zeros_like(ids)))
    assert _difference(example, conversations, 2, SHORT) > 1e-4


def test_labels_that_are_off_by_one_show(
    example: ModuleType, conversations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_loss = example.packed_loss
    shifted = lambda model, batch: packed_loss(model, batch | {"labels": batch["labels"].roll(1, 1)})  # noqa: E731
    monkeypatch.setattr(example, "packed_loss", shifted)
    assert _difference(example, conversations, 1, SHORT) > 1e-4
