"""The manifest's format check and the name of a version."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders.manifests import NO_FILES, empty_manifest
from tokenloom.errors import FormatError
from tokenloom.storage.formats.manifest import read_manifest, version_name
from tokenloom.storage.formats.records import canonical_json, sign

IDENTITY = {"sources": [{"kind": "text", "name": "text-0"}], "tokenizer": {"kind": "byte"}}
_SHARD = {"bytes": 1, "tokens": 1, "documents": 1, "sha256": "0" * 64} | NO_FILES
INPUTS = [("text-0", "a.txt", "xxh3_128:01"), ("text-0", "b.txt", "xxh3_128:02")]


def test_golden_version_name_never_changes() -> None:
    # The same inputs must find the version that an earlier release published; another name is a new format.
    assert version_name(IDENTITY, INPUTS, "f" * 64) == "bfd42ba73066cbbd"


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_manifest_of_another_format_is_refused_by_name(version: Any) -> None:
    data = sign({"format_version": version, "dataset": "news"})
    with pytest.raises(FormatError, match=f"v/manifest.json: manifest format {version}; .* update tokenloom"):
        read_manifest(data, "v/manifest.json")


@pytest.mark.parametrize(
    "name",
    [
        *("train/0.tok", "train/1\n", "../1", "train/../0", "/train/0"),
        *("test/0", "train/", "t1rain/000000", "train/00.t9ok"),
    ],
)
def test_shards_with_other_names_are_refused(name: str) -> None:
    value = empty_manifest("news", "a" * 16)
    shard = _SHARD | {"name": f"{name}.tok"}
    value["splits"]["train"] = {"tokens": 2, "documents": 2, "duplicates": 0}
    value["splits"]["train"]["shards"] = [shard, shard | {"name": "train/000001.tok"}]
    with pytest.raises(FormatError, match=r"splits(\.train\.shards\[0\]\.name)? must be .*SPLIT/NNNNNN.tok"):
        read_manifest(sign(value), "v/manifest.json")
    shard["name"] = "train/000000.tok"
    assert sign(read_manifest(sign(value), "v/manifest.json")) == sign(value)


def _refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_manifest(sign(empty_manifest("news", "a" * 16) | changes), "v/manifest.json")


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "a/b/c", ".", "..", "tokenizer/..", "a\n", "tokenizer/", ""])
def test_files_that_would_leave_the_version_are_refused(name: str) -> None:
    _refused({"files": {name: "0" * 64}}, "files must be files by their names in the version")


@pytest.mark.parametrize("field", ["path", "ranks"])
def test_a_tokenizer_at_a_path_that_the_manifest_names_is_refused(field: str) -> None:
    spec = {"tokenizer": {"kind": "huggingface", field: "/etc/passwd"}}
    _refused({"spec": spec}, f"spec.tokenizer.{field} must be absent: a version names no path")


@pytest.mark.parametrize("name", ["", "../a", "a/b/c", "/a", "a/", "a/..", "a b", "a\n", "é", "a" * 97])
def test_a_tokenizer_with_a_name_that_no_model_has_is_refused(name: str) -> None:
    value = empty_manifest("news", "a" * 16)
    for known in ("gpt2", "EleutherAI/gpt-neox-20b", "01-ai/Yi-6B", "_a/b"):
        value["tokenizer"]["name"] = known
        assert read_manifest(sign(value), "v/manifest.json").tokenizer.name == known
    _refused({"tokenizer": value["tokenizer"] | {"name": name}}, r"tokenizer\.name must be a name")


def test_a_manifest_is_written_with_the_bytes_it_was_read_from() -> None:
    value = empty_manifest("news", "a" * 16) | {"files": {"inputs.json": "b" * 64}}
    shard = {"name": "train/000000.tok", "bytes": 5, "tokens": 1, "documents": 1, "sha256": "0" * 64}
    files = {".docs": {"bytes": 7, "sha256": "1" * 64}, ".blocks": {"bytes": 8, "sha256": "2" * 64}}
    shard |= {"first_key": "0" * 16, "last_key": "f" * 16, "files": files}
    empty = shard | {"name": "train/000001.tok", "tokens": 0, "documents": 0, "first_key": None, "last_key": None}
    value["splits"] = {"train": {"tokens": 1, "documents": 1, "duplicates": 0, "shards": [shard, empty]}}
    value["rows"] = {"read": 1, "kept": 1, "duplicates": 0, "filtered": 0, "excluded": 0, "quarantined": 0}
    manifest = read_manifest(sign(value), "manifest.json")
    assert sign(manifest) == sign(value)
    entries = list(manifest.splits["train"].shards)
    assert entries[1].first_key is None
    assert entries[0].listed["train/000000.docs"] == {"bytes": 7, "sha256": "1" * 64}
    assert canonical_json(entries) == canonical_json(manifest.splits["train"].shards)


def test_a_manifest_of_many_shards_is_checked_in_about_the_time_of_its_json() -> None:
    # 100,000 shards take 0.6 s; decoded one by one, or with a rule called for each value, they took 1 s and more.
    shards = [_SHARD | {"name": f"train/{i:06d}.tok"} for i in range(5000)]
    split = {"tokens": 5000, "documents": 5000, "duplicates": 0, "shards": shards}
    data = sign(empty_manifest("news", "a" * 16) | {"splits": {"train": split}})
    assert _seconds(lambda: read_manifest(data, "manifest.json")) < 3 * _seconds(lambda: json.loads(data))


def _seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of the fastest of seven runs."""
    times = []
    for _ in range(7):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
