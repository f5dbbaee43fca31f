"""Published versions: the paths of their files, and the small files; a version is visible once its manifest is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.errors import FormatError, StoreError, VersionDeleted
from tokenloom.storage.formats.manifest import (
    INPUTS,
    MANIFEST,
    VERSION_PATTERN,
    InputEntry,
    Inputs,
    Manifest,
    ShardEntry,
    read_manifest,
)
from tokenloom.storage.formats.records import decode_record, parse_json, sha256_of_bytes
from tokenloom.storage.stores.store import Store

if TYPE_CHECKING:
    from tokenloom.storage.formats.shard import ShardHeader

REPORTS = "reports"
_REQUESTS_AT_ONCE = 16  # on a cold disk, too
TOKENIZER = "tokenizer/"  # the names of a version's tokenizer files begin with it


def version_path(version: str, name: str = "") -> str:
    """Return the path of a version, or of the file `name` in it, relative to the dataset's folder."""
    return f"versions/{version}/{name}" if name else f"versions/{version}"


def report_path(version: str) -> str:
    """Return the path of the report of a version, relative to the dataset's folder."""
    return f"{REPORTS}/{version}.html"


def is_dataset(store: Store) -> bool:
    """Return whether a folder is that of a dataset, of which something was built or published."""
    return not {"versions", "tags", "work"}.isdisjoint(store.names(""))


def is_published(store: Store, version: str) -> bool:
    """Return whether `version` is complete and visible."""
    return store.status(version_path(version, MANIFEST)) is not None


def published_versions(store: Store) -> list[str]:
    """Return the names of all visible versions, the newest first by the store's clock."""
    from concurrent.futures import ThreadPoolExecutor  # a reader lists no versions

    names = list(filter(VERSION_PATTERN.match, store.names("versions")))
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        files = threads.map(store.status, [version_path(name, MANIFEST) for name in names])
    published = [(-file.modified, name) for name, file in zip(names, files, strict=True) if file]
    return [name for _, name in sorted(published)]


def refuse_deleted(store: Store, version: str) -> None:
    """Raise VersionDeleted if a version that was there has no manifest any more; nothing if the store can't say."""
    try:
        is_there = is_published(store, version)
    except StoreError:  # the caller's own error says more
        return
    if not is_there:
        raise VersionDeleted(
            f"{store.root}@{version}: the version was deleted, as `tokenloom gc` does with versions that no tag names; "
            f"tag what you train on: `tokenloom tag {store.root}@VERSION NAME`. A build of the same inputs makes the "
            "same bytes again"
        )


def load_manifest(store: Store, version: str) -> Manifest:
    """Return the manifest of a version; raises StoreError if it is missing, FormatError if it is damaged."""
    path = version_path(version, MANIFEST)
    try:
        return read_manifest(store.read(path), store.place(path), version)
    except FileNotFoundError as error:
        raise StoreError(f"{store.root}: no version {version}; `tokenloom ls` lists the versions") from error


def check_split(reference: str, manifest: Manifest, split: str) -> None:
    """Raise StoreError if the version that `reference` names has no such split."""
    if split not in manifest.splits:
        raise StoreError(f"{reference}: no split {split!r}; it has: {', '.join(manifest.splits)}")


def check_header(header: ShardHeader, entry: ShardEntry, place: str) -> None:
    """Raise FormatError if a header is not that of the shard that a manifest lists.

    Args:
        header: the header of the shard at `place`.
        entry: the shard in the manifest.
        place: its path, for the message.
    """
    split, _, number = entry.name.removesuffix(".tok").partition("/")
    found = header.file_bytes, header.num_tokens, header.num_documents
    listed = entry.bytes, entry.tokens, entry.documents
    if found != listed or (header.info.get("split"), header.info.get("shard_index")) != (split, int(number)):
        raise FormatError(f"{place}: it is not the shard that the manifest lists; restore it")


def read_listed(store: Store, manifest: Manifest, name: str) -> bytes:
    """Return a small file that a manifest lists under `files`; raises FormatError if it is missing or damaged."""
    path = version_path(manifest.version, name)
    if name not in manifest.files:
        raise FormatError(f"{store.place(version_path(manifest.version, MANIFEST))}: it does not list {name}")
    try:
        data = store.read(path)
    except FileNotFoundError as error:
        raise FormatError(f"{store.place(path)}: missing from a published version; restore it") from error
    if sha256_of_bytes(data) != manifest.files[name]:
        raise FormatError(f"{store.place(path)}: its checksum does not match; the file is damaged; restore it")
    return data


def read_inputs(store: Store, manifest: Manifest) -> list[InputEntry]:
    """Return the inputs of a version; errors as read_listed."""
    place = store.place(version_path(manifest.version, INPUTS))
    return decode_record(Inputs, parse_json(read_listed(store, manifest, INPUTS), place), place).inputs


def read_tokenizer_files(store: Store, manifest: Manifest) -> dict[str, bytes]:
    """Return the tokenizer files of a version by name; errors as read_listed."""
    names = [name for name in manifest.files if name.startswith(TOKENIZER)]
    return {name.removeprefix(TOKENIZER): read_listed(store, manifest, name) for name in names}


def check_lengths(store: Store, manifest: Manifest) -> None:
    """Raise FormatError if a file that the manifest of a published version lists is missing or cut short.

    If the version was deleted meanwhile, raises VersionDeleted.
    """
    if name := missing_file(store, manifest):
        refuse_deleted(store, manifest.version)
        place = store.place(version_path(manifest.version))
        raise FormatError(
            f"{place}/{name}: missing from a published version, or cut short; restore it, or delete "
            f"{place}/{MANIFEST} and build again, which makes the same bytes"
        )


def missing_file(store: Store, manifest: Manifest) -> str | None:
    """Return the name of a listed file that is missing or has another length; None if all are there.

    Args:
        store: the dataset's store.
        manifest: of a version, which need not be published.
    """
    wanted: dict[str, int | None] = dict.fromkeys(manifest.files)
    for shard in manifest.shards:
        wanted |= {name: file["bytes"] for name, file in shard.listed.items()}
    version = version_path(manifest.version)
    folders = {name.rpartition("/")[0] for name in wanted}
    lengths = {folder: store.lengths(f"{version}/{folder}".rstrip("/")) for folder in folders}
    for name, num_bytes in wanted.items():
        folder, _, file = name.rpartition("/")
        found = lengths[folder].get(file)
        if found is None or num_bytes not in (None, found):
            return name
    return None
