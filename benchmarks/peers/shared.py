"""What the programs of this folder share: their arguments, an encoder of documents, and their answer.

benchmarks/build.py runs each of them in a fresh process, as a user would run it, with the interpreter of an environment
in which the peer is installed. They import nothing of tokenloom.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gigatoken

Encode = Callable[[list[str]], list[NDArray[Any]]]


@dataclass(frozen=True)
class Job:
    """What a peer is asked to do."""

    vocabulary: str  # a name of tiktoken, the path of a tokenizer.json or, for gigatoken, of ranks, or "byte"
    eot: str  # the token after each document, where the vocabulary does not define it
    num_workers: int
    output: Path  # an empty folder
    files: list[str]  # parquet with a column `text`, or one of JSON lines with a key `text`

    def answer(self, num_tokens: int, *packages: str) -> None:
        """Write what benchmarks/build.py reads: the tokens, and the versions of the packages that made them."""
        versions = {package: version(package) for package in packages}
        (self.output / "answer.json").write_text(json.dumps({"tokens": num_tokens, "versions": versions}))


def read_job() -> Job:
    """Return the job on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vocabulary")
    parser.add_argument("eot")
    parser.add_argument("num_workers", type=int)
    parser.add_argument("output", type=Path)
    parser.add_argument("files", nargs="+")
    return Job(**vars(parser.parse_args()))


def sum_of_files(job: Job, encode_file: Callable[[str, str, str], int]) -> int:
    """Call a function with each file, the vocabulary and `eot`, in spawned processes; return the sum of its results."""
    tasks = [(path, job.vocabulary, job.eot) for path in job.files]
    with multiprocessing.get_context("spawn").Pool(job.num_workers) as pool:
        return sum(pool.starmap(encode_file, tasks, chunksize=1))


def encoding_package(vocabulary: str) -> str:
    """Return the name of the package that encodes with a vocabulary."""
    return "tokenizers" if vocabulary.endswith(".json") else "numpy" if vocabulary == "byte" else "tiktoken"


@cache  # for all files of a process
def gigatoken_tokenizer(path: str, eot: str) -> tuple[gigatoken.Tokenizer, int]:
    """Return gigatoken's tokenizer of a tokenizer.json or of ranks it knows by the file's name, and its `eot` id."""
    import gigatoken

    if path.endswith(".tiktoken"):
        tokenizer, eot = gigatoken.Tokenizer.from_tiktoken(path), "<|endoftext|>"
    else:
        tokenizer = gigatoken.Tokenizer(path)
    ids = tokenizer.encode(eot)
    if len(ids) != 1:
        raise SystemExit(f"{path} has no token {eot}; give its end-of-text token, --eot TOKEN")
    return tokenizer, int(ids[0])


@cache
def encoder(vocabulary: str, eot: str) -> Encode:
    """Return a function that gives an array for each text: the ids of ordinary text, and the end-of-text id."""
    if vocabulary == "byte":
        return lambda texts: [np.frombuffer(text.encode() + b"\xff", np.uint8) for text in texts]
    if vocabulary.endswith(".json"):
        return _encoder_of_file(vocabulary, eot)
    import tiktoken

    encoding = tiktoken.get_encoding(vocabulary)
    return lambda texts: _arrays(map(encoding.encode_ordinary, texts), encoding.eot_token, encoding.n_vocab)


def _encoder_of_file(path: str, eot: str) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    eot_id, vocab_size = tokenizer.token_to_id(eot), tokenizer.get_vocab_size()
    if eot_id is None:
        raise SystemExit(f"{path} has no token {eot}; give its end-of-text token, --eot TOKEN")

    def encode(texts: list[str]) -> list[NDArray[Any]]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return _arrays((encoding.ids for encoding in encodings), eot_id, vocab_size)

    return encode


def _arrays(documents: Iterable[list[int]], eot_id: int, vocab_size: int) -> list[NDArray[Any]]:
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    arrays = []
    for ids in documents:
        ids.append(eot_id)
        arrays.append(np.array(ids, dtype))
    return arrays
