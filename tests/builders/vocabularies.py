"""A made vocabulary, for tests that need some vocabulary and not a certain one: byte pairs of made words.

It is written as a file of ranks, which tiktoken reads, and as a tokenizer.json, which tokenizers reads. Both have the
same ids.
"""

from __future__ import annotations

import base64
import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tiktoken
import tokenizers
from tiktoken_ext import openai_public
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

EOT = "<|endoftext|>"
NUM_TOKENS = 2000  # without the end of text


_STARTS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "th", "sh", "pl", "")
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou")
_ENDS = ("", "", "n", "r", "s", "t", "ng", "ck")
_NUM_WORDS = 3000


@lru_cache
def made_text() -> str:
    """Return 330 KB of made words, of which few are frequent, with punctuation, numbers and lines of code.

    It is the same whatever else of the project changes, so what tests see of it stays.
    """
    draw = random.Random("text")
    words = []
    for _ in range(_NUM_WORDS):
        syllables = []
        for _ in range(draw.choice((1, 1, 2, 2, 3))):
            syllables.append(draw.choice(_STARTS) + draw.choice(_VOWELS) + draw.choice(_ENDS))
        words.append("".join(syllables))
    weights = [1 / (rank + 2) for rank in range(_NUM_WORDS)]  # Zipf's law
    lines = []
    for number in range(4000):
        line = draw.choices(words, weights, k=draw.randrange(4, 16))
        line[0] = line[0].capitalize()
        line[1] += draw.choice(("", ",", "'s", f" {draw.randrange(3000)}", "-" + line[2]))
        lines.append(" ".join(line) + draw.choice(".....?!:"))
        if number % 8 == 0:
            lines += [
                "",
                f"    def {line[2]}_{line[3]}(x, y={draw.randrange(10)}):",
                "        return x[y] * 2  # " + line[3],
            ]
    return "\n".join(lines)


@lru_cache
def _trained() -> str:
    """Return the tokenizer.json of a byte-level BPE with GPT-2's pattern and no special token."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=NUM_TOKENS, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator([made_text()], trainer)
    return library.to_str()


@lru_cache
def made_ranks() -> dict[bytes, int]:
    """Return the ids of the vocabulary by token."""
    letters = {chr(byte): byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "}
    unseen = [byte for byte in range(256) if byte not in letters.values()]
    for number, byte in enumerate(unseen):
        letters[chr(256 + number)] = byte  # as in GPT-2's vocabulary
    vocabulary: dict[str, int] = json.loads(_trained())["model"]["vocab"]
    return {bytes(letters[letter] for letter in token): number for token, number in vocabulary.items()}


def write_made_json(path: Path, *, like_gpt_neox: bool = False) -> Path:
    """Write the tokenizer.json, with the end of text after the vocabulary.

    Like GPT-NeoX's, it brings texts to NFC, and runs of spaces are added tokens.
    """
    library = tokenizers.Tokenizer.from_str(_trained())
    library.add_special_tokens([AddedToken(EOT, normalized=False)])
    if like_gpt_neox:
        library.normalizer = normalizers.NFC()
        library.post_processor = processors.ByteLevel(add_prefix_space=False)
        library.add_tokens([AddedToken(" " * length, normalized=True) for length in range(24, 1, -1)])
    library.save(str(path))
    return path


def made_definition(path: Path, name: str) -> dict[str, Any]:
    """Write the file of ranks; return the definition of a tokenizer with the pattern of tiktoken's encoding `name`."""
    ranks = sorted(made_ranks().items(), key=lambda pair: pair[1])
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % number for token, number in ranks))
    fields = {"pattern": pattern_of(name), "special_tokens": {EOT: NUM_TOKENS}}
    return {"kind": "tiktoken", "ranks": str(path), "name": f"made-{name}", **fields}


def pattern_of(name: str) -> str:
    """Return the pattern of an encoding of tiktoken, also where its vocabulary is missing."""
    if name == "gpt2":
        return str(openai_public.r50k_pat_str)
    with patch.object(openai_public, "load_tiktoken_bpe", return_value={}):
        return str(openai_public.ENCODING_CONSTRUCTORS[name]()["pat_str"])


def made_encoding(name: str) -> tiktoken.Encoding:
    """Return tiktoken's own encoding with the made vocabulary and the pattern of its encoding `name`."""
    special = {EOT: NUM_TOKENS}
    pattern = pattern_of(name)
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=made_ranks(), special_tokens=special)


def encoding_of(definition: dict[str, Any]) -> tiktoken.Encoding:
    """Return tiktoken's own encoding of a definition by name, or of one that made_definition returned."""
    name = definition["name"]
    return made_encoding(name.removeprefix("made-")) if "ranks" in definition else tiktoken.get_encoding(name)
