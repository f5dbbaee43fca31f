"""Files of models on the Hugging Face Hub, through the cache of huggingface_hub.

The hub is asked which commit a branch or tag names; a file of a commit is fetched once. Without an answer,
huggingface_hub takes the commit that it saw last. Here that is an error unless HF_HUB_OFFLINE asks for it, because a
build would silently use an old tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenloom.errors import TokenizerError, named_message_of

CONFIG = "tokenizer_config.json"  # beside a tokenizer.json
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SECONDS = 30


def fetch(name: str, file: str, revision: str | None) -> tuple[Path, str]:
    """Return the path of a model's file in the cache of huggingface_hub, and the commit that it belongs to.

    Args:
        name: of the model: org/model.
        file: the name of the file, in no folder of the model.
        revision: branch, tag or commit; None for main.

    Raises TokenizerError if model, revision or file don't exist, or the hub refuses them or does not answer.
    """
    revision = revision or "main"
    with _hub_errors(name, file, revision):
        path = _fetch(name, file, revision)
    return path, path.parent.name


def fetch_if_there(name: str, file: str, commit: str) -> Path | None:
    """Return the path of a file of a commit; None if there is none, or HF_HUB_OFFLINE is set and the cache lacks it.

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

    if not (_COMMIT.match(revision) or is_offline_mode()):
        HfApi().get_hf_file_metadata(url=hf_hub_url(name, file, revision=revision), timeout=_SECONDS)
    with _without_bars():
        return Path(hf_hub_download(name, file, revision=revision, etag_timeout=_SECONDS))


@contextmanager
def _without_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    has_bars = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if has_bars:
            enable_progress_bars()


@contextmanager
def _hub_errors(name: str, file: str, revision: str) -> Iterator[None]:
    """Translate the errors of huggingface_hub in the block to TokenizerError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise TokenizerError(f"a tokenizer of the hub needs {error.name!r}: pip install 'tokenloom[build]'") from error
    except Exception as error:  # also of its HTTP library, whose errors have another base class
        problem = _problem(error, name, file)
        raise TokenizerError(f"tokenizer {name}, revision {revision}: {problem}") from error


def _problem(error: Exception, name: str, file: str) -> str:
    """Return the problem and the next step."""
    from huggingface_hub import errors

    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # why it was not fetched
    if isinstance(error, errors.GatedRepoError):
        return (
            f"access to the model is restricted; ask for it on the model's page of the Hugging Face Hub, and {log_in}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such model on the Hugging Face Hub, or a private one; check the name, or {log_in}"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the model has no such branch, tag or commit; check revision"
    if isinstance(error, errors.EntryNotFoundError):
        return (
            f"the model has no {file}; save one with its tokenizer's save_pretrained and give that folder as path, or "
            "download its tokenizer.model and use kind: sentencepiece"
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return (
            f"{file} is not in the cache of huggingface_hub, and HF_HUB_OFFLINE is set; unset it, or run "
            f"`hf download {name} {file}` where there is a network, or give the file as path"
        )
    return (
        f"{file} can't be fetched from the Hugging Face Hub: {named_message_of(error)[:500]}; check "
        "the network, or download the file and give it as path"
    )
