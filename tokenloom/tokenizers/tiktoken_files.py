"""The files of byte-pair encodings that tiktoken encodes with.

- A .tiktoken file: a line per token, with the token in base64 and its rank. Nothing else, so a spec gives the rest.
- vocab.bpe and encoder.json of GPT-2: merges by letters that stand for bytes, and ids.
- tokenizer.model of Llama 3: a .tiktoken file, with the pattern of GPT-4 and 256 special tokens after the others
  (meta-llama/llama-models, models/llama3/tokenizer.py).
- tekken.json of Mistral: special tokens first, then those tokens of `vocab` for which `default_vocab_size` leaves room
  (mistralai/mistral-common, tokens/tokenizers/tekken.py).
"""

from __future__ import annotations

import base64
import json
from binascii import b2a_base64
from collections.abc import Mapping
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

RANKS, VOCAB_BPE, ENCODER, TEKKEN_JSON = "ranks.tiktoken", "vocab.bpe", "encoder.json", "tekken.json"
_DESCRIBED = {
    RANKS: "a .tiktoken file",
    VOCAB_BPE: "GPT-2's vocab.bpe",
    ENCODER: "its encoder.json",
    TEKKEN_JSON: "Mistral's tekken.json",
}
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
    """An encoding as its files describe it.

    `ranks` are the ids of ordinary tokens, `special_tokens` those of the others. `pattern` is None if the files don't
    say it; `eot` is the end-of-text token that the format has.
    """

    ranks: dict[bytes, int]
    special_tokens: dict[str, int] = field(default_factory=dict)
    pattern: str | None = None
    eot: str = END_OF_TEXT


def bytes_of_letters(token: str) -> bytes:
    """Return the bytes that a token's letters stand for; raises ValueError if one stands for none."""
    return token.translate(_LATIN_1).encode("latin-1")


def named_format(definition: Mapping[str, Any]) -> str | None:
    """Return the name of NAMED_FORMATS that a definition of files has, None if its name is only a label."""
    explains = any(definition.get(field) for field in ("encoder", "pattern", "special_tokens"))
    name = definition.get("name")
    return str(name) if name in NAMED_FORMATS and not explains else None


def file_names(definition: Mapping[str, Any]) -> dict[str, str]:
    """Return the fixed name of each file of a definition, and the path that the definition gives for it."""
    if definition.get("encoder"):
        return {VOCAB_BPE: definition["ranks"], ENCODER: definition["encoder"]}
    return {TEKKEN_JSON if named_format(definition) == TEKKEN else RANKS: definition["ranks"]}


def described(definition: Mapping[str, Any], file: str) -> str:
    """Describe the file of a definition with this fixed name, for messages."""
    if file == RANKS and named_format(definition) == LLAMA_3:
        return "a tokenizer.model of Llama 3"
    return _DESCRIBED[file]


def parse_files(definition: Mapping[str, Any], files: Mapping[str, bytes]) -> BytePairs:
    """Return what files, by their fixed names, say of an encoding.

    Raises ValueError if they are not of their format; its message says why, in plain words.
    """
    try:
        pairs = _parse(definition, files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("its entries are not those of this format") from error
    if any(bytes([byte]) not in pairs.ranks for byte in range(256)):  # tiktoken panics on a text with such a byte
        raise ValueError("some bytes are not tokens")
    if len(set(pairs.ranks.values())) != len(pairs.ranks):
        raise ValueError("two tokens have the same rank")
    return pairs


def _parse(definition: Mapping[str, Any], files: Mapping[str, bytes]) -> BytePairs:
    if ENCODER in files:
        return _parse_gpt2(files[VOCAB_BPE], files[ENCODER])
    if TEKKEN_JSON in files:
        return _parse_tekken(_parse_json(files[TEKKEN_JSON], "it"))
    ranks = _parse_ranks(files[RANKS])
    return _llama_3(ranks) if named_format(definition) == LLAMA_3 else BytePairs(ranks)


def ranks_file(ranks: Mapping[bytes, int]) -> bytes:
    """Return a .tiktoken file of tokens and their ranks."""
    lines = [b"%b %d\n" % (b2a_base64(token, newline=False), rank) for token, rank in ranks.items()]
    return b"".join(lines)


def _parse_ranks(data: bytes) -> dict[bytes, int]:
    return dict(_token_and_rank(number, line) for number, line in enumerate(data.splitlines(), 1) if line)


def _token_and_rank(number: int, line: bytes) -> tuple[bytes, int]:
    try:
        encoded, digits = line.split()
        token, rank = base64.b64decode(encoded, validate=True), int(digits)
    except ValueError as error:
        raise ValueError(f"line {number} is not a token in base64 and its rank") from error
    if not 0 <= rank <= MAX_ID:
        raise ValueError(f"the rank in line {number} is not in [0, {MAX_ID:,}]")
    return token, rank


def _parse_json(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not valid JSON") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not a JSON object")
    return content


def _llama_3(ranks: dict[bytes, int]) -> BytePairs:
    if sorted(ranks.values()) != list(range(NUM_LLAMA_3_TOKENS)):
        raise ValueError(f"it has {len(ranks):,} tokens, not the {NUM_LLAMA_3_TOKENS:,} of Llama 3")
    reserved = iter(range(_NUM_LLAMA_3_SPECIAL))
    names = (_LLAMA_3_PLACES.get(i) or f"reserved_special_token_{next(reserved)}" for i in range(_NUM_LLAMA_3_SPECIAL))
    special = {f"<|{name}|>": len(ranks) + i for i, name in enumerate(names)}
    return BytePairs(ranks, special, GPT_4, "<|end_of_text|>")


def _parse_tekken(content: Mapping[str, Any]) -> BytePairs:
    config: dict[str, Any] = _value(content, "config", dict)
    num_special: int = _value(config, "default_num_special_tokens", int)
    num_ordinary: int = _value(config, "default_vocab_size", int) - num_special
    pattern: str = _value(config, "pattern", str)
    vocab: list[Any] = _value(content, "vocab", list)[:num_ordinary]
    if [entry["rank"] for entry in vocab] != list(range(num_ordinary)):
        raise ValueError(f"the ranks of its vocabulary are not 0, 1, 2, ..., {num_ordinary - 1}")
    tokens = {_token(entry["token_bytes"]): num_special + entry["rank"] for entry in vocab}
    return BytePairs(tokens, _tekken_special(content, num_special), pattern, "</s>")


def _value(content: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a value of a tekken.json; raise ValueError if there is none of this type."""
    if not isinstance(content.get(name), kind):
        raise ValueError(f"it has no {name!r}")
    return content[name]


def _token(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"its token {text!r} is not base64") from error


def _tekken_special(content: Mapping[str, Any], num_special: int) -> dict[str, int]:
    """Return the special tokens of a tekken.json; at places without one are fillers, numbered."""
    listed, version = content.get("special_tokens"), _value(content["config"], "version", str)
    if listed is None and version not in _VERSIONS_WITHOUT_SPECIAL:
        raise ValueError(f"a file of version {version} must list its special tokens")
    places = dict(enumerate(_TEKKEN_SPECIAL)) if listed is None else {t["rank"]: t["token_str"] for t in listed}
    if places and not 0 <= min(places) <= max(places) < num_special:
        raise ValueError(f"the ranks of its special tokens are not all in [0, {num_special})")
    names = [places.get(i, f"<SPECIAL_{i}>") for i in range(num_special)]
    if len(set(names)) < num_special or len(places) < len(listed or ()):
        raise ValueError("two special tokens have the same name or rank")
    return {name: i for i, name in enumerate(names)}


def merged_ranks(vocab_bpe: bytes) -> dict[bytes, int]:
    """Return the ranks of a vocab.bpe; raises ValueError if it is none."""
    ranks = {bytes([byte]): i for i, byte in enumerate([*_PRINTABLE, *_OTHERS])}
    try:
        for line in vocab_bpe.decode().splitlines()[1:]:
            if line:
                left, right = line.split(" ")
                ranks[bytes_of_letters(left + right)] = len(ranks)
    except ValueError as error:
        raise ValueError("the first has a line that is not two tokens") from error
    return ranks


def _parse_gpt2(vocab_bpe: bytes, encoder_json: bytes) -> BytePairs:
    ranks = merged_ranks(vocab_bpe)
    encoder = _parse_json(encoder_json, "the second")
    special = {token: i for token, i in encoder.items() if token in ("<|endoftext|>", "<|startoftext|>")}
    if {bytes_of_letters(token): i for token, i in encoder.items() if token not in special} != ranks:
        raise ValueError("their ids differ")
    return BytePairs(ranks, special)
