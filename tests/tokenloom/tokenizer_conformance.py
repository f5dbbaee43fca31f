"""The conformance class of tokenizers: the test class of each kind derives from it."""

from __future__ import annotations

import gzip
import json
import zipfile
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.counts import count
from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.tokenizers import Tokenizer, load_tokenizer

EOT = "<|endoftext|>"
# All lengths of UTF-8, many scripts, all kinds of space, special tokens as text, and a text longer than one run.
TEXTS = [
    "Hello, world! It's 1234567.",
    "",
    " ",
    "\t two  spaces\r\n\n\n   and more \u00a0\u3000",
    "naïve café e\u0301 多言語 한국어 мир नमस्ते مرحبا 👩‍👩‍👧‍👦 \U0010fffd",
    "\x00\x1b[0m\ufeff\ufffd",
    "<s>text</s> <|endoftext|><|endoftext|> [CLS] [SEP] [UNK] <unk> <pad> <0x41> ▁",
    "lorem ipsum dolor " * 20_000,
    "last",
]


def refused(match: str) -> AbstractContextManager[pytest.ExceptionInfo[TokenizerError]]:
    """Expect a TokenizerError whose message `match` finds."""
    return pytest.raises(TokenizerError, match=match)


def encode_each(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Encode texts in one call; return the ids of each, including its end-of-text id."""
    encoded = tokenizer.encode(pa.array(texts, pa.large_string()), token_dtype(tokenizer.vocab_size))
    assert encoded.tokens.dtype == token_dtype(tokenizer.vocab_size)
    assert encoded.num_tokens.dtype == np.uint32
    assert int(encoded.num_tokens.sum()) == len(encoded.tokens)
    parts: list[NDArray[Any]] = np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64))[:-1]
    return [part.tolist() for part in parts]


class TokenizerConformance:
    """The properties of one kind, for the tokenizer of the fixture `definition`.

    A subclass gives `definition` (a fixture) and `reference_ids`, and may set the rest.
    """

    bos_ids: tuple[int, ...] = ()  # ids before each document
    spellings: tuple[str, ...] = (EOT, "<s>", "</s>")  # of special tokens, which occur in texts
    label = "label"  # another name; "" if the name says what the file is
    special_ids_stay_out = True  # a special token as text never gets its id
    other_boundary_tokens: tuple[dict[str, Any], ...] = ()  # fields that make a different tokenizer from the same file

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        """The definition under test; its files are in `tmp_path`."""
        raise NotImplementedError

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        """Return the library's own ids of one text, without eot and bos."""
        raise NotImplementedError

    def expected(self, definition: dict[str, Any], tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
        """Return the ids of texts, including eot and bos."""
        return [[*self.bos_ids, *self.reference_ids(definition, text), tokenizer.eot_id] for text in texts]

    def test_each_document_has_the_ids_of_the_library_and_end_of_text(self, definition: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(definition)
        assert [*tokenizer.bos_ids] == [*self.bos_ids]
        pieces = st.sampled_from([*self.spellings, " ", "  ", "\n", "lorem"])
        texts_of_documents = st.lists(st.one_of(st.text(max_size=30), st.lists(pieces).map("".join)), max_size=8)

        @settings(max_examples=count(60, 1000), deadline=None)
        @given(texts_of_documents)
        @example(TEXTS)
        def check(texts: list[str]) -> None:
            ids = encode_each(tokenizer, texts)
            assert ids == self.expected(definition, tokenizer, texts)
            assert max((max(document) for document in ids), default=0) < tokenizer.vocab_size

        check()

    def test_spellings_of_special_tokens_are_ordinary_text(self, definition: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(definition)
        texts = [*self.spellings, *(f"a{spelling}b" for spelling in self.spellings), "".join(self.spellings)]
        ids = encode_each(tokenizer, texts)
        assert ids == self.expected(definition, tokenizer, texts)
        if self.special_ids_stay_out:
            expected = [(*self.bos_ids, tokenizer.eot_id)] * len(texts)
            marks = {*self.bos_ids, tokenizer.eot_id}
            assert [tuple(i for i in document if i in marks) for document in ids] == expected

    def test_an_empty_document_has_only_eot_and_bos_and_no_documents_have_no_ids(
        self, definition: dict[str, Any]
    ) -> None:
        tokenizer = load_tokenizer(definition)
        assert encode_each(tokenizer, ["", ""]) == [[*self.bos_ids, tokenizer.eot_id]] * 2
        assert encode_each(tokenizer, []) == []
        for texts in ([], ["one"]):
            assert tokenizer.encode(pa.array(texts, pa.large_string()), np.dtype(np.uint32)).tokens.dtype == np.uint32

    def test_a_sliced_array_has_the_ids_of_its_own_texts(self, definition: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(definition)
        array = pa.array(TEXTS, pa.large_string())
        for start, end in [(1, 5), (3, 3), (len(TEXTS) - 1, len(TEXTS)), (0, 2)]:
            encoded = tokenizer.encode(array.slice(start, end - start), np.dtype(np.uint32))
            expected = self.expected(definition, tokenizer, TEXTS[start:end])
            assert encoded.tokens.tolist() == [i for document in expected for i in document]
            assert encoded.num_tokens.tolist() == [len(document) for document in expected]

    def test_ids_and_sizes_of_documents_are_within_bounds(self, definition: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(definition)
        assert 0 <= tokenizer.eot_id < tokenizer.vocab_size
        assert 1_000_000 <= tokenizer.max_text_bytes < 2**31
        assert tokenizer.kind == definition["kind"]
        assert tokenizer.eot == definition.get("eot", tokenizer.eot)
        assert tokenizer.backend.startswith(tokenizer.kind.replace("huggingface", "tokenizers"))

    def test_a_tokenizer_loaded_from_its_own_files_is_the_same(self, definition: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(definition)
        places = ("path", "ranks")
        again = load_tokenizer({k: v for k, v in definition.items() if k not in places}, tokenizer.files)
        assert again.fingerprint == tokenizer.fingerprint
        assert again.files == tokenizer.files
        assert encode_each(again, TEXTS) == encode_each(tokenizer, TEXTS)

    def test_path_and_name_do_not_change_the_fingerprint(self, definition: dict[str, Any], tmp_path: Path) -> None:
        tokenizer = load_tokenizer(definition)
        moved = {**definition, "name": self.label or definition["name"]}
        for key in ("path", "ranks"):
            if key in definition:
                moved[key] = str(tmp_path / f"moved.{key}")
                Path(moved[key]).write_bytes(Path(definition[key]).read_bytes())
        again = load_tokenizer(moved)
        assert (again.fingerprint, again.name) == (tokenizer.fingerprint, moved["name"])
        assert load_tokenizer(definition).fingerprint == tokenizer.fingerprint

    def test_another_eot_or_bos_changes_the_fingerprint(self, definition: dict[str, Any]) -> None:
        definitions = [definition, *({**definition, **tokens} for tokens in self.other_boundary_tokens)]
        assert len({load_tokenizer(item).fingerprint for item in definitions}) == len(definitions)

    def test_decoded_ids_show_end_of_text(self, definition: dict[str, Any]) -> None:
        tokenizer = load_tokenizer(definition)
        documents = [np.array(ids) for ids in encode_each(tokenizer, ["lorem", " ipsum мир"])]
        ids = np.concatenate(documents)
        text = tokenizer.decode(ids)
        assert text == "".join(map(tokenizer.decode, documents))  # each decodes independently
        assert text.count(EOT) == 2
        assert text.endswith(EOT)
        assert tokenizer.decode(ids[:0]) == ""


def real_texts(data_dir: Path) -> list[str]:
    """Return real documents: web pages, Chinese poems, the Declaration of Human Rights in many languages, a novel."""
    with gzip.open(data_dir / "webtext" / "c4-sample.01.json.gz", "rt", encoding="utf-8") as lines:
        pages = [json.loads(line)["text"] for line in islice(lines, count(100, 2000))]
    verses = pq.read_table(data_dir / "multilingual" / "tang_poems.parquet")["paragraphs"].to_pylist()
    poems = ["\n".join(poem) for poem in verses[: count(100, 5000)]]
    with zipfile.ZipFile(data_dir / "multilingual" / "udhr2.zip") as archive:
        names = sorted(archive.namelist())[:: count(8, 1)]
        rights = [archive.read(name).decode("utf-8", "replace") for name in names]
    novel = (data_dir / "longdocs" / "gutenberg" / "melville-moby_dick.txt").read_text(encoding="utf-8")
    return [*pages, *poems, *rights, novel[: count(400_000, 2_000_000)]]
