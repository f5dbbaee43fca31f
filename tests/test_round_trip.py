"""Round trip over real corpora: what stands in the shards is what stands in the source.

The sources are read again here with pyarrow, json and gzip alone, never through the build's own readers.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiktoken

from tests.support import build, make_spec, stored_documents, write_parquet
from tokenloom.spec import BuildSpec
from tokenloom.storage.versions import dataset_store, load_manifest

Place = tuple[str, int]

CORPORA: dict[str, dict[str, str]] = {
    "ag_news": {"kind": "parquet", "path": "ag_news/*.parquet"},
    "gutenberg": {"kind": "parquet", "path": "longdocs/gutenberg.parquet"},
    "wikitext": {"kind": "parquet", "path": "wikitext-2/valid.parquet"},
    "movie_reviews": {"kind": "parquet", "path": "nltk/movie_reviews_pos.parquet"},
    "tinystories": {"kind": "jsonl", "path": "tinystories/stories.jsonl.gz", "text": "story"},
    "scisummnet": {"kind": "jsonl", "path": "longdocs/scisummnet_papers.jsonl.gz", "text": "article"},
    "tinyshakespeare": {"kind": "text", "path": "tinyshakespeare/input.txt"},
}
TOKENIZERS = ("byte", "gpt2", "o200k_base")


@dataclass(frozen=True)
class Built:
    """A published version of one corpus: its manifest and documents, and every text of the source by its place."""

    tokenizer: str
    manifest: dict[str, Any]
    documents: list[dict[str, Any]]
    source: dict[Place, str]

    def texts(self) -> list[str]:
        """Return the text of every stored document, decoded from its ids."""
        return decoded(self.tokenizer, self.documents)

    def kept(self) -> dict[str, Place]:
        """Return the first place of every distinct text of the source that is not empty."""
        places: dict[str, Place] = {}
        for place, text in sorted(self.source.items()):
            if text:
                places.setdefault(text, place)
        return places


def decoded(tokenizer: str, documents: list[dict[str, Any]]) -> list[str]:
    """Return the texts of documents, with `bytes.decode` or tiktoken's own decoder."""
    if tokenizer == "byte":
        return [document["ids"].tobytes().decode("utf-8") for document in documents]
    encoding = tiktoken.get_encoding(tokenizer)
    return [encoding.decode_bytes(document["ids"].tolist()).decode("utf-8") for document in documents]


def read_source(folder: Path, corpus: dict[str, str]) -> dict[Place, str]:
    """Return {(path, row): text} of all rows of a corpus; a row of a line file is its offset, decompressed."""
    paths = sorted(folder.glob(corpus["path"]))
    rows: dict[Place, str] = {}
    for path in paths:
        if corpus["kind"] == "parquet":
            texts = pq.read_table(path, columns=["text"]).column("text").to_pylist()
            rows |= {(path.name, row): text for row, text in enumerate(texts)}
        elif corpus["kind"] == "text":
            rows[path.name, 0] = path.read_bytes().decode("utf-8")
        else:
            offset = 0
            for line in gzip.decompress(path.read_bytes()).split(b"\n"):
                if line:
                    rows[path.name, offset] = json.loads(line)[corpus["text"]]
                offset += len(line) + 1
    return rows


def tokenizer_fields(name: str) -> dict[str, Any]:
    """Return the `tokenizer` part of a spec."""
    return {"kind": "byte"} if name == "byte" else {"kind": "tiktoken", "name": name}


def load_built(spec: BuildSpec, version: str, tokenizer: str, source: dict[Place, str]) -> Built:
    """Return what stands in a version beside its source."""
    manifest = load_manifest(dataset_store(spec.store, spec.dataset), version)
    return Built(tokenizer, manifest, stored_documents(spec, version), source)


@pytest.fixture(
    scope="module", params=[(c, t) for c in CORPORA for t in TOKENIZERS], ids=lambda param: f"{param[0]}-{param[1]}"
)
def built(request: pytest.FixtureRequest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Every corpus with every tokenizer, built once."""
    corpus, tokenizer = request.param
    if tokenizer != "byte":
        request.getfixturevalue("tiktoken_cache")
    options = CORPORA[corpus]
    spec = make_spec(
        tmp_path_factory.mktemp("store"),
        [options | {"path": str(data_dir / options["path"])}],
        tokenizer=tokenizer_fields(tokenizer),
        shard_tokens=500_000,
    )
    result = build(spec, num_workers=0 if tokenizer == "byte" else 2)
    yield load_built(spec, result.version, tokenizer, read_source(data_dir, options))


def test_the_documents_are_exactly_the_distinct_ones_of_the_input(built: Built) -> None:
    assert Counter(built.texts()) == Counter(dict.fromkeys(built.kept(), 1))


def test_every_document_names_the_first_place_of_its_text(built: Built) -> None:
    kept = built.kept()
    for document, text in zip(built.documents, built.texts(), strict=True):
        assert (document["path"], document["row"]) == kept[text]


def test_ids_are_those_of_the_library_document_by_document(built: Built) -> None:
    if built.tokenizer == "byte":
        for document in built.documents:
            text = built.source[document["path"], document["row"]]
            assert document["ids"].tobytes() == text.encode("utf-8")
        return
    encoding = tiktoken.get_encoding(built.tokenizer)
    for document in built.documents:
        place = (document["path"], document["row"])
        expected = np.array(encoding.encode_ordinary(built.source[place]), np.uint32)
        assert np.array_equal(document["ids"], expected), place


def test_the_manifest_counts_every_row_of_the_input_once(built: Built) -> None:
    texts = [text for text in built.source.values() if text]
    kept = set(texts)
    assert built.manifest["rows"] == {
        "read": len(built.source),
        "kept": len(kept),
        "duplicates": len(texts) - len(kept),
        "filtered": len(built.source) - len(texts),
        "excluded": 0,
        "quarantined": 0,
    }
    splits = built.manifest["splits"]
    for name, split in splits.items():
        mine = [document for document in built.documents if document["split"] == name]
        assert split["documents"] == len(mine) == sum(shard["documents"] for shard in split["shards"])
        assert split["tokens"] == sum(len(document["ids"]) + 1 for document in mine)
        assert split["tokens"] == sum(shard["tokens"] for shard in split["shards"])
    assert sum(split["documents"] for split in splits.values()) == len(kept)
    assert sum(split["duplicates"] for split in splits.values()) == len(texts) - len(kept)


HARD_TEXTS = [
    "<|endoftext|>",
    "a<|endoftext|>b",
    "<|endoftext|><|endoftext|>",
    "<|fim_prefix|>x<|fim_middle|>y<|fim_suffix|>z<|endofprompt|>",
    "<|endoftext",
    "endoftext|>",
    "<|",
    "|>",
    "\0",
    "a\0b\0",
    "".join(map(chr, range(32))),
    "\x7f\x80\x85\x9f\ufeff\ufffe\uffff",
    "\ufefftext behind a byte order mark",
    " ",
    "\n",
    "\r\n\r\n \t \v\f\u2028\u2029\u3000 end",
    "👩‍👩‍👧‍👦 🇪🇺 👍🏽 ❤️ \U0001f9d1\u200d\U0001f680",
    "多言語のテキスト。한국어 텍스트、漢字かな交じり文。",
    "Ǆ ﬁ İ ß e\u0301 क्षि مرحبا \u202eabc\u202c \u200b \u00ad",
    "\U00100000\U0010ffff\ue000",
    "it's IT'S we'Ve l'été 1234567890 ٠١٢٣ ²³",
    *(character * 1_000_000 for character in "a \n-0é"),
    " " * 1_000_000 + "x",
    "words before" + "\n" * 999_999 + " x and after",
]


def expected_ids(encoding: tiktoken.Encoding, text: str) -> list[int]:
    """Return the ids of `encode_ordinary`; of the unbounded engine where tiktoken panics."""
    try:
        return encoding.encode_ordinary(text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return list(encoding._encode_only_native_bpe(text))


@pytest.fixture(scope="module", params=["byte", "gpt2", "cl100k_base", "o200k_base"])
def hard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The hard texts in one dataset: as they are, and between two plain words."""
    if request.param != "byte":
        request.getfixturevalue("tiktoken_cache")
    folder = tmp_path_factory.mktemp("hard")
    texts = HARD_TEXTS + [f"before {text} after" for text in HARD_TEXTS if len(text) < 1000]
    path = write_parquet(folder / "hard.parquet", texts, group_rows=16)
    spec = make_spec(
        folder / "store", [{"kind": "parquet", "path": str(path)}], tokenizer=tokenizer_fields(request.param)
    )
    result = build(spec)
    source = {("hard.parquet", row): text for row, text in enumerate(texts)}
    return load_built(spec, result.version, request.param, source)


def test_hard_texts_come_back_as_they_went_in(hard: Built) -> None:
    assert Counter(hard.texts()) == Counter(dict.fromkeys(hard.source.values(), 1))


def test_hard_texts_get_the_ids_of_the_library(hard: Built) -> None:
    if hard.tokenizer == "byte":
        expected = {place: list(text.encode()) for place, text in hard.source.items()}
    else:
        encoding = tiktoken.get_encoding(hard.tokenizer)
        expected = {place: expected_ids(encoding, text) for place, text in hard.source.items()}
    for document in hard.documents:
        place = (document["path"], document["row"])
        assert document["ids"].tolist() == expected[place], hard.source[place][:40]
