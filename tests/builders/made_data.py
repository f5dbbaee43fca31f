"""Made files with the names and layouts of the real ones in TOKENLOOM_TEST_DATA, for tests that need some data.

Phrases in many scripts stand between made words. A few texts occur twice.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece

from tests.builders.made_conversations import SCRIPTS
from tests.builders.row_files import write_rows
from tests.builders.vocabularies import made_text, write_made_json

_TOOLS = json.dumps([{"name": "search", "description": "Search", "parameters": {"type": "object", "properties": {}}}])
_NUM_NEWS = (400, 900, 600, 400, 1000, 700, 500, 400)  # rows of each file


@lru_cache
def _words() -> list[str]:
    return made_text().split()


def _prose(seed: str, num_words: int) -> str:
    """Return a composed text: made words, and a phrase in some script for each thirty or so."""
    draw = random.Random(seed)
    words = draw.choices(_words(), k=num_words)
    for place in range(draw.randrange(30), num_words, 30):
        words[place] = draw.choice(SCRIPTS)
    return unicodedata.normalize("NFC", " ".join(words).capitalize() + ".")


def _texts(name: str, num_texts: int, num_words: int) -> Iterator[str]:
    """Yield texts of half to one and a half times as many words; each fiftieth is the one before."""
    text = ""
    for number in range(num_texts):
        seed = f"{name} {number}"
        length = random.Random(seed).randrange(num_words // 2, num_words * 3 // 2)
        text = text if number % 50 == 49 else _prose(seed, length)
        yield text


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write JSON lines, compressed if the name says so."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


def _news(folder: Path) -> None:
    texts = _texts("news", sum(_NUM_NEWS), 20)
    number = 0
    for file, num_rows in enumerate(_NUM_NEWS):
        rows = []
        for _ in range(num_rows):
            text = next(texts)
            rows.append({"id": number, "label": number % 4, "title": text[:20], "text": text})
            number += 1
        write_rows(folder / f"ag_news/train-{file:05}-of-00008.parquet", rows, 150)


def _stories(folder: Path) -> None:
    stories = list(_texts("stories", 700, 40))
    rows = [{"id": f"story-{number}", "story": story} for number, story in enumerate(stories)]
    _write_lines(folder / "tinystories/stories.jsonl.gz", rows)
    write_rows(folder / "tinystories/stories_first500.json", [{"story": story} for story in stories[:500]])
    text = "\n<|endoftext|>\n".join(stories)
    (folder / "tinystories/stories_endoftext.txt").write_text(text, "utf-8")


def _web_pages(folder: Path) -> None:
    for file in (1, 2):
        rows = []
        for number, text in enumerate(_texts(f"web {file}", 8, 300)):
            rows.append({"text": text, "url": f"https://example.org/{file}/{number}", "date": "2026-01-01"})
        _write_lines(folder / f"webtext/c4-sample.0{file}.json.gz", rows)
    pages = []
    for number, text in enumerate(_texts("dclm", 10, 300)):
        language = {"language_id_whole_page_fasttext": {"en": 0.85 + number / 100}, "metadata": {"Length": str(number)}}
        pages.append({"text": text, "url": f"https://example.org/{number}"} | language)
    _write_lines(folder / "webtext/dclm_sample.jsonl", pages)


def _saved_datasets(folder: Path) -> None:
    """Write folders of save_to_disk, one with nested structs; none without its package."""
    try:
        import datasets
    except ImportError:
        return
    passages = []
    for number, text in enumerate(_texts("passages", 300, 80)):
        passages.append({"question": f"question {number}", "answer": number % 2 == 0, "passage": text})
    questions = []
    for number in range(200):
        choices = {"text": [_prose(f"choice {number} {letter}", 6) for letter in "ABCD"], "label": list("ABCD")}
        questions.append({"id": f"q-{number}", "question_stem": "Which?", "choices": choices, "answerKey": "A"})
    for name, rows in (("boolq/none", passages), ("openbookqa/main", questions)):
        datasets.Dataset.from_list(rows).save_to_disk(folder / f"hf_arrow/{name}/validation")


def _scripts(folder: Path) -> None:
    """Write poems in a list column, one text in many files of an archive, and a text file, mostly not in English."""
    draw = random.Random("scripts")
    poems = []
    for number in range(4500):
        lines = [draw.choice(SCRIPTS) for _ in range(4)]
        poem = {"id": f"poem-{number}", "title": lines[0][:4], "author": "nobody", "paragraphs": lines}
        poems.append(poem)
    write_rows(folder / "multilingual/tang_poems.parquet", poems, 1000)
    with zipfile.ZipFile(folder / "multilingual/udhr2.zip", "w") as archive:
        for number, phrase in enumerate(SCRIPTS):
            archive.writestr(f"udhr2/{number:03}.txt", f"{phrase}\n" * 20)
    (folder / "multilingual/wagahaiwa_made.ja.txt").write_text("\n".join(SCRIPTS * 50), "utf-8")


def _long_texts(folder: Path) -> None:
    papers = [{"article": text, "abstract": text[:200]} for text in _texts("papers", 70, 2500)]
    _write_lines(folder / "longdocs/scisummnet_papers.jsonl.gz", papers)
    novel = folder / "longdocs/gutenberg/melville-moby_dick.txt"
    novel.parent.mkdir()
    novel.write_text(_prose("novel", 50_000), "utf-8")
    (folder / "tinyshakespeare").mkdir()
    (folder / "tinyshakespeare/input.txt").write_text("\n".join(_texts("plays", 500, 60)), "utf-8")
    articles = [{"id": number, "text": text} for number, text in enumerate(_texts("articles", 60, 400))]
    write_rows(folder / "wikitext-2/valid.parquet", articles, 20)
    reviews = pa.table({"id": [f"review-{number}" for number in range(200)], "text": [*_texts("reviews", 200, 200)]})
    (folder / "nltk").mkdir()
    pq.write_table(reviews, folder / "nltk/movie_reviews_pos.parquet")


def _chats(folder: Path) -> None:
    """Write conversations in four layouts, with calls of tools and with reasoning in two of them."""
    asked, answers = list(_texts("asked", 1600, 12)), list(_texts("answers", 1600, 50))
    pairs = list(zip(asked, answers, strict=True))
    instructions = [{"instruction": question, "input": "", "output": answer} for question, answer in pairs[:1000]]
    write_rows(folder / "chat/alpaca_en_demo.json", instructions)
    write_rows(folder / "chat/glaive_toolcall_en_demo.json", made_calls(300))
    weighted = []
    for question, answer in pairs[1000:1500]:
        weighted.append({"messages": [_typed("user", question, 0.0), _typed("assistant", answer, 1.0)]})
    _write_lines(folder / "chat/v1_sft_demo.jsonl", weighted)
    reasoned = []
    for question, answer in pairs[1500:1550]:
        call = {"type": "tool_call", "value": json.dumps({"name": "search", "arguments": {"query": "x"}})}
        thought = {"type": "reasoning", "value": answer[:80]}
        calling = {"role": "assistant", "content": [thought, call]}
        turns = [_typed("system", "Use tools."), _typed("user", question), calling, _typed("tool", answer[:40])]
        reasoned.append({"messages": [*turns, _typed("assistant", answer)], "tools": _TOOLS})
    _write_lines(folder / "chat/reason_tool_use_demo_50.jsonl", reasoned)


def made_calls(num_rows: int) -> list[dict[str, Any]]:
    """Return conversations as glaive writes them; every third one calls a tool."""
    rows = []
    for number in range(num_rows):
        question, answer = _prose(f"call {number}", 12), _prose(f"output {number}", 50)
        call = json.dumps({"name": "search", "arguments": {"query": question}}, ensure_ascii=False)
        said = {"human": question, "function_call": call, "observation": answer[:50], "gpt": answer}
        if number % 3:
            said = {"human": question, "gpt": answer}
        turns = [{"from": role, "value": text} for role, text in said.items()]
        rows.append({"conversations": turns, "tools": _TOOLS})
    return rows


def _typed(role: str, text: str, weight: float | None = None) -> dict[str, Any]:
    """Return a message whose content is a list of parts."""
    message: dict[str, Any] = {"role": role, "content": [{"type": "text", "value": text}]}
    return message if weight is None else message | {"loss_weight": weight}


def _tokenizers(folder: Path) -> None:
    """Write a tokenizer.json, another like GPT-NeoX's, and two models of SentencePiece, one with all bytes."""
    for name in ("gpt2", "gpt-neox-20b", "mistral", "sentencepiece"):
        (folder / "tokenizers" / name).mkdir(parents=True)
    write_made_json(folder / "tokenizers/gpt2/tokenizer.json")
    write_made_json(folder / "tokenizers/gpt-neox-20b/tokenizer.json", like_gpt_neox=True)
    (folder / "tokenizers/sentencepiece/test_model.model").write_bytes(_sentencepiece_model())
    (folder / "tokenizers/mistral/tokenizer.model.v1").write_bytes(_sentencepiece_model(byte_fallback=True))


def _sentencepiece_model(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(made_text().splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=1000,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def write_made_data(folder: Path) -> Path:
    """Write all files into a new folder; return it."""
    _news(folder)
    _stories(folder)
    _web_pages(folder)
    _saved_datasets(folder)
    _scripts(folder)
    _long_texts(folder)
    _chats(folder)
    _tokenizers(folder)
    return folder
