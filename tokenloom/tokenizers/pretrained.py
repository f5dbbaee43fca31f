"""Tokenizers as `save_pretrained` writes them and the Hugging Face Hub has them: tokenizer.json and its config.

`pinned_fields` is where a definition may depend on more than the content of tokenizer.json. It replaces that by fields
of the definition: a folder by its file, a branch by its commit, and an end of text that only tokenizer_config.json
knows by `eot`. What comes after (jobs, versions, verification) needs neither network nor config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenloom.errors import TokenizerError, message_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.hub import fetch, fetch_if_there
from tokenloom.tokenizers.huggingface_json import FILE, end_of_text

CONFIG = "tokenizer_config.json"


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


def _eot(definition: Mapping[str, Any], file: Path, config: Path | None) -> dict[str, str]:
    """Return `eot` if only the config determines it; raise TokenizerError if the files name different tokens.

    An `eot` of the spec wins. One that tokenizer.json determines is not repeated, so that the file alone, a folder and
    the hub give the same tokenizer.
    """
    named = None if config is None or definition.get("eot") is not None else _eos_token(config)
    if named is None:
        return {}
    known = end_of_text(read_regular(file), str(file))
    if known is None:
        return {"eot": named}
    if known != named:
        raise TokenizerError(
            f"tokenizer file {file}: its end-of-text token is {known!r}, but {CONFIG} beside it has the eos_token "
            f"{named!r}; give the one to put after each document as tokenizer.eot"
        )
    return {}


def _eos_token(config: Path) -> str | None:
    """Return the eos_token of a tokenizer_config.json: a text, or an object with its content.

    Raises TokenizerError if the file can't be read, or its eos_token is something else, such as a list.
    """
    try:
        given = json.loads(read_regular(config)).get("eos_token")
        token = given["content"] if isinstance(given, dict) else given
    except (ValueError, KeyError, AttributeError, OSError) as error:
        raise TokenizerError(
            f"tokenizer file {config}: it can't be read as a {CONFIG} ({message_of(error)}); repair it, or give "
            "tokenizer.eot"
        ) from error
    if not isinstance(token, str | None):
        raise TokenizerError(
            f"tokenizer file {config}: its eos_token is {json.dumps(given)[:100]}, not one token; give the one to put "
            "after each document as tokenizer.eot"
        )
    return token or None
