"""The chat template that comes with a tokenizer, and the special tokens that templates know by name.

Both are found as transformers 5 finds them: a chat_template.jinja wins over the tokenizer_config.json; of several named
templates, `default` is taken. A plan reads them once, and what they say is part of a version's identity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenloom.errors import TokenizerError, message_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.hub import CONFIG

TEMPLATE_FILE = "chat_template.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKENS_FILE = "special_tokens_map.json"


class ChatFiles(NamedTuple):
    """What comes with a tokenizer: its template, None if it has none, and its special tokens by name."""

    template: str | None
    special_tokens: dict[str, str]


def chat_files(definition: Mapping[str, Any]) -> ChatFiles:
    """Return what the files beside a tokenizer's file, or those of a model on the hub, say about conversations.

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
        from tokenloom.tokenizers.hub import fetch_if_there

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
