"""The files of a model: its tokenizer.json, config and chat template, on the Hugging Face Hub or beside a local file.

The hub is asked which commit a branch or tag names; a file of a commit is fetched once. Without an answer,
huggingface_hub takes the commit that it saw last. Here that is an error unless HF_HUB_OFFLINE asks for it, because a
build would silently use an old tokenizer.

The chat template and the special tokens that templates know by name are those that transformers 5 takes: a
chat_template.jinja wins over the tokenizer_config.json; of several named templates, `default` is taken. A plan reads
them once, and they are part of a version's identity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tokenloom.errors import TokenizerError, message_of, named_message_of
from tokenloom.storage.stores.local_files import read_regular

CONFIG, TEMPLATE_FILE, _TOKENS_FILE = "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SECONDS = 30


def fetch(name: str, file: str, revision: str | None) -> tuple[Path, str]:
    """Fetch a file of a model into the cache of huggingface_hub; return its path and the commit that it belongs to.

    Args:
        name: the name of the model: org/model.
        file: the name of the file, in no folder of the model.
        revision: branch, tag or commit; None for main.

    Raises TokenizerError if model, revision or file don't exist, or the hub refuses them or does not answer.
    """
    revision = revision or "main"
    with _hub_errors(name, file, revision):
        path = _fetch(name, file, revision)
    return path, path.parent.name


def fetch_if_there(name: str, file: str, commit: str) -> Path | None:
    """Fetch a file of a commit; None if there is none, or HF_HUB_OFFLINE is set and the cache lacks it.

    Raises TokenizerError as fetch.
    """
    from huggingface_hub import is_offline_mode
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError

    with _hub_errors(name, file, commit):
        try:
            return _fetch(name, file, commit)
        except RemoteEntryNotFoundError:
            return None
        except LocalEntryNotFoundError:
            if not is_offline_mode():
                raise
            return None


def _fetch(name: str, file: str, revision: str) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, hf_hub_url, is_offline_mode
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not (_COMMIT.match(revision) or is_offline_mode()):
        HfApi().get_hf_file_metadata(url=hf_hub_url(name, file, revision=revision), timeout=_SECONDS)
    disable_progress_bars()  # they would mix with our display
    return Path(hf_hub_download(name, file, revision=revision, etag_timeout=_SECONDS))


@contextmanager
def _hub_errors(name: str, file: str, revision: str) -> Iterator[None]:
    """Translate the errors of huggingface_hub in the block to TokenizerError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise TokenizerError(f"a tokenizer of the hub needs {error.name!r}: pip install 'tokenloom[build]'") from error
    except Exception as error:  # also of its HTTP library, whose errors have another base class
        raise TokenizerError(f"tokenizer {name}, revision {revision}: {_problem(error, name, file)}") from error


def _problem(error: Exception, name: str, file: str) -> str:
    """Return the problem and the next step."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why it was not fetched
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{_offline(name, file)}, or give the file as path"
    if isinstance(error, errors.EntryNotFoundError):
        return (
            f"the model has no {file}; save one with its tokenizer's save_pretrained and give that folder as path, or "
            "download its tokenizer.model and use kind: sentencepiece"
        )
    return (
        f"{file} can't be fetched from the Hugging Face Hub: {named_message_of(error)[:500]}; check "
        "its name and revision, and the network; for a private or restricted model, ask for access on its page, and "
        "log in with `hf auth login`, or set HF_TOKEN; or download the file and give it as path"
    )


def _offline(name: str, file: str) -> str:
    return (
        f"{file} is not in the cache of huggingface_hub, and HF_HUB_OFFLINE is set; unset it, or run "
        f"`hf download {name} {file}` where there is a network"
    )


# ---- what the files hold


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
    path = _file_beside(definition, CONFIG)
    config = tokens = read_json(path) if path else {}
    if "added_tokens_decoder" not in config and (older := _file_beside(definition, _TOKENS_FILE)):
        tokens = config | read_json(older)  # written before transformers 4.34
    template_file = _file_beside(definition, TEMPLATE_FILE)
    template = _text(template_file) if template_file else _template_of(config, path)
    named = {name: token_text(tokens[name], name, path) for name in SPECIAL_TOKENS if tokens.get(name)}
    return ChatFiles(template, named)


def _file_beside(definition: Mapping[str, Any], name: str) -> Path | None:
    """Return the path of a file that comes with a tokenizer's file; None if there is none."""
    if definition.get("path"):
        path = Path(definition["path"]).with_name(name)
        return path if path.is_file() else None
    if definition["kind"] != "huggingface":
        return None
    fetched = fetch_if_there(definition["name"], name, definition["revision"])
    if fetched is None and name == CONFIG:
        from huggingface_hub import is_offline_mode

        if is_offline_mode():  # whether the model has special tokens is not known: a template would lack them
            raise TokenizerError(f"tokenizer {definition['name']}: {_offline(definition['name'], CONFIG)}")
    return fetched


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that comes with a tokenizer.json; raises TokenizerError if it is not an object."""
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
    except (UnicodeDecodeError, OSError) as error:
        raise TokenizerError(f"tokenizer file {path}: it can't be read: {message_of(error)}; repair it") from error


def _template_of(config: Mapping[str, Any], path: Path | None) -> str | None:
    """Return the template in a tokenizer_config.json: a text, or the default of several named ones."""
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(item, dict) for item in template):
        named = {item.get("name"): item.get("template") for item in template}
        template = named.get("default")
        if template is None:
            raise TokenizerError(
                f"tokenizer file {path}: none of its chat templates is named default ({', '.join(map(str, named))}); "
                "write the text of one of them to a file, and give that as chat.template"
            )
    if not isinstance(template, str | None):
        raise TokenizerError(f"tokenizer file {path}: its chat_template is not text; give chat.template: FILE")
    return template


def token_text(value: Any, name: str, path: Path | None) -> str:
    """Return the text of a token in a config: a text, or an object with its content; raises TokenizerError."""
    token = value.get("content") if isinstance(value, dict) else value
    if isinstance(token, str):
        return token
    instead = "tokenizer.eot" if name == "eos_token" else f"chat.arguments: {{{name}: ...}}"
    raise TokenizerError(
        f"tokenizer file {path}: its {name} is {json.dumps(value)[:100]}, not one token; write it again with "
        f"save_pretrained, or give the token as {instead}"
    )
