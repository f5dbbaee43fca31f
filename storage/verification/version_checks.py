"""Checks of a dataset's small files against each other: manifest, inputs, logs, and files that are not listed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import chain

from tokenloom.errors import message_of
from tokenloom.storage.formats.manifest import BUILD, INPUTS, MANIFEST, QUARANTINE, Manifest, version_name
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.file_checks import Damage, bare_message
from tokenloom.storage.versions.published import is_published, version_path
from tokenloom.storage.versions.tags import entry_numbers, entry_path, read_log
from tokenloom.wording import counted


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Yield where a manifest contradicts itself."""
    rows, splits = manifest.rows, manifest.splits.values()
    for name, split in manifest.splits.items():
        documents = sum(shard.documents for shard in split.shards)  # the reader checks the sum of the tokens
        if documents != split.documents:
            yield f"split {name}: {counted(split.documents, 'document')}, its shards have {documents:,}"
    for fate, count, total in (
        ("kept", rows.kept, manifest.num_documents),
        ("duplicates", rows.duplicates, sum(split.duplicates for split in splits)),
    ):
        if count != total:
            yield f"{counted(count, 'row')} {fate}, the splits have {total:,}"
    fates = sum(count for fate, count in manifest.row_counts.items() if fate != "read")
    if rows.read != fates:
        yield f"{counted(rows.read, 'row')} read, {fates:,} accounted for"
    if bool(rows.quarantined) != (QUARANTINE in manifest.files):
        is_listed = "listed" if QUARANTINE in manifest.files else "not listed"
        yield f"{counted(rows.quarantined, 'row')} quarantined, and {QUARANTINE} is {is_listed}"
    if INPUTS not in manifest.files:
        yield f"{INPUTS} is not listed"


def inputs_problems(manifest: Manifest, inputs: list[InputEntry]) -> list[str]:
    """Return the problems of inputs whose SHA-256 is right: the version's name must follow from them."""
    named = [(entry.source, entry.path, entry.fingerprint) for entry in inputs]
    try:
        name = version_name(manifest.spec, named, manifest.tokenizer.fingerprint)
    except ValueError as error:  # NaN, or half of a surrogate pair
        return [f"its spec can't be written as canonical JSON ({message_of(error)})"]
    if name == manifest.version:
        return []
    return [f"spec, inputs and tokenizer make version {name}, not {manifest.version}"]


def check_tags(store: Store) -> tuple[list[Damage], list[str]]:
    """Return the damages of the logs of all tags of a dataset, and warnings."""
    damages: list[Damage] = []
    warnings: list[str] = []
    published = cache(partial(is_published, store))
    for tag in store.names("tags"):
        named = {entry_path(tag, number) for number in entry_numbers(store, tag)}
        others = {f"tags/{tag}/{name}" for name in store.names(f"tags/{tag}")} - named
        warnings += [f"{path}: not an entry of the log" for path in sorted(others)]
        entries, problems = read_log(store, tag)
        damages += [Damage(path, bare_message(error, store.place(path))) for path, error in problems.items()]
        for entry in entries:
            if published(entry.version):
                continue
            if entry is entries[-1]:
                damages.append(Damage(version_path(entry.version, MANIFEST), f"missing, but tag {tag} names it"))
            else:
                warnings.append(
                    f"{entry_path(tag, entry.number)}: it names version {entry.version}, which no longer exists"
                )
    return damages, warnings


def unlisted_files(store: Store, manifest: Manifest) -> list[str]:
    """Return the paths in a version's folder that the manifest does not list, except for build.json."""
    version = manifest.version
    known: dict[str, set[str]] = {"": {MANIFEST, BUILD}}
    for name in chain(manifest.files, *(shard.listed for shard in manifest.shards)):
        parts = name.split("/")
        for depth, part in enumerate(parts):
            known.setdefault("/".join(parts[:depth]), set()).add(part)
    return [
        version_path(version, f"{folder}/{name}".lstrip("/"))
        for folder, names in sorted(known.items())
        for name in store.names(version_path(version, folder))
        if name not in names
    ]
