"""Recognize a file of another kind of tokenizer by its content, for the message that names the right kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tokenloom.errors import TokenizerError


class _Format(NamedTuple):
    """A format: the fixed name of such a file, what it is called, the next step for PATH, and what looks like it."""

    file: str
    described: str
    next_step: str
    is_like: Callable[[bytes], object]


def _is_json_with(*keys: bytes) -> Callable[[bytes], bool]:
    return lambda data: re.match(rb"\s*\{", data) is not None and all(b'"%b"' % key in data for key in keys)


_FORMATS = (
    _Format(
        "ranks.tiktoken",
        "a .tiktoken file, like Llama 3's tokenizer.model",
        "give {kind: tiktoken, name: llama3, ranks: PATH}",
        re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n").match,
    ),
    _Format(
        "tekken.json",
        "Mistral's tekken.json",
        "give {kind: tiktoken, name: tekken, ranks: PATH}",
        _is_json_with(b"default_num_special_tokens"),
    ),
    _Format(
        "vocab.bpe",
        "GPT-2's vocab.bpe",
        "give {kind: tiktoken, ranks: PATH, encoder: encoder.json} with the encoder.json beside it",
        re.compile(rb"#version").match,
    ),
    _Format(
        "tokenizer.json",
        "a tokenizer.json of Hugging Face",
        "give {kind: huggingface, path: PATH}",
        _is_json_with(b"added_tokens", b"pre_tokenizer"),
    ),
    _Format(
        "encoder.json",
        "an encoder.json or vocab.json, which has only ids",
        "give the tokenizer.json beside it, or {kind: tiktoken, ranks: vocab.bpe, encoder: PATH} with its vocab.bpe",
        re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d+\s*,').match,
    ),
    _Format(
        "tokenizer_config.json",
        "a tokenizer_config.json",
        "give the tokenizer.json beside it, or their folder: {kind: huggingface, path: FOLDER}",
        lambda data: _is_json_with(b"tokenizer_class")(data) and b'"pre_tokenizer"' not in data,
    ),
    _Format(
        "tokenizer.model",
        "a SentencePiece model",
        "give {kind: sentencepiece, path: PATH}",
        re.compile(rb"\n.\n.<", re.DOTALL).match,  # in protobuf, a first piece such as <unk>
    ),
    _Format(
        "",
        "a Git LFS pointer",
        "fetch the file itself with `git lfs pull`, or download it",
        re.compile(rb"version https://git-lfs").match,
    ),
)


def refuse_other_format(data: bytes, path: str, file: str, wanted: str) -> None:
    """Raise TokenizerError, with the next step, if a file looks like one of another format.

    Args:
        data: content of the file.
        path: of the file, or its name for messages.
        file: the fixed name of the format that it should have.
        wanted: what that format is called.
    """
    found = next((each for each in _FORMATS if each.file != file and each.is_like(data)), None)
    if found:
        next_step = found.next_step.replace("PATH", path)
        raise TokenizerError(f"tokenizer file {path} is {found.described}, not {wanted}; {next_step}")
