"""Tokenizers of `save_pretrained` and of the Hugging Face Hub: tokenizer.json and the files beside it.

`pinned_fields` is where a definition may depend on more than the content of tokenizer.json. It replaces that by fields
of the definition: a folder by its file, a branch by its commit, and an end of text that only tokenizer_config.json
knows by `eot`. What comes after (jobs, versions, verification) needs neither network nor config. A config that makes
transformers encode a text differently from tokenizer.json is refused.

`chat_files` finds the chat template and the special tokens that templates know by name as transformers 5 does: a
chat_template.jinja wins over the tokenizer_config.json; of several named templates, `default` is taken. A plan reads
them once, and they are part of a version's identity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenloom.errors import TokenizerError, message_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.hub import CONFIG, fetch, fetch_if_there
from tokenloom.tokenizers.huggingface_json import FILE, end_of_text

TEMPLATE_FILE = "chat_template.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKENS_FILE = "special_tokens_map.json"


class _Config(NamedTuple):
    """The fields of a tokenizer_config.json that concern the ids of a text."""

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

    An `eot` of the spec wins, and the config is not read. One that tokenizer.json determines is not repeated, so that
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
    """Read the fields of a tokenizer_config.json that are used.

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


class ChatFiles(NamedTuple):
    """The template that comes with a tokenizer, None if there is none, and its special tokens by name."""

    template: str | None
    special_tokens: dict[str, str]


def chat_files(definition: Mapping[str, Any]) -> ChatFiles:
    """Read the chat template and special tokens beside a tokenizer's file, or of a model on the hub.

    Args:
        definition: see load_tokenizer; with its pinned_fields.

    Raises TokenizerError if a file can't be read, or is not what transformers writes.
    """
    find = _finder(definition)
    path = find(CONFIG)
    config = tokens = _object(path)
    if "added_tokens_decoder" not in config:  # written before transformers 4.34
        tokens = config | _object(find(_TOKENS_FILE))
    template_file = find(TEMPLATE_FILE)
    template = _text(template_file) if template_file else _template_of(config, str(path))
    named = {name: _token(tokens[name], name, str(path)) for name in SPECIAL_TOKENS if tokens.get(name)}
    return ChatFiles(template, named)


def _finder(definition: Mapping[str, Any]) -> Callable[[str], Path | None]:
    """Return the function that returns the path of a file that comes with a tokenizer, None if there is none."""
    if definition.get("path"):
        folder = Path(definition["path"]).parent

        def beside(name: str) -> Path | None:
            return path if (path := folder / name).is_file() else None

        return beside
    if definition["kind"] == "huggingface":
        model, commit = definition["name"], definition["revision"]
        if fetch_if_there(model, CONFIG, commit) is None:
            _refuse_unknown(model)
        return lambda name: fetch_if_there(model, name, commit)
    return lambda _: None


def _refuse_unknown(model: str) -> None:
    """Raise TokenizerError if the hub was not asked whether a model has special tokens: a template would lack them."""
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        raise TokenizerError(
            f"tokenizer {model}: {CONFIG} is not in the cache of huggingface_hub, and HF_HUB_OFFLINE is set; unset it, "
            f"or run `hf download {model}` where there is a network"
        )


def _object(path: Path | None) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file."""
    if path is None:
        return {}
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"tokenizer file {path}: it is not valid JSON ({message_of(error)}); repair it") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"tokenizer file {path}: it is not a JSON object; write it again with save_pretrained")
    return value


def _text(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"tokenizer file {path}: not UTF-8 at byte {error.start}; repair it") from error
    except OSError as error:
        raise TokenizerError(f"tokenizer file {path}: it can't be read: {message_of(error)}; check the file") from error


def _template_of(config: Mapping[str, Any], place: str) -> str | None:
    """Return the template in a tokenizer_config.json: a text, or the default of several named ones."""
    found = config.get("chat_template")
    if isinstance(found, list) and all(isinstance(item, dict) for item in found):
        named = {item.get("name"): item.get("template") for item in found}
        found = named.get("default")
        if found is None:
            raise TokenizerError(
                f"tokenizer file {place}: none of its chat templates is named default ({', '.join(map(str, named))}); "
                "write the text of one of them to a file, and give that as chat.template"
            )
    if not isinstance(found, str | None):
        raise TokenizerError(f"tokenizer file {place}: its chat_template is not text; give chat.template: FILE")
    return found


def _token(value: Any, name: str, place: str) -> str:
    token = value.get("content") if isinstance(value, dict) else value
    if not isinstance(token, str):
        raise TokenizerError(
            f"tokenizer file {place}: its {name} is not a token; write it again with save_pretrained, or give it as "
            f"chat.arguments: {{{name}: ...}}"
        )
    return token
