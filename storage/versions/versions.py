"""Where things lie in a store: datasets, versions, references; a version is visible once its manifest is.

A reference is STORE/DATASET@TAG_OR_VERSION, split at the last '@' after the last '/'; `@latest` if left out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import INPUTS, NAME, read_manifest
from tokenloom.storage.formats.names import NAME_PATTERN, VERSION_PATTERN
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.remote_errors import redacted
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags

_INPUT_TEXTS = ("source", "path", "fingerprint")


@dataclass(frozen=True)
class Reference:
    """A dataset in a store, and a tag or version of it."""

    store: str
    dataset: str
    name: str

    def __str__(self) -> str:
        return f"{self.store}/{self.dataset}@{self.name}"


def parse_reference(text: str) -> Reference:
    """Split a reference; raises StoreError if it is none.

    Example: "s3://corpora/store/news" -> Reference("s3://corpora/store", "news", "latest")
    """
    store, slash, rest = text.rpartition("/")
    dataset, at, name = rest.partition("@")
    name = name if at else "latest"
    store = store or "/" if slash else "."
    is_named = NAME_PATTERN.match(dataset) and (NAME_PATTERN.match(name) or VERSION_PATTERN.match(name))
    if not is_named or store.endswith(":/"):
        raise StoreError(
            f"{redacted(text)!r} is no reference: write STORE/DATASET, @TAG or @VERSION behind it if you like"
        )
    return Reference(store, dataset, name)


def dataset_store(store: str, dataset: str) -> Store:
    """Return the folder of a dataset in the store at `store`: a local path, or a URL that fsspec knows.

    Raises StoreError for a bad name, and for a URL that carries a secret.
    """
    if not NAME_PATTERN.match(dataset):
        raise StoreError(f"{dataset!r} is no dataset's name: a-z, then up to 63 of a-z 0-9 . _ -, no 16 hex digits")
    folder = store if store.endswith("://") else store.rstrip("/")
    return open_store(f"{folder}/{dataset}")


def version_path(version: str, name: str = "") -> str:
    """Return the path of a version, or of the file `name` in it, relative to the dataset's folder."""
    return f"versions/{version}/{name}" if name else f"versions/{version}"


def is_published(store: Store, version: str) -> bool:
    """Return whether `version` is complete and visible."""
    return store.exists(version_path(version, NAME))


def published_versions(store: Store) -> list[str]:
    """Return the names of all visible versions, sorted by name."""
    return [v for v in store.names("versions") if VERSION_PATTERN.match(v) and is_published(store, v)]


def load_manifest(store: Store, version: str) -> dict[str, Any]:
    """Return the checked manifest of a version; raises StoreError if it is not there, FormatError if damaged."""
    path = version_path(version, NAME)
    try:
        manifest = read_manifest(store.read(path), store.place(path))
    except FileNotFoundError as error:
        raise StoreError(f"{store.root}: no version {version}; `tokenloom ls` names those there are") from error
    if manifest["version"] != version:
        raise FormatError(f"{store.place(path)}: it is the manifest of {manifest['version']}, not of {version}")
    return manifest


def resolve(reference: Reference) -> tuple[Store, dict[str, Any]]:
    """Return the dataset's store and the manifest of the version that `reference` names.

    Raises:
        StoreError: there is no such dataset, tag or version.
        FormatError: tag log or manifest are damaged.
    """
    store = dataset_store(reference.store, reference.dataset)
    if VERSION_PATTERN.match(reference.name):
        return store, load_manifest(store, reference.name)
    entry = tags.newest(store, reference.name)
    if entry is None:
        raise StoreError(f"{reference}: {why_missing(store, reference)}")
    return store, load_manifest(store, entry.version)


def why_missing(store: Store, reference: Reference) -> str:
    """Return why `reference` names no version: what is not there, and what is."""
    if not store.exists(""):
        return f"no dataset {reference.dataset!r} in {reference.store}"
    if known := [name for name in store.names("tags") if tags.newest_number(store, name)]:
        return f"no tag {reference.name!r}; tags: {', '.join(known)}"
    if versions := published_versions(store):
        return f"no tag {reference.name!r}, nor any other; name a version after the @: {', '.join(versions)}"
    names = sorted(filter(NAME_PATTERN.match, store.names("")))
    if datasets := [name for name in names if {"versions", "tags"} & set(store.names(name))]:
        return f"that is a store; name one of its datasets: {', '.join(datasets)}"
    return f"no tag {reference.name!r}; tags: none yet: no build has finished"


def check_listed(header: ShardHeader, entry: dict[str, Any], place: str) -> None:
    """Raise FormatError if a header is not that of the shard that a manifest lists.

    Args:
        header: of the shard at `place`.
        entry: the shard's row in the manifest.
        place: its path, for the message.
    """
    split, _, number = entry["name"].removesuffix(".tok").partition("/")
    counts = header.file_bytes, header.num_tokens, header.num_documents
    if (*counts, header.info.get("split"), header.info.get("shard_index")) != (
        *(entry[name] for name in ("bytes", "tokens", "documents")),
        split,
        int(number),
    ):
        raise FormatError(f"{place}: it is not the shard that the manifest lists; restore it")


def read_listed(store: Store, manifest: dict[str, Any], name: str) -> bytes:
    """Return a small file that a manifest lists under `files`; raises FormatError if it is missing or damaged."""
    path = version_path(manifest["version"], name)
    if name not in manifest["files"]:
        raise FormatError(f"{store.place(version_path(manifest['version'], NAME))}: it does not list {name}")
    try:
        data = store.read(path)
    except FileNotFoundError as error:
        raise FormatError(f"{store.place(path)}: missing from a published version; restore it") from error
    if hashlib.sha256(data).hexdigest() != manifest["files"][name]:
        raise FormatError(f"{store.place(path)}: its checksum does not match; the file is damaged; restore it")
    return data


def read_inputs(store: Store, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the inputs of a version: {"source", "path", "fingerprint", "bytes"} each; errors as read_listed."""
    data = read_listed(store, manifest, INPUTS)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    inputs = value.get("inputs") if isinstance(value, dict) else None
    if not isinstance(inputs, list) or not all(map(_is_input, inputs)):
        place = store.place(version_path(manifest["version"], INPUTS))
        raise FormatError(f"{place}: it holds no list of inputs; its writer was wrong; restore it")
    return inputs


def _is_input(item: Any) -> bool:
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in _INPUT_TEXTS):
        return False
    num_bytes = item.get("bytes")
    return type(num_bytes) is int and 0 <= num_bytes < 2**63


def check_lengths(store: Store, manifest: dict[str, Any]) -> None:
    """Raise FormatError if a file that a manifest lists is missing, or a shard has another length."""
    wanted: dict[str, int | None] = dict.fromkeys(manifest["files"])
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            wanted |= {shard["name"]: shard["bytes"], shard["name"].removesuffix(".tok") + ".docs": None}
    version = version_path(manifest["version"])
    folders = {name.rpartition("/")[0] for name in wanted}
    lengths = {folder: store.lengths(f"{version}/{folder}".rstrip("/")) for folder in folders}
    for name, num_bytes in wanted.items():
        folder, _, file = name.rpartition("/")
        found = lengths[folder].get(file)
        if found is None or found != (found if num_bytes is None else num_bytes):
            place = store.place(version)
            raise FormatError(
                f"{place}/{name}: missing from a published version, or cut short; restore it, or delete "
                f"{place}/{NAME} and build again, which makes the same bytes"
            )
