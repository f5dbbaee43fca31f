"""References, versions and tags in a store, and the spec in a manifest."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import local_store, make_spec
from tests.builders.manifests import empty_manifest
from tests.builders.memory_store import MemoryStore
from tests.counts import count
from tokenloom.errors import FormatError, SpecError, StoreError
from tokenloom.storage.formats.manifest import read_manifest
from tokenloom.storage.formats.records import sign
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves
from tokenloom.storage.versions.build_record import VersionSpec, version_spec
from tokenloom.storage.versions.published import (
    is_published,
    published_versions,
    read_inputs,
    version_path,
)
from tokenloom.storage.versions.references import Reference, dataset_store, parse_reference, resolve

PROPERTY = settings(deadline=None, database=None, max_examples=count(100, 3000))
A, B = "a" * 16, "0123456789abcdef"
LONGEST = "a" * 64
NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,63}", fullmatch=True).filter(lambda name: len(name) != 16)
STORES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
        lambda text: not text.endswith((":/", ":"))
    ),
    st.sampled_from(["s3://corpora/store", ".", "/", "./a@b", "/data/user@host/store", "../up"]),
)


@pytest.mark.parametrize(
    ("text", "store", "dataset", "name"),
    [
        ("store/news", "store", "news", "latest"),
        ("news", ".", "news", "latest"),
        ("store/news/", "store", "news", "latest"),
        ("store/news@prod//", "store", "news", "prod"),
        ("/news", "/", "news", "latest"),
        ("s3://corpora/news", "s3://corpora", "news", "latest"),
        ("gs://b/a@b/news@prod", "gs://b/a@b", "news", "prod"),
        ("/home/me@host/store/news@v1.2_x-y", "/home/me@host/store", "news", "v1.2_x-y"),
        ("store/news@../prod", "store/news@..", "prod", "latest"),
        ("a b/ż/news", "a b/ż", "news", "latest"),
        (f"s/{LONGEST}@{LONGEST}", "s", LONGEST, LONGEST),
        ("s/abcdef012345678@abcdef01234567890", "s", "abcdef012345678", "abcdef01234567890"),
    ],
)
def test_a_reference_is_split_at_the_last_at_sign_after_the_last_slash(
    text: str, store: str, dataset: str, name: str
) -> None:
    assert parse_reference(text) == Reference(store, dataset, name)


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "@latest", "store/@latest", "store/News", "store/1news", "store/.news", "store/.."),
        "store/news@",  # an empty variable after the @, which must not mean latest
        *("store/news@Latest", "store/news@..", "store/news@prod@latest", "store/ne ws"),
        "store/news@0123456789abcdefg",  # a tag starts with a letter
        *("store/news\n", "store/news@prod\n", "store/news@0123456789abcdef\n"),
        *(f"store/{LONGEST}a", f"store/news@{LONGEST}a", "s3://news", "s3://news@latest"),
        "store/abcdef0123456789",  # 16 hex digits name a version
    ],
)
def test_bad_reference_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not a reference: write STORE/DATASET"):
        parse_reference(text)


@PROPERTY
@given(STORES, NAMES, NAMES)
def test_a_printed_reference_parses_to_the_same_reference(store: str, dataset: str, name: str) -> None:
    reference = Reference(store, dataset, name)
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize("dataset", ["", "..", "a/b", "News", "news\n", LONGEST + "a", "abcdef0123456789"])
def test_bad_name_of_a_dataset_is_refused(dataset: str) -> None:
    with pytest.raises(StoreError, match="is not a valid name for a dataset"):
        local_store("store", dataset)


def publish(store: Path, dataset: str, version: str, *names: str, **fields: Any) -> None:
    """Write a manifest and set the tags `names` to it."""
    folder = local_store(str(store), dataset)
    value = empty_manifest(dataset, version) | fields
    folder.create(version_path(version, "manifest.json"), sign(value))
    for name in names:
        tag_moves.move(folder, name, version, tag_moves.newest_number(folder, name), "tag")


def test_tag_and_version_name_the_same_manifest(tmp_path: Path) -> None:
    publish(tmp_path, "news", A, "latest", "prod")
    publish(tmp_path, "news", B, "latest")
    for name, version in [("latest", B), ("prod", A), (A, A), (B, B)]:
        store, manifest = resolve(Reference(str(tmp_path), "news", name))
        assert store.root == tmp_path / "news"
        assert manifest.version == version


def test_a_beginning_of_four_digits_names_the_only_version_that_has_it(tmp_path: Path) -> None:
    first, second = "abcd1234" + "0" * 8, "abcd5678" + "0" * 8
    publish(tmp_path, "news", first, "latest")
    publish(tmp_path, "news", second, "abcd12")
    (tmp_path / "news/versions/abcd56ff").mkdir()  # no version is published there
    for name, version in [("abcd1", first), (first[:15], first), ("abcd56", second), ("abcd12", second)]:
        assert resolve(parse_reference(f"{tmp_path}/news@{name}"))[1].version == version  # a tag wins
    with pytest.raises(StoreError, match=f"news@abcd: 2 versions begin so: {first}, {second}; write more digits"):
        resolve(parse_reference(f"{tmp_path}/news@abcd"))
    with pytest.raises(StoreError, match="no tag 'abc'; tags: abcd12, latest"):
        resolve(parse_reference(f"{tmp_path}/news@abc"))


def test_a_version_is_visible_once_its_manifest_is(tmp_path: Path) -> None:
    store = local_store(str(tmp_path), "news")
    store.replace(version_path(A, "train/000000.tok"), b"")
    assert not is_published(store, A)
    assert published_versions(store) == []
    publish(tmp_path, "news", A)
    publish(tmp_path, "news", B)
    store.replace("versions/notes/manifest.json", b"")
    assert is_published(store, A)
    assert published_versions(store) == [B, A]


def test_a_missing_dataset_tag_or_version_is_named_with_what_lists_the_others(tmp_path: Path) -> None:
    publish(tmp_path, "news", A, "latest", "prod")
    wanted = {
        "newz": f"no dataset 'newz' in {tmp_path}; `tokenloom ls {tmp_path}` lists those that are there",
        "news@test": f"no tag 'test'; tags: latest, prod; `tokenloom ls {tmp_path}/news` lists the versions, of 16 hex",
        "news@abc": f"no tag 'abc'; tags: latest, prod; `tokenloom ls {tmp_path}/news` lists the versions",
    }
    with pytest.raises(StoreError, match="is not a valid name for a dataset"):
        dataset_store(str(tmp_path), "index.html")
    with pytest.raises(StoreError, match=f"no version {B}; `tokenloom ls`"):
        resolve(Reference(str(tmp_path), "news", B))
    for name, message in wanted.items():
        reference = parse_reference(f"{tmp_path}/{name}")
        with pytest.raises(StoreError, match=f"^{re.escape(f'{reference}: {message}')}"):
            resolve(reference)


def test_a_listed_file_that_is_damaged_or_missing_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.replace("versions/0123456789abcdef/inputs.json", b'{"inputs":[]}')
    checksum = hashlib.sha256(b'{"inputs":[]}').hexdigest()
    value = empty_manifest("data", "0123456789abcdef") | {"files": {"inputs.json": checksum}}
    manifest = read_manifest(sign(value), "manifest.json")
    assert read_inputs(store, manifest) == []
    store.replace("versions/0123456789abcdef/inputs.json", b'{"inputs":[0]}')
    with pytest.raises(FormatError, match=r"inputs\.json: its checksum does not match"):
        read_inputs(store, manifest)
    store.remove("versions/0123456789abcdef/inputs.json")
    with pytest.raises(FormatError, match=r"inputs\.json: missing from a published version"):
        read_inputs(store, manifest)


def read_spec(spec: dict[str, Any]) -> VersionSpec:
    """Return what is read of a version's spec."""
    value = empty_manifest("data", A)
    value["spec"] |= make_spec("store", [{"kind": "jsonl", "path": "/in/a.jsonl"}]).identity() | spec
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
    spec = make_spec("store", [{"kind": "jsonl", "path": "/in/a.jsonl"}], **fields)
    found = read_spec(spec.identity())
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
        read_spec(spec)
