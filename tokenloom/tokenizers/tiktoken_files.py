"""The files of byte-pair encodings that tiktoken encodes with; each definition has one of them.

- A .tiktoken file: a line per token, with the token in base64 and its rank. Nothing else, so a spec gives the rest.
- tokenizer.model of Llama 3: a .tiktoken file, with the pattern of GPT-4 and 256 special tokens after the others
  (meta-llama/llama-models, models/llama3/tokenizer.py).
- tekken.json of Mistral: special tokens first, then those tokens of `vocab` for which `default_vocab_size` leaves room
  (mistralai/mistral-common, tokens/tokenizers/tekken.py).
"""

from __future__ import annotations

import base64
import json
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenloom.tokenizers.base import END_OF_TEXT
from tokenloom.tokenizers.patterns import GPT_4

# The letters by which byte-level BPEs write bytes: printable bytes stand for themselves, the others, in order, for the
# characters 256, 257, ... (openai/gpt-2, src/encoder.py).
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
# Characters that stand for no byte become one that Latin-1 can't encode.
_LATIN_1 = dict.fromkeys(_OTHERS, 0x400) | {ord(letter): byte for byte, letter in LETTERS.items()}

RANKS, TEKKEN_JSON = "ranks.tiktoken", "tekken.json"
LLAMA_3, TEKKEN = "llama3", "tekken"
MAX_ID = 2**32 - 1
NAMED_FORMATS = (LLAMA_3, TEKKEN)  # names that imply a pattern and special tokens, or another format

_LLAMA_3_PLACES = {  # special tokens by position; numbered reserved tokens fill the others
    0: "begin_of_text",
    1: "end_of_text",
    4: "finetune_right_pad_id",
    5: "step_id",
    6: "start_header_id",
    7: "end_header_id",
    8: "eom_id",
    9: "eot_id",
    10: "python_tag",
    11: "image",
}
NUM_LLAMA_3_TOKENS, _NUM_LLAMA_3_SPECIAL = 128_000, 256
_TEKKEN_SPECIAL = (  # files up to version v7 list none
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_VERSIONS_WITHOUT_SPECIAL = ("v1", "v2", "v3", "v7")


@dataclass(frozen=True)
class BytePairs:
    """An encoding as its file describes it.

    `ranks` are the ids of ordinary tokens, `special_tokens` those of the others. `pattern` is None if the file doesn't
    have it; `eot` is the end-of-text token of the format.
    """

    ranks: dict[bytes, int]
    special_tokens: dict[str, int] = field(default_factory=dict)
    pattern: str | None = None
    eot: str = END_OF_TEXT


def bytes_of_letters(token: str) -> bytes:
    """Return the bytes that a token's letters stand for; raises ValueError if one stands for none."""
    return token.translate(_LATIN_1).encode("latin-1")


def named_format(definition: Mapping[str, Any]) -> str | None:
    """Return the name of NAMED_FORMATS that the definition of a file has; None if its name is only a label."""
    name = definition.get("name")
    explains = definition.get("pattern") or definition.get("special_tokens")
    return str(name) if name in NAMED_FORMATS and not explains else None


def file_name(definition: Mapping[str, Any]) -> str:
    """Return the name under which a version keeps the file of a definition."""
    return TEKKEN_JSON if named_format(definition) == TEKKEN else RANKS


def described(definition: Mapping[str, Any]) -> str:
    """Describe the file that a definition needs, for messages."""
    files = {LLAMA_3: "a tokenizer.model of Llama 3", TEKKEN: "Mistral's tekken.json"}
    return files.get(named_format(definition) or "", "a .tiktoken file")


def parse_file(definition: Mapping[str, Any], data: bytes) -> BytePairs:
    """Read the file of a definition.

    Raises ValueError if it is not of its format; the message says why, in plain words.
    """
    try:
        pairs = _parse(named_format(definition), data)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its entries are not those of this format") from error
    if any(bytes([byte]) not in pairs.ranks for byte in range(256)):  # tiktoken panics on a text with such a byte
        raise ValueError("some bytes are not tokens")
    if len(set(pairs.ranks.values())) != len(pairs.ranks):
        raise ValueError("two tokens have the same rank")
    return pairs


def _parse(name: str | None, data: bytes) -> BytePairs:
    if name == TEKKEN:
        return _parse_tekken(json.loads(data))
    ranks = dict(_token_and_rank(number, line) for number, line in enumerate(data.splitlines(), 1) if line)
    return _llama_3(ranks) if name == LLAMA_3 else BytePairs(ranks)


def ranks_file(ranks: Mapping[bytes, int]) -> bytes:
    """Return a .tiktoken file of tokens and their ranks."""
    return b"".join(b"%b %d\n" % (b2a_base64(token, newline=False), rank) for token, rank in ranks.items())


def _token_and_rank(number: int, line: bytes) -> tuple[bytes, int]:
    try:
        encoded, digits = line.split()
        token, rank = base64.b64decode(encoded, validate=True), int(digits)
    except ValueError as error:
        raise ValueError(f"line {number} is not a token in base64 and its rank") from error
    if not 0 <= rank <= MAX_ID:
        raise ValueError(f"the rank in line {number} is not in [0, {MAX_ID:,}]")
    return token, rank


def _llama_3(ranks: dict[bytes, int]) -> BytePairs:
    if sorted(ranks.values()) != list(range(NUM_LLAMA_3_TOKENS)):
        raise ValueError(f"it has {len(ranks):,} tokens, not the {NUM_LLAMA_3_TOKENS:,} of Llama 3")
    reserved = iter(range(_NUM_LLAMA_3_SPECIAL))
    names = (_LLAMA_3_PLACES.get(i) or f"reserved_special_token_{next(reserved)}" for i in range(_NUM_LLAMA_3_SPECIAL))
    special = {f"<|{name}|>": len(ranks) + i for i, name in enumerate(names)}
    return BytePairs(ranks, special, GPT_4, "<|end_of_text|>")


def _parse_tekken(content: Mapping[str, Any]) -> BytePairs:
    config = content["config"]
    num_special = config["default_num_special_tokens"]
    vocab = content["vocab"][: config["default_vocab_size"] - num_special]
    if [entry["rank"] for entry in vocab] != list(range(config["default_vocab_size"] - num_special)):
        raise ValueError("the ranks of its vocabulary are not 0, 1, 2, ... up to its size")
    tokens = {base64.b64decode(entry["token_bytes"], validate=True): num_special + entry["rank"] for entry in vocab}
    special = _tekken_special(content.get("special_tokens"), config["version"], num_special)
    return BytePairs(tokens, special, config["pattern"], "</s>")


def _tekken_special(listed: Sequence[Any] | None, version: str, num_special: int) -> dict[str, int]:
    """Return the special tokens of a tekken.json; ids without one get numbered fillers."""
    if listed is None and version not in _VERSIONS_WITHOUT_SPECIAL:
        raise ValueError(f"a file of version {version} must list its special tokens")
    names = dict(enumerate(_TEKKEN_SPECIAL)) if listed is None else {t["rank"]: t["token_str"] for t in listed}
    special = {names.get(i, f"<SPECIAL_{i}>"): i for i in range(num_special)}
    if len(special) < num_special or len(names) < len(listed or ()) or not names.keys() <= set(range(num_special)):
        raise ValueError(f"its special tokens are not different names with different ranks in [0, {num_special})")
    return special
