"""What a dataset's small files say, against each other: manifest, inputs, tag logs, and what else lies in a version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.manifest import BUILD, INPUTS, NAME, QUARANTINE, version_name
from tokenloom.storage.stores.store import Store
from tokenloom.storage.verification.shard_verification import ShardClaim
from tokenloom.storage.verification.verification import Damage, bare_message, raise_if_passing
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.tags import TagEntry
from tokenloom.storage.versions.versions import is_published, version_path
from tokenloom.wording import counted

_HEADER_OF_TOKENIZER = {
    "tokenizer": "name",
    "tokenizer_fingerprint": "fingerprint",
    "vocab_size": "vocab_size",
    "eot_id": "eot_id",
}
_ROW_FIELDS = ("read", "kept", "duplicates", "quarantined")
_SHARD_FIELDS = ("docs_sha256", "first_key", "last_key")


def shard_claims(manifest: dict[str, Any], num_inputs: int | None) -> list[ShardClaim]:
    """Return what a manifest says of each shard; see ShardClaim."""
    common = {"dataset": manifest["dataset"], "seed": manifest["spec"].get("seed", 0)}
    common |= {name: manifest["tokenizer"][field] for name, field in _HEADER_OF_TOKENIZER.items()}
    return [
        ShardClaim(manifest["version"], entry, common | {"split": split, "shard_index": index}, num_inputs)
        for split, value in manifest["splits"].items()
        for index, entry in enumerate(value["shards"])
    ]


def listed_names(manifest: dict[str, Any]) -> dict[str, str]:
    """Return {name: SHA-256} of every file that a manifest lists; names are relative to the version's folder."""
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    tokens = {shard["name"]: shard["sha256"] for shard in shards}
    documents = {f"{shard['name'].removesuffix('.tok')}.docs": shard["docs_sha256"] for shard in shards}
    return {**tokens, **documents, **manifest["files"]}


def check_verifiable(manifest: dict[str, Any], version: str) -> None:
    """Raise FormatError if a manifest is not that of `version`, or lacks a field that only verification needs.

    Args:
        manifest: after manifest.check_fields.
        version: whose folder it lies in.
    """
    if manifest["version"] != version:
        raise FormatError(f"it is the manifest of {manifest['version']}")
    rows = [f"rows.{name}" for name in _ROW_FIELDS if name not in manifest["rows"]]
    shards = [
        f"splits.{split}.shards[].{name}"
        for split, value in manifest["splits"].items()
        for name in _SHARD_FIELDS
        if any(name not in shard for shard in value["shards"])
    ]
    if missing := [*rows, *shards]:
        raise FormatError(f"{', '.join(missing)} must be given; its writer was wrong; restore it")


def manifest_problems(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield where a manifest contradicts itself."""
    splits, rows = manifest["splits"], manifest["rows"]
    for split, value in splits.items():
        for field in ("tokens", "documents"):
            total = sum(shard[field] for shard in value["shards"])
            if total != value[field]:
                yield f"split {split}: {value[field]:,} {field}, its shards have {total:,}"
    for row, field in (("kept", "documents"), ("duplicates", "duplicates")):
        total = sum(value[field] for value in splits.values())
        if rows[row] != total:
            yield f"{counted(rows[row], 'row')} {row}, the splits have {total:,}"
    fates = sum(count for fate, count in rows.items() if fate != "read")
    if rows["read"] != fates:
        yield f"{counted(rows['read'], 'row')} read, {fates:,} of all fates"
    if bool(rows["quarantined"]) != (QUARANTINE in manifest["files"]):
        yield f"{counted(rows['quarantined'], 'row')} quarantined, and {QUARANTINE} is {_listed(manifest, QUARANTINE)}"
    if INPUTS not in manifest["files"]:
        yield f"{INPUTS} is not listed"


def _listed(manifest: dict[str, Any], name: str) -> str:
    return "listed" if name in manifest["files"] else "not listed"


def inputs_problems(manifest: dict[str, Any], inputs: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with inputs whose SHA-256 is right: the version's name says what went in."""
    named = [(item["source"], item["path"], item["fingerprint"]) for item in inputs]
    try:
        name = version_name(manifest["spec"], named, manifest["tokenizer"]["fingerprint"])
    except ValueError as error:  # NaN, or half of a surrogate pair
        return [f"its spec can't be written as canonical JSON ({error})"]
    if name == manifest["version"]:
        return []
    return [f"spec, inputs and tokenizer make version {name}, not {manifest['version']}"]


def check_tags(store: Store) -> tuple[list[Damage], list[str]]:
    """Return the damages of the logs of all tags of a dataset, and warnings."""
    damages: list[Damage] = []
    warnings: list[str] = []
    published: dict[str, bool] = {}
    for tag in store.names("tags"):
        paths = [f"tags/{tag}/{name}" for name in store.names(f"tags/{tag}")]
        numbers = tags.entry_numbers(path.rpartition("/")[2] for path in paths)
        others = set(paths).difference(tags.entry_path(tag, number) for number in numbers)
        warnings += [f"{path}: no entry of the log" for path in sorted(others)]
        entries, problems = _read_log(store, tag, numbers)
        damages += problems
        for entry in entries:
            if entry.version not in published:
                published[entry.version] = is_published(store, entry.version)
            if published[entry.version]:
                continue
            if entry.number == numbers[-1]:
                damages.append(Damage(version_path(entry.version, NAME), f"missing, and tag {tag} names it"))
            else:
                path = tags.entry_path(tag, entry.number)
                warnings.append(f"{path}: it names version {entry.version}, which is not there any more")
    return damages, warnings


def _read_log(store: Store, tag: str, numbers: list[int]) -> tuple[list[TagEntry], list[Damage]]:
    """Return the entries of a tag's log that can be read, and what is wrong with it; `numbers` are those there."""
    entries: list[TagEntry] = []
    damages: list[Damage] = []
    last = 0
    for number in numbers:
        if number > last + 1:
            more = f", and those up to {number - 1:08d}.json" if number > last + 2 else ""
            damages.append(Damage(tags.entry_path(tag, last + 1), f"an entry of the tag's log is missing{more}"))
        before = entries[-1] if entries and entries[-1].number == number - 1 else None
        entry, problems = _read_entry(store, tag, number, before)
        damages += [Damage(tags.entry_path(tag, number), problem) for problem in problems]
        entries += [entry] if entry else []
        last = number
    return entries, damages


def _read_entry(store: Store, tag: str, number: int, before: TagEntry | None) -> tuple[TagEntry | None, list[str]]:
    """Return an entry of a tag's log if it can be read, and what is wrong with it; `before` is the one before."""
    try:
        entry = tags.read_entry(store, tag, number)
    except (FormatError, StoreError) as error:
        raise_if_passing(store, error)
        return None, [bare_message(error, store.place(tags.entry_path(tag, number)))]
    expected = before.version if before else None
    if (before or number == 1) and entry.previous != expected:
        return entry, [f"it says that {tag} named {entry.previous} before; the log says {expected}"]
    return entry, []


def unlisted_files(store: Store, manifest: dict[str, Any]) -> list[str]:
    """Return the paths of what lies in a version's folder and is not listed, build.json left out."""
    version = manifest["version"]
    known: dict[str, set[str]] = {"": {NAME, BUILD}}
    for name in listed_names(manifest):
        parts = name.split("/")
        for depth, part in enumerate(parts):
            known.setdefault("/".join(parts[:depth]), set()).add(part)
    return [
        version_path(version, f"{folder}/{name}".lstrip("/"))
        for folder, names in sorted(known.items())
        for name in store.names(version_path(version, folder))
        if name not in names
    ]
