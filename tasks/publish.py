"""Publish: the small files of a version, the manifest last, then the tag."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tokenloom.errors import WorkError
from tokenloom.storage.formats import manifest
from tokenloom.storage.formats.canonical import canonical_json, sign
from tokenloom.storage.formats.manifest import QUARANTINE
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.assignment import Assignment
from tokenloom.storage.versions.versions import check_lengths, load_manifest, version_path
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.records import read_records
from tokenloom.tasks.rows.quarantine import quarantine_reasons, write_quarantine
from tokenloom.tasks.validate import row_counts

_SHARD_FIELDS = ("name", "bytes", "tokens", "documents", "sha256", "docs_sha256", "first_key", "last_key", "samples")
_LIBRARIES = (
    "tokenloom",
    "numpy",
    "pyarrow",
    "xxhash",
    "fsspec",
    "tiktoken",
    "tokenizers",
    "sentencepiece",
    "datasets",
    "array_record",
    "pydantic",
    "prefect",
)


@dataclass(frozen=True)
class BuildResult:
    """What a build did: `published` is False if the version was there already.

    `rows` says what became of the rows read, `quarantined` how many were bad by source and reason; `tag_moved` whether
    `tag` names the version since now, `tag_note` why the tag was left alone. `num_partitions` is None if the build
    found its version published and did not cut the input, and `num_encoded` counts the partitions that it encoded
    itself; `seconds` is how long all of it took, and `tokenizer` what the manifest says of it.
    """

    reference: str
    version: str
    published: bool
    splits: dict[str, dict[str, int]]
    rows: dict[str, int]
    quarantined: dict[str, dict[str, int]]
    tag: str
    tag_moved: bool
    tag_note: str | None
    num_partitions: int | None
    num_encoded: int
    seconds: float
    tokenizer: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return what `build --json` prints."""
        return {
            "reference": self.reference,
            "version": self.version,
            "published": self.published,
            "tokens": self._total("tokens"),
            "documents": self._total("documents"),
            "shards": self._total("shards"),
            "seconds": self.seconds,
            "partitions": self.num_partitions,
            "partitions_reused": None if self.num_partitions is None else self.num_partitions - self.num_encoded,
            "partitions_encoded": self.num_encoded,
            "tokenizer": {name: self.tokenizer[name] for name in ("name", "kind", "vocab_size")},
            "splits": self.splits,
            "rows": self.rows,
            "quarantined": self.quarantined,
            "tag": self.tag,
            "tag_moved": self.tag_moved,
            "tag_note": self.tag_note,
        }

    def _total(self, name: str) -> int:
        return sum(split[name] for split in self.splits.values())


def publish_version(
    plan: BuildPlan,
    assignment: Assignment,
    records: Sequence[dict[str, Any]],
    measured: dict[str, Any],
    times: dict[str, float],
) -> bool:
    """Make a complete, checked version visible; return False if somebody else published it meanwhile.

    Args:
        plan: of the build.
        assignment: of its shards.
        records: of all shards.
        measured: what the check found, for build.json.
        times: seconds by step, for build.json.
    """
    files = {manifest.INPUTS: canonical_json({"inputs": [_input_row(file) for file in plan.inputs]})}
    files |= {f"tokenizer/{name}": data for name, data in plan.tokenizer_files.items()}
    for name, data in files.items():
        plan.store.replace(version_path(plan.version, name), data)
    plan.store.replace(version_path(plan.version, manifest.BUILD), _build_json(plan, measured, times))
    value = _manifest(plan, assignment, records) | {
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        | _quarantine(plan, assignment)
    }
    try:
        plan.store.create(version_path(plan.version, manifest.NAME), sign(value))
    except FileExistsError:
        return False
    return True


def _quarantine(plan: BuildPlan, assignment: Assignment) -> dict[str, str]:
    """Write the version's list of skipped rows, if there are any; return {name: SHA-256}.

    Raises WorkError if what a partition left in work/ is gone.
    """
    if not assignment.rows["quarantined"]:
        return {}
    listed, found = [], read_records(plan.store, (part.spill for part in plan.partitions))
    for part in plan.partitions:
        file, record = plan.inputs[part.input_index], found.get(part.spill)
        if record is None:
            raise WorkError(f"{plan.store.root}: the spills {part.spill} are gone; they are made again", part.spill)
        listed.append((part.spill, file.source, file.path, record["quarantine"]))
    return {QUARANTINE: write_quarantine(plan.store, version_path(plan.version, QUARANTINE), listed)}


def finish_build(
    plan: BuildPlan, start: float, published: bool = False, encoded: Collection[str] | None = None
) -> BuildResult:
    """Let the plan's tag name the version, where the rules allow (tags.move_by_build), and return what the build did.

    Args:
        plan: of the build.
        start: when it began, by time.monotonic().
        published: whether it made the version visible.
        encoded: names of the spills that it made; None if it found the version published.

    Raises FormatError if a file of the published version is missing or cut short.
    """
    value = load_manifest(plan.store, plan.version)
    check_lengths(plan.store, value)
    reasons = (
        quarantine_reasons(plan.store, version_path(plan.version, QUARANTINE)) if value["rows"]["quarantined"] else {}
    )
    tag_note = tags.move_by_build(plan.store, plan.tag, plan.version, plan.seen_tag_number)
    tag_moved = tags.newest_number(plan.store, plan.tag) != plan.seen_tag_number and tag_note is None
    splits = {
        name: {"tokens": split["tokens"], "documents": split["documents"], "shards": len(split["shards"])}
        for name, split in value["splits"].items()
    }
    return BuildResult(
        reference=f"{plan.store.root}@{plan.version}",
        version=plan.version,
        published=published,
        splits=splits,
        rows=value["rows"],
        quarantined=reasons,
        tag=plan.tag,
        tag_moved=tag_moved,
        tag_note=tag_note,
        num_partitions=None if encoded is None else len(plan.partitions),
        num_encoded=len(encoded or ()),
        seconds=round(time.monotonic() - start, 3),
        tokenizer=value["tokenizer"],
    )


def _input_row(file: Any) -> dict[str, Any]:
    return {
        "source": file.source,
        "path": file.path,
        "fingerprint": file.fingerprint,
        "bytes": file.num_bytes,
    }


def _manifest(plan: BuildPlan, assignment: Assignment, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    splits: dict[str, Any] = {}
    for name, _ in plan.spec.split_shares():
        mine = [record for record in records if record["split"] == name]
        splits[name] = {field: sum(r[field] for r in mine) for field in ("tokens", "documents", "duplicates")}
        splits[name]["shards"] = [
            {field: record[field] for field in _SHARD_FIELDS} | {"name": f"{record['name']}.tok"} for record in mine
        ]
    return {
        "format_version": manifest.FORMAT_VERSION,
        "dataset": plan.spec.dataset,
        "version": plan.version,
        "spec": plan.identity,
        "tokenizer": plan.tokenizer,
        "splits": splits,
        "rows": row_counts(assignment, records),
    }


def _build_json(plan: BuildPlan, measured: dict[str, Any], times: dict[str, float]) -> bytes:
    libraries = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    value = {
        "spec": plan.spec.model_dump(mode="json"),
        "inputs": [file.url for file in plan.inputs],
        "seconds": times,
        "measured": measured,
        "host": platform.node(),
        "python": platform.python_version(),
        "libraries": libraries,
    }
    return canonical_json(value)
