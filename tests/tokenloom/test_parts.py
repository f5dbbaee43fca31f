"""What gigatoken gets of a tokenizer: all that decides the ids of a text, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers

from tests.tokenloom.test_fast_encoders import ids_of, loaded, train
from tests.tokenloom.test_sentencepiece_encoder import loaded as loaded_model
from tests.tokenloom.test_sentencepiece_encoder import train as train_model
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.fast.gigatoken_library import make_encoder
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.parts import Parts, parts_of
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.tokenizer import NO_CHECK, FastTokenizer

RUNS = tuple(AddedToken(" " * length, normalized=True) for length in range(2, 9))
PLAIN, NORMAL = train(), train(normalizers.NFC(), RUNS)
_TEXTS = ["def f(x):\n          y", "naïve  cafe\u0301", "", "a" * 50, " <|endoftext|> \x85", "\u2581 x"]


def parts(data: bytes = PLAIN, *changes: Callable[[dict[str, Any]], object], eot: str | None = None) -> Parts:
    """Return the parts of a tokenizer.json after changes to its content."""
    content = json.loads(data)
    for change in changes:
        change(content)
    return parts_of(loaded(json.dumps(content).encode(), **({"eot": eot} if eot else {})))


def test_a_tokenizer_json_is_given_without_what_the_caller_does() -> None:
    found, content = parts(NORMAL), json.loads(NORMAL)
    given = json.loads(found.content)
    assert given.keys() == {"model", "pre_tokenizer", "added_tokens"}
    assert found.normalizes
    assert given["added_tokens"] == []  # a marker replaces runs of spaces
    ids = {len(token["content"]): token["id"] for token in content["added_tokens"] if not token["special"]}
    assert found.run_ids[2:] == [ids[length] for length in range(2, 9)]
    assert found.marker_id not in content["model"]["vocab"].values()
    assert given["model"]["vocab"].items() >= content["model"]["vocab"].items()
    assert found.spellings == ["<|endoftext|>", "\x85"]


# ---- the key


def _added(token: str, **flags: Any) -> Callable[[dict[str, Any]], object]:
    base = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return lambda content: content["added_tokens"].append({"id": 900, "content": token} | base | flags)


_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
}


@pytest.mark.parametrize(
    "change",
    [
        _added("<|im_start|>", special=True),
        _added("<think>", lstrip=True),
        lambda content: content.update(post_processor=_TEMPLATE),
        lambda content: content.update(
            truncation={"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
        ),
        lambda content: content.update(decoder=None),
        lambda content: content["model"].update(merges=[pair.split(" ") for pair in _merges(content)]),
        lambda content: content["model"].update(vocab=dict(reversed(content["model"]["vocab"].items()))),
        lambda content: content["pre_tokenizer"].update(trim_offsets=False),
        lambda content: content.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [content["pre_tokenizer"]]}),
    ],
    ids=["special", "added", "template", "truncation", "decoder", "pairs", "order", "offsets", "sequence of one"],
)
def test_what_decides_no_ids_leaves_the_key(change: Callable[[dict[str, Any]], object]) -> None:
    assert parts(PLAIN, change).key == parts().key


def test_the_end_of_text_token_leaves_the_key() -> None:
    another = _added("<|im_end|>", special=True)
    assert parts(PLAIN, another, eot="<|im_end|>").key == parts().key


def _merges(content: dict[str, Any]) -> list[str]:
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]]


def _swap_merges(content: dict[str, Any]) -> None:
    content["model"]["merges"][1:3] = content["model"]["merges"][2:0:-1]


def _swap_ids(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    first, second = list(vocab)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"]["merges"].pop(),
        _swap_merges,
        _swap_ids,
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content.update(normalizer={"type": "NFC"}),
        _added("   "),
    ],
    ids=["a merge less", "order of merges", "ids", "ignore_merges", "normalizer", "white space"],
)
def test_what_decides_ids_changes_the_key(change: Callable[[dict[str, Any]], object]) -> None:
    assert parts(PLAIN, change).key != parts().key


def test_the_same_vocabulary_of_another_reference_has_another_key(tmp_path: Path) -> None:
    one = Parts("tiktoken", "x", "gpt2")
    assert one.key == Parts("tiktoken", "x", "gpt2", spellings=["<s>"]).key
    assert len({one.key, Parts("huggingface", "x", "gpt2").key, Parts("tiktoken", "x", "gpt4").key}) == 3


# ---- the encoder made of them


def _tiktoken(tmp_path: Path, first_id: int, gap_at: int) -> Any:
    """Return a tokenizer whose ids begin with `first_id`, and do not contain `gap_at`."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"  ", b"de", b"def", b"aa", b"aaaa"]
    ids = [i for i in range(first_id, first_id + len(tokens) + 1) if i != gap_at][: len(tokens)]
    lines = [f"{base64.b64encode(token).decode()} {i}\n" for token, i in zip(tokens, ids, strict=True)]
    (tmp_path / "x.tiktoken").write_text("".join(lines))
    special = {"<|endoftext|>": 900}
    return load_tokenizer({"kind": "tiktoken", "ranks": str(tmp_path / "x.tiktoken"), "special_tokens": special})


def _same_ids(reference: Any) -> bool:
    encoder = make_encoder(reference)
    fast = FastTokenizer(reference, encoder, Router([], encoder.spellings), NO_CHECK)
    return ids_of(fast, _TEXTS) == ids_of(reference, _TEXTS)


@pytest.mark.parametrize("data", [PLAIN, NORMAL], ids=["plain", "NFC and runs of spaces"])
def test_an_encoder_of_a_tokenizer_json_gives_the_ids_of_the_reference(data: bytes) -> None:
    assert _same_ids(loaded(data))


@pytest.mark.parametrize(("first_id", "gap_at"), [(0, -1), (30, -1), (0, 257)], ids=["ranks", "tekken", "p50k_base"])
def test_an_encoder_of_ranks_gives_the_ids_of_the_reference(first_id: int, gap_at: int, tmp_path: Path) -> None:
    assert _same_ids(_tiktoken(tmp_path, first_id, gap_at))


def test_an_encoder_of_a_sentencepiece_model_gives_the_ids_of_the_reference() -> None:
    assert _same_ids(loaded_model(train_model()))


# ---- refused


def test_a_file_with_an_unknown_part_is_refused() -> None:
    with pytest.raises(Unproven, match="its normalizer is Lowercase"):
        parts(train(normalizers.Lowercase()))


def test_an_unknown_pattern_of_ranks_and_an_unknown_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = {"kind": "tiktoken", "name": "gpt2"}
    reference = load_tokenizer(definition)
    monkeypatch.setattr(reference._encoding, "_pat_str", ".")  # type: ignore[attr-defined]
    with pytest.raises(Unproven, match="its pattern is not that of"):
        parts_of(reference)
    with pytest.raises(Unproven, match="no fast encoder supports the kind byte"):
        parts_of(load_tokenizer({"kind": "byte"}))
