"""The spec in a manifest is read as the build's spec was; one that no build wrote is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.datasets import make_spec
from tests.builders.manifests import empty_manifest
from tests.builders.memory_store import MemoryStore
from tokenloom.errors import FormatError
from tokenloom.storage.formats.manifest import read_manifest
from tokenloom.storage.formats.records import sign
from tokenloom.storage.versions.published import VersionSpec, version_spec

_SOURCE = {"kind": "jsonl", "path": "/in/a.jsonl"}


def read(spec: dict[str, Any]) -> VersionSpec:
    """Return what is read of a version's spec."""
    value = empty_manifest("data", "a" * 16)
    value["spec"] |= make_spec("store", [_SOURCE]).identity() | spec
    return version_spec(MemoryStore(), read_manifest(sign(value), "manifest"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "seed": 2**53 - 1,
            "splits": {"test": 0.25, "train": 0.75},
            "documents": {"deduplicate": False, "min_chars": 5, "max_chars": 9},
            "limit": 3,
        },
    ],
)
def test_it_has_the_values_of_the_spec_of_the_build(fields: dict[str, Any]) -> None:
    spec = make_spec("store", [_SOURCE], **fields)
    found = read(spec.identity())
    assert (found.seed, found.limit) == (spec.seed, spec.limit)
    assert list(found.splits) == spec.split_shares()
    for name in ("deduplicate", "min_chars", "max_chars", "exclude", "transform"):
        assert getattr(found.documents, name) == getattr(spec.documents, name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"seed": "0"}, "spec.seed must be an integer of 64 bits"),
        ({"documents": {"min_chars": 1}}, "spec.documents.deduplicate must be given"),
        ({"documents": {"min_chars": 1, "deduplicate": 1}}, "spec.documents.deduplicate must be true or false"),
        ({"splits": [["test", 1]]}, "spec.splits must be shares with that of train"),
        ({"splits": [["train", 2]]}, r"spec.splits\[0\].share must be in \[0, 1\]"),
        ({"limit": -0.5}, "spec.limit must be an integer of 64 bits"),
    ],
)
def test_a_spec_that_no_build_wrote_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=rf"versions/a{{16}}/manifest\.json: {message}; restore it"):
        read(spec)
