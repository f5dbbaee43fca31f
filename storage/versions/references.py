"""References: STORE/DATASET@TAG_OR_VERSION, split at the last '@' after the last '/'; `@latest` is the default."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.formats.manifest import CATALOGUE, NAME_PATTERN, VERSION_PATTERN, Manifest
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.published import is_published, load_manifest
from tokenloom.wording import counted, first_of, redacted

_HEX_DIGITS = re.compile(r"[0-9a-f]{1,64}\Z")
_BEGINNING = re.compile(r"[0-9a-f]{4,15}\Z")  # of a version


class Reference(NamedTuple):
    """A dataset in a store, and a tag or version of it, or the beginning of a version."""

    store: str
    dataset: str
    name: str

    def __str__(self) -> str:
        return f"{self.store}/{self.dataset}@{self.name}"


def parse_reference(text: str) -> Reference:
    """Return the parts of a reference; raises SpecError if the text is not one.

    Slashes at the end, as a shell completes the name of a folder, are ignored.

    Example: "s3://corpora/store/news" -> Reference("s3://corpora/store", "news", "latest")
    """
    store, slash, rest = text.rstrip("/").rpartition("/")
    dataset, at, name = rest.partition("@")
    name = name if at else "latest"
    store = store or "/" if slash else "."
    is_named = NAME_PATTERN.match(dataset) and (NAME_PATTERN.match(name) or _HEX_DIGITS.match(name))
    if not is_named or store.endswith(":/"):
        raise SpecError(
            f"{redacted(text)!r} is not a reference: write STORE/DATASET, and @TAG or @VERSION after it if you like"
        )
    return Reference(store, dataset, name)


def names_version(text: str) -> bool:
    """Return whether a reference says which tag or version it means: STORE/DATASET does not."""
    return "@" in text.rstrip("/").rpartition("/")[2]


def parse_dataset(text: str) -> Store:
    """Return the folder of the dataset that STORE/DATASET names.

    Raises SpecError if the text names a version too, StoreError if it is not such a name.
    """
    reference = parse_reference(text)
    if names_version(text):
        raise SpecError(f"{reference}: name the dataset alone: {reference.store}/{reference.dataset}")
    return dataset_store(reference.store, reference.dataset)


def dataset_store(store: str, dataset: str) -> Store:
    """Return the folder of a dataset in the store at `store`: a local path, or the URL of an object store.

    Raises StoreError for a bad name, and for a URL that contains a secret.
    """
    if not NAME_PATTERN.match(dataset):
        raise StoreError(
            f"{dataset!r} is not a valid name for a dataset: a-z, then up to 63 of a-z 0-9 . _ -, "
            f"not 16 hexadecimal digits or {CATALOGUE}"
        )
    folder = store if store.endswith("://") else store.rstrip("/")
    return open_store(f"{folder}/{dataset}")


def resolve(reference: Reference) -> tuple[Store, Manifest]:
    """Return the dataset's store and the manifest of the version that `reference` names.

    A name without a tag is taken as the beginning of a version, of at least 4 digits.

    Raises:
        StoreError: the dataset, tag or version does not exist, or several versions begin so.
        FormatError: tag log or manifest are damaged.
    """
    store, version = dataset_store(reference.store, reference.dataset), reference.name
    if not VERSION_PATTERN.match(version):
        from tokenloom.storage.versions.tags import newest  # a job that names a version reads no tag

        entry = newest(store, reference.name)
        version = entry.version if entry else begun_version(store, reference)
    return store, load_manifest(store, version)


def begun_version(store: Store, reference: Reference) -> str:
    """Return the version whose beginning a reference names in place of a tag; raise StoreError unless there is one."""
    names = store.names("versions") if _BEGINNING.match(reference.name) else []
    begun = [name for name in names if name.startswith(reference.name) and is_published(store, name)]
    if not begun:
        raise StoreError(why_missing(store, reference))
    if len(begun) > 1:
        raise StoreError(
            f"{reference}: {counted(len(begun), 'version')} begin so: {first_of(begun)}; write more digits"
        )
    return begun[0]


def why_missing(store: Store, reference: Reference) -> str:
    """Return a message: `reference` names no version, and what lists those that can be named instead."""
    if not store.exists(""):
        listing = f"`tokenloom ls {reference.store}` lists those that are there"
        return f"{reference}: no dataset {reference.dataset!r} in {reference.store}; {listing}"
    from tokenloom.storage.versions.tags import entry_numbers  # only the message reads other tags

    tags = [tag for tag in store.names("tags") if entry_numbers(store, tag)]
    kind = "version" if VERSION_PATTERN.match(reference.name) else "tag"
    return (
        f"{reference}: no {kind} {reference.name!r}; tags: {', '.join(tags) or 'none'}; `tokenloom ls {store.root}` "
        "lists the versions, of 16 hexadecimal digits each; a beginning of 4 or more that no other has is enough"
    )
