"""The pages docs/comparison/*.md that begin "Coming from" can be followed with our commands alone.

Their programs need their packages: tests/peers/test_coming_from.py runs them. Here the test leaves the files that their
programs would leave, with the ids of the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.token_files import write_megatron
from tests.docs.sessions import run_session, write_specs
from tests.docs.walk import blocks

PAGES = ("datatrove", "hf-datasets", "litdata", "megatron", "mosaicml")


def write_corpus(data: Path) -> None:
    """Write the corpus of the pages into the current folder."""
    texts = pq.read_table(data / "ag_news/train-00000-of-00008.parquet")["text"].to_pylist()
    Path("corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def follow(name: str, run_theirs: Callable[[str], None]) -> None:
    """Follow a page in the current folder: run our commands, and give each program of theirs to `run_theirs`."""
    page = f"docs/comparison/{name}.md"
    write_specs(blocks(page))
    for language, text in blocks(page):
        if language == "console":
            run_session(text)
        elif language == "python":
            run_theirs(text)


def _documents() -> list[list[int]]:
    """Return the ids of each text of the corpus, with its end-of-text id."""
    import tiktoken

    encoder = tiktoken.get_encoding("gpt2")
    texts = [json.loads(line)["text"] for line in Path("corpus.jsonl").read_text().splitlines()]
    return [[*encoder.encode_ordinary(text), encoder.eot_token] for text in texts]


def write_old(name: str) -> None:
    """Write what the programs of a page leave behind for our import."""
    Path("old").mkdir()
    documents = _documents()
    ids, ends = np.concatenate(documents).astype("<u2"), np.cumsum([*map(len, documents)]).astype("<u8")
    if name == "megatron":
        write_megatron(Path("old/corpus_text_document"), [[document] for document in documents])
    elif name == "datatrove":
        ids.tofile("old/000_corpus.ds")
        ends.tofile("old/000_corpus.ds.index")
    elif name == "hf-datasets":
        table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.int32()))})
        with pa.ipc.new_stream("old/data-00000-of-00001.arrow", table.schema) as out:
            out.write_table(table)
        Path("old/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    else:
        ids.tofile("old.bin")


@pytest.mark.parametrize("name", PAGES)
def test_our_commands_of_the_page_print_what_it_shows(
    name: str, tiktoken_cache: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(data_dir)
    write_old(name)
    follow(name, lambda program: None)
