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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tokenloom.errors import TokenizerError, named_message_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.base import library_errors

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
    with _hub_errors(name, file, revision or "main"):
        path = _fetch(name, file, revision or "main")
    return path, path.parent.name


def fetch_if_there(name: str, file: str, commit: str) -> Path | None:
    """Fetch a file of a commit; None if there is none, or HF_HUB_OFFLINE is set and the cache lacks it.

    Raises TokenizerError as fetch.
    """
    from huggingface_hub import is_offline_mode
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError

    not_there = [RemoteEntryNotFoundError, *([LocalEntryNotFoundError] if is_offline_mode() else [])]
    with _hub_errors(name, file, commit), suppress(*not_there):
        return _fetch(name, file, commit)
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
        from huggingface_hub.errors import LocalEntryNotFoundError

        reason = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None  # why it was not fetched
        raise TokenizerError(
            f"tokenizer {name}, revision {revision}: {file} can't be fetched from the Hugging Face Hub: "
            f"{named_message_of(reason or error)[:500]}; check its name and revision, the network and HF_HUB_OFFLINE; "
            "for a private or restricted model, set HF_TOKEN; or download the file and give it as path (with kind: "
            "sentencepiece for a tokenizer.model)"
        ) from error


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
    from huggingface_hub import is_offline_mode

    model = definition["name"]
    fetched = fetch_if_there(model, name, definition["revision"])
    if fetched is None and name == CONFIG and is_offline_mode():  # a template would lack the special tokens
        raise TokenizerError(f"tokenizer {model}: {CONFIG} is not in the cache, and HF_HUB_OFFLINE is set; unset it")
    return fetched


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that comes with a tokenizer.json; raises TokenizerError if it is not an object."""
    with library_errors(f"tokenizer file {path} is not a JSON object", "; download it again"):
        value: Any = json.loads(_text(path))
        return dict(value.items())


def _text(path: Path) -> str:
    with library_errors(f"tokenizer file {path}: it can't be read", "; download it again"):
        return read_regular(path).decode()


def _template_of(config: Mapping[str, Any], path: Path | None) -> str | None:
    """Return the template in a tokenizer_config.json: a text, or the default of several named ones."""
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(item, dict) for item in template):
        named = {item.get("name"): item.get("template") for item in template}
        template = named.get("default", named)
    if not isinstance(template, str | None):
        raise TokenizerError(f"tokenizer file {path}: its chat_template is not text; give chat.template: FILE")
    return template


def token_text(value: Any, name: str, path: Path | None) -> str:
    """Return the text of a token in a config: a text, or an object with its content; raises TokenizerError."""
    token = value.get("content") if isinstance(value, dict) else value
    if isinstance(token, str):
        return token
    instead = "tokenizer.eot" if name == "eos_token" else f"chat.arguments: {{{name}: ...}}"
    shown = json.dumps(value)[:100]
    raise TokenizerError(f"tokenizer file {path}: its {name} is {shown}, not one token; give the token as {instead}")
