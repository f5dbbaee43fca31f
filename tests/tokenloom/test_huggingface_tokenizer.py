"""Tokenizers from a tokenizer.json: ids of the library, known and unknown ends of text, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.builders.made_data import write_made_data
from tests.builders.proofs import trust
from tests.builders.vocabularies import NUM_TOKENS, made_encoding
from tests.tokenloom.tokenizer_conformance import EOT, TEXTS, TokenizerConformance, encode_each, real_texts, refused
from tokenloom.errors import BadRow, TokenizerError
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import library_errors
from tokenloom.tokenizers.huggingface_json import HuggingFaceTokenizer

CORPUS = ["lorem ipsum dolor sit amet, consectetur adipiscing elit", "Hello, world! It's 1234567.", "naïve café"] * 5


@lru_cache
def train_bpe() -> str:
    """Return a byte-level BPE: two special tokens, and runs of spaces as tokens that are not special."""
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[EOT, "<s>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("   "), AddedToken("  ")])
    return library.to_str()


@lru_cache
def train_wordpiece() -> str:
    """Return a WordPiece with BERT's template, truncation and padding."""
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    library.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    )
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    library.enable_truncation(4)
    library.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    return library.to_str()


@lru_cache
def train_unigram() -> str:
    """Return a Unigram with Metaspace, as in T5; `</s>` is also one of its pieces."""
    library = tokenizers.Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=100, unk_token="<unk>", special_tokens=["<unk>", "</s>", "<s>"], show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    return library.to_str()


def library_ids(json_text: str, text: str) -> list[int]:
    """Return the library's ids of one text, as ordinary text."""
    library = _library(json_text)
    ids: list[int] = library.encode(text, add_special_tokens=False).ids
    return ids


@lru_cache
def _library(json_text: str) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_str(json_text)
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    return library


def write_json(folder: Path, content: str | dict[str, Any]) -> dict[str, Any]:
    """Write a tokenizer.json and return the definition that names it."""
    path = folder / "tokenizer.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return {"kind": "huggingface", "path": str(path)}


class _HuggingFace(TokenizerConformance):
    json_text: Callable[[], str]

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        return write_json(tmp_path, type(self).json_text())

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return library_ids(type(self).json_text(), text)


class TestByteLevelBpe(_HuggingFace):
    json_text = staticmethod(train_bpe)
    other_boundary_tokens = ({"eot": "<s>"}, {"bos": "<s>"}, {"bos": EOT})


class TestWordPiece(_HuggingFace):
    json_text = staticmethod(train_wordpiece)
    bos_ids = (2,)
    spellings = ("[CLS]", "[SEP]", "[UNK]", "[PAD]", EOT)
    other_boundary_tokens = ({"eot": "[PAD]"}, {"bos": "[PAD]"}, {"eot": "[SEP]"})


class TestUnigram(_HuggingFace):
    json_text = staticmethod(train_unigram)
    special_ids_stay_out = False  # </s> is one of the pieces of the model
    other_boundary_tokens = ({"eot": "<s>"}, {"bos": "<s>"})


# End of text, and ids before a text


def marks(definition: dict[str, Any], **fields: Any) -> list[int]:
    """Return the ids of an empty document."""
    return encode_each(load_tokenizer({**definition, **fields}), [""])[0]


TEMPLATE = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])


@pytest.mark.parametrize(
    "processor",
    [
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
        TEMPLATE,
        processors.Sequence([processors.ByteLevel(), TEMPLATE]),
    ],
    ids=["bert", "roberta", "template", "sequence"],
)
def test_a_template_with_one_token_after_the_text_determines_eot_and_bos(processor: Any, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(train_wordpiece())
    library.post_processor = processor
    definition = write_json(tmp_path, library.to_str())
    assert marks(definition) == [2, 3]
    assert marks(definition, bos="[PAD]") == [0, 3]
    assert marks(definition, eot="[PAD]") == [0]
    assert marks(definition, eot="[SEP]", bos="[CLS]") == [2, 3]


@pytest.mark.parametrize("single", ["[CLS] $A", "$A [SEP] [SEP]", "$A"])
def test_a_template_without_one_token_after_the_text_does_not_determine_eot(single: str, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(train_wordpiece())
    library.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    definition = write_json(tmp_path, library.to_str())
    with refused(r"is unknown; give tokenizer\.eot; .*: \[PAD\], \[UNK\], \[CLS\], \[SEP\]"):
        load_tokenizer(definition)
    assert marks(definition, eot="[SEP]") == [3]


def test_end_of_text_is_known_by_one_usual_spelling_but_not_by_two(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_str(train_bpe())
    assert marks(write_json(tmp_path, library.to_str())) == [library.token_to_id(EOT)]
    library.add_special_tokens(["</s>"])
    definition = write_json(tmp_path, library.to_str())
    with refused(r"is unknown.*: <\|endoftext\|>, <s>, </s>"):
        load_tokenizer(definition)
    assert marks(definition, eot="</s>") == [library.token_to_id("</s>")]


@pytest.mark.parametrize("field", ["eot", "bos"])
def test_an_unknown_eot_or_bos_is_refused_with_a_list_of_special_tokens(field: str, tmp_path: Path) -> None:
    with refused(r"'<nope>' is not one of its tokens; .*: <\|endoftext\|>, <s>"):
        load_tokenizer({**write_json(tmp_path, train_bpe()), field: "<nope>"})


def test_the_size_of_the_vocabulary_counts_holes_and_added_tokens(tmp_path: Path) -> None:
    plain = load_tokenizer(write_json(tmp_path, train_bpe()))
    assert plain.vocab_size == 302  # 300 in the model, and two runs of spaces
    holed = json.loads(train_bpe())
    holed["model"]["vocab"]["zq"] = 999
    assert load_tokenizer(write_json(tmp_path, holed)).vocab_size == 1000


# Decoding


def test_decoding_returns_the_bytes_and_spells_eot_and_bos(tmp_path: Path) -> None:
    tokenizer = load_tokenizer({**write_json(tmp_path, train_bpe()), "bos": "<s>"})
    for text, ids in zip(TEXTS, encode_each(tokenizer, TEXTS), strict=True):
        assert tokenizer.decode(np.array(ids)) == f"<s>{normalizers.NFC().normalize_str(text)}{EOT}"


def test_special_tokens_are_not_dropped_when_decoding(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_json(tmp_path, train_wordpiece()))
    assert tokenizer.decode(np.array([2, 0, 1, 3, 2])) == f"[CLS][PAD] [UNK]{EOT}[CLS]"


# Long texts


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_text_that_is_too_long_for_the_library_is_a_bad_row(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HuggingFaceTokenizer, "max_text_bytes", 1000)
    monkeypatch.setattr("tokenloom.tasks.building.plan.MIN_FAST_BYTES", 0)
    write_jsonl(tmp_path / "a.jsonl", ["é" * 500, "é" * 500 + "a", "lorem ipsum"])
    definition = write_json(tmp_path, train_bpe()) | {"name": "small", "backend": backend}
    trust(load_tokenizer(definition))
    source = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}
    spec = make_spec(tmp_path / "store", [source], tokenizer=definition)
    message = r"line 2 at byte 3013: a document of 1,001 bytes; tokenizer small \(huggingface\) encodes at most 1,000"
    with pytest.raises(BadRow, match=message):
        build(spec)
    skipping = spec.model_copy(update={"documents": spec.documents.model_copy(update={"on_error": "skip"})})
    result = build(skipping)
    assert result.facts.quarantined == {"jsonl-0": {"too_large": 1}}
    assert sum(split["documents"] for split in result.to_json()["splits"].values()) == 2


# Refusals


_MISSING = {
    "nope.json": r"tokenizer file .*nope\.json: no such file",
    "org/model": r"org/model: no such file; .*; give a model on the .* Hub as name",
    ".": r"this is a folder; give the path of a tokenizer\.json",
}


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    for path, message in _MISSING.items():
        with refused(message):
            load_tokenizer({"kind": "huggingface", "path": str(tmp_path / path)})
    with refused(r"give tokenizer\.path"):
        load_tokenizer({"kind": "huggingface"})
    with refused(r"needs tokenizer\.json; the files given are: other"):
        load_tokenizer({"kind": "huggingface"}, {"other": b""})


@pytest.mark.parametrize("alphabet", ["abcdefgh", None])
def test_a_bpe_that_drops_unknown_characters_is_refused(alphabet: str | None, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE())
    if alphabet is None:  # byte-level, but trained without some bytes
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=100, special_tokens=[EOT], show_progress=False)
    library.train_from_iterator([alphabet or "naïve café"], trainer)
    assert len(library.encode("Я", add_special_tokens=False).ids) < (1 if alphabet else 2)  # of its two bytes
    with refused("drops characters that are not in its alphabet"):
        load_tokenizer(write_json(tmp_path, library.to_str()))


@pytest.mark.parametrize("missing", [None, "<0xD0>"])
def test_a_bpe_with_an_unknown_token_or_all_bytes_is_not_refused(missing: str | None, tmp_path: Path) -> None:
    bytes_ = {token: i for i in range(256) if (token := f"<0x{i:02X}>") != missing}
    fallback = tokenizers.Tokenizer(models.BPE(bytes_ | {EOT: 256}, [], byte_fallback=True))
    unknown = tokenizers.Tokenizer(models.BPE({"[UNK]": 0, EOT: 1}, [], unk_token="[UNK]"))
    for library in (unknown, fallback):
        library.add_special_tokens([EOT])
        definition = write_json(tmp_path, library.to_str())
        with refused("drops characters") if missing and library is fallback else nullcontext():
            assert len(encode_each(load_tokenizer(definition), ["Я"])[0]) >= 2


def test_random_ids_are_refused(tmp_path: Path) -> None:
    content = json.loads(train_bpe())
    content["model"]["dropout"] = 0.1
    library = tokenizers.Tokenizer.from_str(train_bpe())
    library.normalizer = normalizers.Lowercase()
    library.add_tokens(["Foo", "foo"])
    for file in (content, library.to_str()):
        with refused(r"differ from run to run: .*set dropout to null, or remove one"):
            load_tokenizer(write_json(tmp_path, file))


def test_a_model_without_an_unknown_token_is_refused_with_the_message_of_the_library(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, EOT: 1}))
    library.add_special_tokens([EOT])
    with refused(r"can't be encoded: WordLevel error: Missing \[UNK\]"):
        load_tokenizer(write_json(tmp_path, library.to_str()))


@pytest.mark.parametrize("raised", [ValueError, type("PanicException", (BaseException,), {}), KeyboardInterrupt])
def test_an_error_of_a_library_is_named_also_a_panic(raised: type[BaseException]) -> None:
    expected = KeyboardInterrupt if raised is KeyboardInterrupt else TokenizerError
    with (
        pytest.raises(expected, match=r"^why$|^a text can't be encoded: why$"),
        library_errors("a text can't be encoded"),
    ):
        raise raised("why")


# Real files


def test_gpt2_has_the_ids_of_tiktoken_for_real_text(data_dir: Path, tiktoken_cache: Path) -> None:
    _check_ids_of_tiktoken(data_dir, tiktoken.get_encoding("gpt2"), 50257)


def test_a_made_vocabulary_has_the_ids_of_tiktoken(tmp_path: Path) -> None:
    _check_ids_of_tiktoken(write_made_data(tmp_path), made_encoding("gpt2"), NUM_TOKENS + 1)


def _check_ids_of_tiktoken(data_dir: Path, encoding: tiktoken.Encoding, num_ids: int) -> None:
    path = data_dir / "tokenizers" / "gpt2" / "tokenizer.json"
    tokenizer = load_tokenizer({"kind": "huggingface", "path": str(path)})
    texts = [*TEXTS, *real_texts(data_dir)]
    assert encode_each(tokenizer, texts) == [[*encoding.encode_ordinary(text), num_ids - 1] for text in texts]
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (num_ids, num_ids - 1)
