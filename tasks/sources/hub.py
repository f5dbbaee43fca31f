"""Commits of the Hugging Face Hub.

A branch moves, so the plan of a build chooses a commit of each dataset and path, and all processes read that commit.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from tokenloom.errors import InputError, named_message_of
from tokenloom.tasks.sources.files import HUB_STEP, waiting_if_told

_OF_COMMIT = re.compile(r"hf://[^@]+@([0-9a-f]{40})/")
_OF_REPOSITORY = re.compile(
    r"(?P<repository>hf://(?!buckets/)((?P<type>dataset|space|model)s/)?(?P<name>[^/@]+/[^/@]+))"  # buckets: no commits
    r"(@(?P<revision>refs/[^/]+/[^/]+|[^/]+))?/"
)
_SECONDS = 30


def commit_of(url: str) -> str | None:
    """Return the commit in a URL of the Hub, whose files never change; None if the URL has none."""
    match = _OF_COMMIT.match(url)
    return match[1] if match else None


def at_commit(url: str, commit: str) -> str:
    """Return the URL of the same files of the Hub at a commit."""
    return _OF_REPOSITORY.sub(rf"\g<repository>@{commit}/", url, count=1)


def pinned(url: str) -> str:
    """Return a URL or pattern of the Hub at the commit that its revision names now; any other URL as it is.

    Raises InputError if the Hub can't be reached, or has no such repository or revision.
    """
    match = _OF_REPOSITORY.match(url)
    if match is None or commit_of(url):
        return url
    revision = unquote(match["revision"] or "main")
    return at_commit(url, current_commit(match["name"], revision, match["type"] or "model"))


def current_commit(name: str, revision: str | None, repository_type: str = "dataset") -> str:
    """Return the commit that a revision of a repository names now; raises InputError if the Hub does not answer."""
    from huggingface_hub import HfApi  # late: few builds read from the Hub

    def ask() -> str:
        info = HfApi().repo_info(name, revision=revision, repo_type=repository_type, timeout=_SECONDS)
        return str(info.sha)

    try:
        return waiting_if_told(ask)
    except Exception as error:  # also of its HTTP library, whose errors have another base class
        raise InputError(
            f"{name}, revision {revision or 'main'}: its commit can't be read from the Hugging Face Hub: "
            f"{named_message_of(error)[:500]}; check name, revision and HF_TOKEN; {HUB_STEP}"
        ) from error
