"""Helpers for tests of builds that must fail: the error, its message, and what is left in the store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec, stored_texts
from tokenloom.errors import InputError, TokenloomError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store

TEXTS = [f"text {i} " + "ab" * (i % 17) for i in range(60)]
NEXT_STEP = re.compile(
    r"[Rr]epair |rename |leave_out|correct |[Ss]et (text|messages|layout):|leave (it |the file )?out|[Cc]heck "
    r"|build again|recreate |write .+/\*|choose another|cut the|free space|give this user|raise "
)


def assert_nothing_visible(spec: BuildSpec) -> None:
    """Assert that the store contains no version, manifest, tag or temporary file."""
    store = dataset_store(spec.store, spec.dataset)
    assert published_versions(store) == []
    assert not list(Path(spec.store).rglob("manifest.json"))
    assert store.names("tags") == []
    assert store.names("work/tmp") == []


def assert_refused(spec: BuildSpec, *parts: str, error: type[TokenloomError] = InputError) -> str:
    """Assert that a build fails with `parts` and a next step, and leaves nothing visible; return the message."""
    with pytest.raises(error) as caught:
        build(spec)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    assert NEXT_STEP.search(message), message
    assert_nothing_visible(spec)
    return message


def assert_builds(spec: BuildSpec, texts: list[str]) -> None:
    """Assert that a build contains exactly these documents, all distinct."""
    result = build(spec)
    assert result.published
    assert stored_texts(spec, result.version) == sorted(texts)


def spec_of(path: Path, kind: str = "parquet", **fields: Any) -> BuildSpec:
    """Return a spec of one source, with the store next to it."""
    return make_spec(path.parent / "store", [{"kind": kind, "path": str(path)}], **fields)
