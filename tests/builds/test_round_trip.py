"""Round trip over corpora, real where they are available: the shards contain what the source contains.

The sources are read again here with pyarrow, datasets, array_record, json, csv, gzip and zipfile, never through the
build's own readers; ids are compared with those of each tokenizer's library, called here document by document.
"""

from __future__ import annotations

import csv
import gzip
import json
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentencepiece
import tiktoken
import tokenizers

from tests.builders.datasets import build, local_store, make_spec, manifest_json, stored_documents, write_parquet
from tests.builders.row_files import write_rows
from tests.builders.vocabularies import encoding_of
from tests.counts import FULL, count

Place = tuple[str, int]
Vocabulary = Callable[[str], dict[str, Any]]  # of the fixture


# Corpora


_LONG = count(100_000, 1_000_000)
_HARD_TEXTS = [
    *("<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endoftext", "endoftext|>", "<|", "|>"),
    "<|fim_prefix|>x<|fim_middle|>y<|fim_suffix|>z<|endofprompt|>",
    *("\0", "a\0b\0", " ", "\n", "\ufefftext behind a byte order mark"),
    "".join(map(chr, range(32))),
    "\x7f\x80\x85\x9f\ufeff\ufffe\uffff",
    "\r\n\r\n \t \v\f\u2028\u2029\u3000 end",
    "👩‍👩‍👧‍👦 🇪🇺 👍🏽 ❤️ \U0001f9d1\u200d\U0001f680",
    "多言語のテキスト。한국어 텍스트、漢字かな交じり文。",
    "Ǆ ﬁ İ ß e\u0301 क्षि مرحبا \u202eabc\u202c \u200b \u00ad",
    "\U00100000\U0010ffff\ue000",
    "it's IT'S we'Ve l'été 1234567890 ٠١٢٣ ²³",
    *(character * _LONG for character in "a \n-0é"),
    " " * 1_000_000 + "x",  # too much for some of tiktoken's expressions
    "words before" + "\n" * (_LONG - 1) + " x and after",
]


def _hard(_: Path, folder: Path) -> None:
    """Write the difficult texts, each alone and between two plain words."""
    texts = _HARD_TEXTS + [f"before {text} after" for text in _HARD_TEXTS if len(text) < 1000]
    write_parquet(folder / "hard.parquet", texts, group_rows=16)


def _udhr(data: Path, folder: Path) -> None:
    with zipfile.ZipFile(data / "multilingual" / "udhr2.zip") as archive:
        archive.extractall(folder)


def _csv(data: Path, folder: Path) -> None:
    for name in ("wikitext-2/valid", "nltk/movie_reviews_pos"):
        rows = pq.read_table(data / f"{name}.parquet", columns=["id", "text"]).to_pylist()
        write_rows(folder / f"{Path(name).name}.csv", rows)


def _array_records(data: Path, folder: Path) -> None:
    for path in sorted((data / "ag_news").glob("*.parquet")):
        write_rows(folder / f"{path.stem}.array_record", pq.read_table(path).to_pylist())


@dataclass(frozen=True)
class Corpus:
    """A source as in a spec, and the tokenizers that it is built with.

    Its paths start at the folder of data, or at a new one if `write` fills that first. With `limit` only the first
    documents are taken. `keeps` is its filter in Python.
    """

    options: dict[str, str]
    tokenizers: str = "byte"
    full: str = "gpt2"  # used too with TOKENLOOM_FULL=1
    limit: int | None = None
    write: Callable[[Path, Path], None] | None = None
    keeps: Callable[[dict[str, Any]], bool] = field(default=lambda row: True)

    def source(self, folder: Path) -> dict[str, str]:
        """Return the source of a spec."""
        key = "name" if self.options["kind"] == "huggingface" else "path"
        return self.options | {key: str(folder / self.options[key])}


_EVERY = "byte gpt2 gpt-neox mistral sentencepiece"
_STORIES = "tinystories/stories"

CORPORA = {
    "hard": Corpus({"kind": "parquet", "path": "*.parquet"}, "byte o200k_base", full="gpt2 cl100k_base", write=_hard),
    "ag_news": Corpus({"kind": "parquet", "path": "ag_news/*.parquet", "id": "id"}, "gpt2", full="byte o200k_base"),
    "ag_news_hf": Corpus({"kind": "huggingface", "name": "ag_news", "id": "id"}),
    "ag_news_records": Corpus(
        {"kind": "arrayrecord", "path": "*.array_record", "text": "text", "id": "id"}, write=_array_records
    ),
    "csv": Corpus({"kind": "csv", "path": "*.csv", "id": "id"}, write=_csv),
    "wikitext": Corpus({"kind": "parquet", "path": "wikitext-2/valid.parquet"}, "", full="byte gpt2 o200k_base"),
    "tang_poems_first": Corpus(
        {"kind": "parquet", "path": "multilingual/tang_poems.parquet", "text": "paragraphs", "id": "id"},
        "sentencepiece",
        full="gpt2 gpt-neox mistral",
        limit=4000,
    ),
    "stories_lines": Corpus(
        {"kind": "jsonl", "path": f"{_STORIES}.jsonl.gz", "text": "story", "id": "id"}, full=_EVERY
    ),
    "stories_separated": Corpus(
        {"kind": "text", "path": f"{_STORIES}_endoftext.txt", "separator": "<|endoftext|>"}, full=_EVERY
    ),
    "stories_array": Corpus({"kind": "jsonl", "path": f"{_STORIES}_first500.json", "text": "story"}, _EVERY),
    "c4": Corpus({"kind": "jsonl", "path": "webtext/c4-*.json.gz", "id": "url"}, full=_EVERY),
    "dclm": Corpus(
        {
            "kind": "jsonl",
            "path": "webtext/dclm_sample.jsonl",
            "filter": "language_id_whole_page_fasttext.en > 0.9",
            "id": "url",
        },
        full=_EVERY,
        keeps=lambda row: bool(row["language_id_whole_page_fasttext"]["en"] > 0.9),
    ),
    "boolq": Corpus({"kind": "arrow", "path": "hf_arrow/boolq/none/validation", "text": "passage"}),
    "openbookqa": Corpus(
        {"kind": "arrow", "path": "hf_arrow/openbookqa/main/validation", "text": "choices.text", "id": "id"},
        full=_EVERY,
    ),
    "udhr": Corpus({"kind": "text", "path": "udhr2/*.txt"}, full=_EVERY, write=_udhr),
    "wagahaiwa": Corpus({"kind": "text", "path": "multilingual/wagahaiwa_*.txt"}, "gpt2", full="byte"),
    "tinyshakespeare": Corpus(
        {"kind": "text", "path": "tinyshakespeare/input.txt"}, "o200k_base", full="byte gpt2 gpt-neox"
    ),
}


# Sources, read again


@dataclass(frozen=True)
class Row:
    """A row of a source; its text is None if it is null, empty or dropped by the filter."""

    text: str | None
    id: str | None = None


def _text_rows(path: Path, separator: str | None) -> Iterator[tuple[int, str]]:
    """Yield the offset in bytes and the stripped text of each document between separators."""
    data = path.read_bytes()
    if separator is None:
        yield 0, data.decode("utf-8")
        return
    parts, mark = data.split(separator.encode()), len(separator.encode())
    for part, end in zip(parts, accumulate(len(part) + mark for part in parts), strict=True):
        if text := part.decode("utf-8").strip("\r\n"):
            yield end - len(part) - mark, text


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the objects of an array by their position, of lines by their offset in bytes, decompressed."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if path.suffix == ".json":
        yield from enumerate(json.loads(data))
        return
    lines = data.split(b"\n")
    for line, end in zip(lines, accumulate(len(line) + 1 for line in lines), strict=True):
        if line:
            yield end - len(line) - 1, json.loads(line)


def _file_rows(path: Path, options: dict[str, str]) -> Iterator[tuple[int, Any]]:
    """Yield (row, value) of a file."""
    kind = options["kind"]
    if kind in ("parquet", "huggingface"):
        yield from enumerate(pq.read_table(path).to_pylist())
    elif kind == "arrow":
        datasets = pytest.importorskip("datasets")
        yield from enumerate(datasets.load_from_disk(str(path.parent)))
    elif kind == "arrayrecord":
        module = pytest.importorskip("array_record.python.array_record_module")
        reader = module.ArrayRecordReader(str(path))
        yield from enumerate(map(json.loads, reader.read_all()))
        reader.close()
    elif kind == "csv":
        with path.open(encoding="utf-8", newline="") as file:
            yield from enumerate(csv.DictReader(file))
    elif kind == "text":
        yield from _text_rows(path, options.get("separator"))
    else:
        yield from _json_rows(path)


def _pick(value: Any, key: str) -> Any:
    return reduce(lambda inner, part: inner[part], key.split("."), value)


def read_source(folder: Path, corpus: Corpus) -> dict[Place, Row]:
    """Return {place: row} for all rows of a corpus."""
    options = corpus.options
    pattern = options.get("path") or f"{options['name']}/*"
    csv.field_size_limit(2**27)
    rows: dict[Place, Row] = {}
    for path in sorted(folder.glob(pattern + "/*.arrow" if options["kind"] == "arrow" else pattern)):
        name = f"{path.parent.name}/{path.name}" if options["kind"] == "arrow" else path.name
        for number, value in _file_rows(path, options):
            text = value if isinstance(value, str) else _pick(value, options.get("text", "text"))
            text = "\n".join(text) if isinstance(text, list) else text
            row_id = str(_pick(value, options["id"])) if "id" in options else None
            rows[name, number] = Row(text, row_id) if isinstance(value, str) or corpus.keeps(value) else Row(None)
    return rows


# Tokenizers, called as their libraries say


def tokenizer_fields(name: str, data: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the `tokenizer` part of a spec."""
    folder = data / "tokenizers"
    files = {
        "byte": {"kind": "byte"},
        "gpt-neox": {"kind": "huggingface", "path": str(folder / "gpt-neox-20b" / "tokenizer.json")},
        "mistral": {"kind": "sentencepiece", "path": str(folder / "mistral" / "tokenizer.model.v1")},
        "sentencepiece": {"kind": "sentencepiece", "path": str(folder / "sentencepiece" / "test_model.model")},
    }
    return files.get(name) or vocabulary(name)


@dataclass(frozen=True)
class Library:
    """A tokenizer called through its library; `decode` is None if ids do not determine the text."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str] | None
    normalize: Callable[[str], str] = str  # what happens to a text before it is encoded


def _expected_ids(encoding: tiktoken.Encoding, text: str) -> list[int]:
    """Return the ids of `encode_ordinary`; of the unbounded engine where tiktoken panics."""
    try:
        return encoding.encode_ordinary(text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return list(encoding._encode_only_native_bpe(text))


def library(fields: dict[str, Any]) -> Library:
    """Return the library of the `tokenizer` part of a spec."""
    path = fields.get("path")
    if fields["kind"] == "byte":
        return Library(lambda text: list(text.encode()), lambda ids: bytes(ids).decode("utf-8"))
    if path is None:
        encoding = encoding_of(fields)
        return Library(
            lambda text: _expected_ids(encoding, text), lambda ids: encoding.decode_bytes(ids).decode("utf-8")
        )
    if path.endswith(".json"):
        loaded = tokenizers.Tokenizer.from_file(path)
        loaded.encode_special_tokens = True
        return Library(
            lambda text: list(loaded.encode(text, add_special_tokens=False).ids),
            lambda ids: loaded.decode(ids, skip_special_tokens=False),
            lambda text: unicodedata.normalize("NFC", text),  # the one normalizer of this file
        )
    return Library(sentencepiece.SentencePieceProcessor(model_file=path).EncodeAsIds, None)


# Versions


@dataclass(frozen=True)
class Built:
    """A published version of one corpus: its manifest and documents, and every row of the source by its place."""

    library: Library
    manifest: dict[str, Any]
    documents: list[dict[str, Any]]
    source: dict[Place, Row]
    limit: int | None = None

    @cached_property
    def texts(self) -> dict[Place, str]:
        """{place: text} of possible documents, in order; for a try-out, only the first ones."""
        texts = [(place, row.text) for place, row in sorted(self.source.items()) if row.text]
        return dict(texts[: self.limit])

    @cached_property
    def kept(self) -> dict[str, Place]:
        """The first place of every distinct text."""
        places: dict[str, Place] = {}
        for place, text in self.texts.items():
            places.setdefault(text, place)
        return places


def _place(document: dict[str, Any]) -> Place:
    return document["path"], document["row"]


@pytest.fixture(
    scope="module",
    params=[
        (name, tokenizer)
        for name, corpus in CORPORA.items()
        for tokenizer in dict.fromkeys(f"{corpus.tokenizers} {corpus.full if FULL else ''}".split())
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def built(
    request: pytest.FixtureRequest, any_data: Path, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> Built:
    """Every corpus with its tokenizers, built once."""
    name, tokenizer = request.param
    corpus, fields = CORPORA[name], tokenizer_fields(tokenizer, any_data, vocabulary)
    folder = any_data
    if corpus.write is not None:
        folder = tmp_path_factory.mktemp("corpus")
        corpus.write(any_data, folder)
    sources, store = [corpus.source(folder)], tmp_path_factory.mktemp("store")
    spec = make_spec(store, sources, tokenizer=fields, shard_tokens=500_000, limit=corpus.limit)
    result = build(spec, num_workers=2 if FULL and tokenizer != "byte" else 0)
    manifest = manifest_json(local_store(spec.store, spec.dataset), result.version)
    documents = stored_documents(spec, result.version)
    return Built(library(fields), manifest, documents, read_source(folder, corpus), corpus.limit)


def test_the_documents_are_exactly_the_distinct_input_documents(built: Built) -> None:
    assert len(built.kept) > 0
    assert Counter(map(_place, built.documents)) == Counter(built.kept.values())
    if built.library.decode is not None:
        normalize, decode = built.library.normalize, built.library.decode
        for document in built.documents:
            place = _place(document)
            assert decode(document["ids"].tolist()) == normalize(built.texts[place]), place


def test_every_document_carries_the_id_of_its_row(built: Built) -> None:
    for document in built.documents:
        assert document.get("id") == built.source[_place(document)].id


def test_each_document_has_the_token_ids_of_the_library(built: Built) -> None:
    for document in built.documents:
        place = _place(document)
        expected = np.array(built.library.encode(built.texts[place]), np.uint32)
        assert np.array_equal(document["ids"], expected), place


def test_the_manifest_counts_every_input_row_once(built: Built) -> None:
    num_texts, num_kept = len(built.texts), len(built.kept)
    rows = {"kept": num_kept, "duplicates": num_texts - num_kept, "excluded": 0, "quarantined": 0}
    if built.limit is None:
        rows |= {"read": len(built.source), "filtered": len(built.source) - num_texts}
    assert built.manifest["rows"] | rows == built.manifest["rows"]
    assert built.manifest["rows"]["read"] == sum(built.manifest["rows"].values()) - built.manifest["rows"]["read"]
    splits = built.manifest["splits"]
    for name, split in splits.items():
        mine = [document for document in built.documents if document["split"] == name]
        assert split["documents"] == len(mine) == sum(shard["documents"] for shard in split["shards"])
        assert split["tokens"] == sum(len(document["ids"]) + 1 for document in mine)
        assert split["tokens"] == sum(shard["tokens"] for shard in split["shards"])
    assert sum(split["documents"] for split in splits.values()) == num_kept
    assert sum(split["duplicates"] for split in splits.values()) == num_texts - num_kept
