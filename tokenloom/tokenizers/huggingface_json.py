"""A tokenizer.json of the library tokenizers: BPE, Unigram, WordPiece or WordLevel.

Each document is encoded on its own, as ordinary text: the template, truncation and padding of the file are disabled,
and special tokens in a text are text. The library keeps every word with its offsets until a call ends.
Memory per byte of text (0.23.3, one document of 3 MB): 122 to 150 bytes for prose or code in any script, 207 for a
table of numbers, 295 for marks between letters; with WordPiece 106, 307 and 440. A document may therefore have 2 MB.
Speed on one core: 4.8 to 5.5 MB/s with short documents in runs of 0.25 MB (0.1 and 1 MB are equally fast), 2.2 to 2.9
with long ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.base import (
    END_OF_TEXT,
    PROBE,
    ChatTokens,
    Encoded,
    decode_between,
    encode_in_runs,
    fingerprint,
    library_errors,
    read_file,
    special_tokens_hint,
)
from tokenloom.tokenizers.huggingface_chat import chat_tokens_of, words_of
from tokenloom.tokenizers.model_files import CONFIG, fetch, fetch_if_there, read_json, token_text

FILE = "tokenizer.json"
_CONTRADICTION = "; give the token to put after each document as tokenizer.eot, or write both with save_pretrained"
# Every byte that occurs in UTF-8, in characters of one to four bytes; no trained alphabet contains them all.
_CODES = [*range(0x100), *range(0x100, 0x800, 0x40), 0x800, *range(0x1000, 0x10000, 0x1000)]
_EVERY_BYTE = "".join(map(chr, [*_CODES, 0x10000, 0x40000, 0x80000, 0xC0000, 0x100000]))


class HuggingFaceTokenizer:
    """A tokenizer.json that puts its end-of-text token after each document.

    Args:
        library: the tokenizer of the library, configured by `load`.
        name: shown in the manifest.
        boundary_ids: the ids before each document, and the id after it.
        data: content of the tokenizer.json.

    Raises TokenizerError if the library can't encode PROBE.
    """

    kind = "huggingface"
    max_text_bytes = 2_000_000
    backend = f"tokenizers {tokenizers.__version__}"

    def __init__(
        self, library: tokenizers.Tokenizer, name: str, boundary_ids: tuple[list[int], int], data: bytes
    ) -> None:
        self.name = name
        self.files = {FILE: data}
        self._library = library
        self.bos_ids, self.eot_id = boundary_ids
        self.eot = library.id_to_token(self.eot_id)
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values()) + 1
        self._spellings = {i: library.id_to_token(i) or "" for i in self.bos_ids} | {self.eot_id: END_OF_TEXT}
        definition = {"kind": self.kind, "file": sha256_of_bytes(data), "max_text_bytes": self.max_text_bytes}
        marked = {"eot": self.eot_id, "bos": self.bos_ids}
        self.fingerprint = fingerprint(definition | marked, self._encode_run(pa.array([PROBE]))[0].tolist())

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        return encode_in_runs(texts, self._encode_run, self, dtype)

    def _encode_run(self, texts: pa.Array) -> list[NDArray[Any]]:
        with library_errors(f"tokenizer {self.name}: a text can't be encoded"):
            encodings = self._library.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def chat_tokens(self) -> ChatTokens:
        """See ReferenceTokenizer.chat_tokens."""
        with library_errors(f"tokenizer {self.name}: its added tokens can't be read"):
            return chat_tokens_of(self._library, self.vocab_size)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        with library_errors(f"tokenizer {self.name}: ids can't be decoded"):
            decode_run = partial(self._library.decode, skip_special_tokens=False)
            return decode_between(np.asarray(ids), self._spellings, decode_run)


def load(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> HuggingFaceTokenizer:
    """Return the tokenizer; HuggingFaceTokenizer of the spec describes the fields of `definition`.

    Raises TokenizerError if the file is not valid, could lose text, or gives ids that change from run to run.
    """
    label, data = _read(definition, files)
    library = _parsed(data, label)
    with library_errors(f"tokenizer file {label}: a text can't be encoded"):
        _refuse_random_ids(library, label)
        _refuse_lost_text(library, label)
        boundary_ids = _boundary_ids(library, label, definition.get("eot"), definition.get("bos"))
    return HuggingFaceTokenizer(library, str(definition.get("name") or "huggingface"), boundary_ids, data)


def pinned_fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make a definition name the same tokenizer from now on.

    A definition may depend on more than the content of a tokenizer.json. A folder is replaced by its file, a branch by
    its commit, and an end of text that only tokenizer_config.json knows by `eot`. What comes after (jobs, versions,
    verification) needs neither network nor config.

    Raises TokenizerError if the file can't be had, or contradicts the config.
    """
    if definition.get("path"):
        folder = Path(definition["path"])
        if not folder.is_dir():
            return {}
        file, config = folder / FILE, folder / CONFIG
        if not file.is_file():
            next_step = "write it with save_pretrained, or use kind: sentencepiece for a tokenizer.model"
            raise TokenizerError(f"tokenizer folder {folder}: it has no {FILE}; {next_step}")
        return {"path": str(file)} | _eot(definition, file, config if config.is_file() else None)
    name = str(definition["name"])
    file, commit = fetch(name, FILE, definition.get("revision"))
    asks = definition.get("eot") is None
    return {"revision": commit} | _eot(definition, file, fetch_if_there(name, CONFIG, commit) if asks else None)


def _eot(definition: Mapping[str, Any], file: Path, config_path: Path | None) -> dict[str, str]:
    """Return `eot` if only the config determines it; raise TokenizerError if the files contradict each other.

    An `eot` of the spec wins, and the config is not read. One that tokenizer.json determines is not repeated, so that
    the file alone, a folder and the hub give the same tokenizer.
    """
    if config_path is None or definition.get("eot") is not None:
        return {}
    config, library = read_json(config_path), _parsed(read_regular(file), str(file))
    given = config.get("eos_token")
    eos = None if given in (None, "") else token_text(given, "eos_token", config_path)
    with library_errors(f"tokenizer file {config_path} contradicts {file}", _CONTRADICTION):
        _check_config(config, library)
        known = _end_of_text(library)
        if eos is not None and known not in (None, eos):
            raise ValueError(f"its eos_token is {eos!r}, there the end-of-text token is {known!r}")
    return {} if eos is None or known == eos else {"eot": eos}


def _check_config(config: Mapping[str, Any], library: tokenizers.Tokenizer) -> None:
    """Raise an error if transformers would change the ids of a tokenizer.json, as its config says."""
    there = {token.content for token in library.get_added_tokens_decoder().values()}
    for token in (config.get("added_tokens_decoder") or {}).values():
        if token["content"] not in there:
            raise ValueError(f"added_tokens_decoder has {token['content']!r}, which is not an added token there")
    prefix, own = config.get("add_prefix_space"), getattr(library.pre_tokenizer, "add_prefix_space", None)
    if None not in (prefix, own) and prefix != own:
        raise ValueError(f"add_prefix_space is {json.dumps(prefix)}, there it is {json.dumps(own)}")


def _end_of_text(library: tokenizers.Tokenizer) -> str | None:
    """Return the end-of-text token that a tokenizer.json determines; None if it determines none, or several."""
    special = _special(library)
    back = [library.id_to_token(i) for i in _template(library)[1]]
    ends = back if len(back) == 1 else [token for token in (END_OF_TEXT, "</s>") if token in special]
    return ends[0] if len(ends) == 1 else None


def _read(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> tuple[str, bytes]:
    """Return a label for messages and the content of the file: of a version, at a path, or on the hub."""
    if files is not None or definition.get("path") or not definition.get("name"):  # a version never asks the hub
        return read_file(definition, files, FILE)
    path, commit = fetch(str(definition["name"]), FILE, definition.get("revision"))
    return f"{FILE} of {definition['name']} at {commit}", read_regular(path)


def _parsed(data: bytes, label: str) -> tokenizers.Tokenizer:
    with library_errors(
        f"tokenizer file {label} is not a valid tokenizer.json",
        "; check tokenizer.kind, download it again, or save it again with Tokenizer.save",
    ):
        library = tokenizers.Tokenizer.from_buffer(data)
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    return library


def _refuse_random_ids(library: tokenizers.Tokenizer, label: str) -> None:
    """Raise TokenizerError if the ids of a text differ from run to run."""
    dropout, tokens = getattr(library.model, "dropout", None), library.get_added_tokens_decoder().values()
    found = {token.content for token in tokens if token.normalized and not token.special}
    if dropout or (library.normalizer and len(set(map(library.normalizer.normalize_str, found))) < len(found)):
        raise TokenizerError(
            f"tokenizer file {label}: its ids differ from run to run: it has a model.dropout, or added tokens that are "
            "the same after its normalizer; set dropout to null, or remove one of the tokens"
        )


def _refuse_lost_text(library: tokenizers.Tokenizer, label: str) -> None:
    """Raise TokenizerError if a BPE drops what is not in its alphabet; other models have an unknown token or raise."""
    model = library.model
    if not isinstance(model, models.BPE) or model.unk_token is not None:
        return
    characters = set().union(*words_of(library, _EVERY_BYTE))  # a normalizer may remove text: the file declares that
    lost = sorted(character for character in characters if not model.tokenize(character))
    if lost:
        raise TokenizerError(
            f"tokenizer file {label}: it drops characters that are not in its alphabet, such as {lost[-1]!a}; train it "
            "with an unknown token, byte fallback or all bytes"
        )


def _boundary_ids(library: tokenizers.Tokenizer, label: str, eot: str | None, bos: str | None) -> tuple[list[int], int]:
    """Return the ids before each document, and the end-of-text id.

    A given `eot` is used as it is. Otherwise, a template that puts one token after a text determines both (BERT: [CLS]
    $A [SEP], where [CLS] is bos). A template without such a token (Llama: <s> $A) does not determine them.
    """
    front, back = _template(library)
    special = _special(library)
    bos_ids = [] if bos is None else [_token_id(library, label, bos, special)]
    if eot is None and len(back) == 1:
        return front if bos is None else bos_ids, back[0]
    end = _end_of_text(library) if eot is None else eot
    if end is None:
        raise TokenizerError(
            f"tokenizer file {label}: its end-of-text token is unknown; give tokenizer.eot; "
            f"{special_tokens_hint(special)}"
        )
    return bos_ids, _token_id(library, label, end, special)


def _template(library: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the file's post-processor puts before and after one text."""
    encoding = library.encode("a 0")
    text_at = [i for i, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    if not text_at:
        return [], []
    return encoding.ids[: text_at[0]], encoding.ids[text_at[-1] + 1 :]


def _special(library: tokenizers.Tokenizer) -> list[str]:
    """Return the special tokens in the order of their ids."""
    return [token.content for _, token in sorted(library.get_added_tokens_decoder().items()) if token.special]


def _token_id(library: tokenizers.Tokenizer, label: str, token: str, special: list[str]) -> int:
    token_id = library.token_to_id(token)
    if token_id is None:
        raise TokenizerError(
            f"tokenizer file {label}: {token!r} is not one of its tokens; {special_tokens_hint(special, token)}"
        )
    return token_id
