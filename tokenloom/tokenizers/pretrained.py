"""Tokenizers as `save_pretrained` writes them and the Hugging Face Hub has them: tokenizer.json and its config.

`pinned_fields` is where a definition may depend on more than the content of tokenizer.json. It replaces that by fields
of the definition: a folder by its file, a branch by its commit, and an end of text that only tokenizer_config.json
knows by `eot`. What comes after (jobs, versions, verification) needs neither network nor config. A config that makes
transformers encode a text differently from tokenizer.json is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenloom.errors import TokenizerError, message_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.hub import CONFIG, fetch, fetch_if_there
from tokenloom.tokenizers.huggingface_json import FILE, end_of_text


class _Config(NamedTuple):
    """What a tokenizer_config.json says about the ids of a text."""

    eos_token: str | None = None
    added_tokens: tuple[str, ...] = ()
    add_prefix_space: bool | None = None


def pinned_fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make a definition of kind huggingface name the same tokenizer from now on.

    Raises TokenizerError if its file can't be had, or the two files name different end-of-text tokens.
    """
    if definition.get("path"):
        folder = Path(definition["path"])
        if not folder.is_dir():
            return {}
        file, config = folder / FILE, folder / CONFIG
        if not file.is_file():
            raise TokenizerError(
                f"tokenizer folder {folder}: it has no {FILE}; save one with save_pretrained of a fast tokenizer, or, "
                "for a tokenizer.model, use kind: sentencepiece"
            )
        return {"path": str(file)} | _eot(definition, file, config if config.is_file() else None)
    name = str(definition["name"])
    file, commit = fetch(name, FILE, definition.get("revision"))
    asks = definition.get("eot") is None
    return {"revision": commit} | _eot(definition, file, fetch_if_there(name, CONFIG, commit) if asks else None)


def _eot(definition: Mapping[str, Any], file: Path, path: Path | None) -> dict[str, str]:
    """Return `eot` if only the config determines it; raise TokenizerError if the files contradict each other.

    An `eot` of the spec wins, and nobody reads the config. One that tokenizer.json determines is not repeated, so that
    the file alone, a folder and the hub give the same tokenizer.
    """
    if path is None or definition.get("eot") is not None:
        return {}
    config = _read_config(path)
    if config == _Config():
        return {}
    content = read_regular(file)
    known = end_of_text(content, str(file))
    if differs := _difference(config, json.loads(content)):
        raise TokenizerError(
            f"tokenizer file {path}: it contradicts {file}: {differs}; load them with transformers, and write both "
            "again with save_pretrained"
        )
    if config.eos_token is None or known == config.eos_token:
        return {}
    if known is None:
        return {"eot": config.eos_token}
    raise TokenizerError(
        f"tokenizer file {file}: its end-of-text token is {known!r}, but {CONFIG} beside it has the eos_token "
        f"{config.eos_token!r}; give the one to put after each document as tokenizer.eot"
    )


def _difference(config: _Config, tokenizer: dict[str, Any]) -> str | None:
    """Return what transformers would change in a tokenizer.json, as its config says; None for nothing."""
    there = {token["content"] for token in tokenizer.get("added_tokens") or ()}
    if missing := next((token for token in config.added_tokens if token not in there), None):
        return f"added_tokens_decoder has {missing!r}, which is not an added token there"
    prefix = (tokenizer.get("pre_tokenizer") or {}).get("add_prefix_space")
    if None not in (config.add_prefix_space, prefix) and config.add_prefix_space != prefix:
        return f"add_prefix_space is {json.dumps(config.add_prefix_space)}, there it is {json.dumps(prefix)}"
    return None


def _read_config(path: Path) -> _Config:
    """Return what is used of a tokenizer_config.json.

    Raises TokenizerError if the file can't be read, or its eos_token is neither a text nor an object with its content.
    """
    try:
        given = json.loads(read_regular(path))
        eos = given.get("eos_token")
        token = eos["content"] if isinstance(eos, dict) else eos
        added = tuple(str(token["content"]) for token in (given.get("added_tokens_decoder") or {}).values())
    except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
        raise TokenizerError(
            f"tokenizer file {path}: it can't be read as a {CONFIG} ({message_of(error)}); repair it, or give "
            "tokenizer.eot"
        ) from error
    if not isinstance(token, str | None):
        raise TokenizerError(
            f"tokenizer file {path}: its eos_token is {json.dumps(eos)[:100]}, not one token; give the one to put "
            "after each document as tokenizer.eot"
        )
    return _Config(token or None, added, given.get("add_prefix_space"))
