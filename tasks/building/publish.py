"""Publish a version: its small files, the manifest last, then the tag."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.storage.formats.manifest import (
    BUILD,
    INPUTS,
    MANIFEST,
    QUARANTINE,
    InputEntry,
    Inputs,
    Manifest,
    SplitEntry,
)
from tokenloom.storage.formats.records import canonical_json, sign
from tokenloom.storage.formats.statistics import DocumentStatistics, added
from tokenloom.storage.versions import tag_moves
from tokenloom.storage.versions.build_record import BuildRecord, GateResult
from tokenloom.storage.versions.published import (
    TOKENIZER,
    check_lengths,
    is_published,
    missing_file,
    refuse_deleted,
    version_path,
)
from tokenloom.storage.work.records import (
    Assignment,
    ShardRecord,
    damaged,
    find_partition_records,
    partition_record_path,
)
from tokenloom.tasks.building.gates import evaluate_gates, failed, gate_failure, published_failure
from tokenloom.tasks.building.plan import BuildPlan
from tokenloom.tasks.building.validate import row_counts
from tokenloom.tasks.building.version_facts import VersionFacts, facts_of
from tokenloom.tasks.quarantine import write_quarantine

_LIBRARIES = (
    "tokenloom numpy pyarrow xxhash fsspec gigatoken jinja2 tiktoken tokenizers sentencepiece datasets array_record "
    "pydantic prefect"
)
_installed = cache(version)  # reads metadata, a fifth of a small build; a process may build often


@dataclass(frozen=True)
class BuildResult:
    """The facts of a version, and the work of its build; `published` is False if the version already existed.

    `tag_moved` says whether the build moved `tag` to the version, `tag_note` why it did not. `gates` are the results of
    the spec's checks. `num_partitions` is None if the build found its version published and did not cut the input.
    `num_identical` counts the partitions that are copies of others, whose spills they share, `num_encoded` those that
    the build encoded itself. `seconds` is the time of the whole build. The version's fast encoders give the ids of
    `reference_library`. `report` is the path or URL of the version's report, None if there is none.
    """

    facts: VersionFacts
    published: bool
    tag: str
    tag_moved: bool
    tag_note: str | None
    gates: list[GateResult]
    num_partitions: int | None
    num_identical: int
    num_encoded: int
    seconds: float
    reference_library: str
    report: str | None = None

    @property
    def reference(self) -> str:
        """STORE/DATASET@VERSION."""
        return self.facts.reference

    @property
    def version(self) -> str:
        """The version's name."""
        return self.facts.version

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """Tokens, documents and shards of each split."""
        return self.facts.splits

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows read, kept, dropped and skipped."""
        return self.facts.manifest.row_counts

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of `build --json`."""
        num_own = None if self.num_partitions is None else self.num_partitions - self.num_identical
        encoders = self.facts.build.encoders if self.facts.build else None
        return self.facts.to_json() | {
            "published": self.published,
            "seconds": self.seconds,
            "partitions": self.num_partitions,
            "partitions_reused": None if num_own is None else num_own - self.num_encoded,
            "partitions_encoded": self.num_encoded,
            "partitions_identical": None if num_own is None else self.num_identical,
            "encoders": None if encoders is None else {name: asdict(use) for name, use in encoders.items()},
            "reference_library": self.reference_library,
            "tag": self.tag,
            "tag_moved": self.tag_moved,
            "tag_note": self.tag_note,
            "gates": [asdict(gate) for gate in self.gates],
            "report": self.report,
        }


def publish_version(
    plan: BuildPlan,
    assignment: Assignment,
    records: Sequence[ShardRecord],
    measured: dict[str, int],
    times: dict[str, float],
) -> VersionFacts | None:
    """Make a complete, validated version visible; return its facts, None if another build published it first.

    Args:
        plan: the build's plan.
        assignment: which documents each shard gets.
        records: the records of all shards.
        measured: the figures of validate_build, for build.json.
        times: seconds by step, for build.json.

    Raises:
        StoreError: a listed file was deleted meanwhile.
        GateFailed: the version does not pass a gate; spills and shards stay for the next build.
        WorkError: the record of a partition is gone.
    """
    store, name = plan.build.store, plan.build.version
    inputs = [InputEntry(file.source, file.path, file.fingerprint, file.num_bytes) for file in plan.inputs]
    files = {INPUTS: canonical_json(Inputs(inputs))}
    files |= {f"{TOKENIZER}{file}": data for file, data in plan.reference.files.items()}
    for file, data in files.items():
        store.replace(version_path(name, file), data)
    digests = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    if assignment.quarantined:
        digests[QUARANTINE] = _write_quarantine(plan)
    manifest = _manifest(plan, assignment, records, digests)
    record = _build_record(plan, assignment, records, measured, times)
    facts = VersionFacts(store, manifest, record)
    gates = evaluate_gates(facts, plan.tag, plan.limits)
    if failed(gates):
        if is_published(store, name):  # by another build
            return None
        raise gate_failure(facts, gates, plan.spec)
    record = replace(record, gates=gates)
    store.replace(version_path(name, BUILD), canonical_json(record))
    if missing := missing_file(store, manifest):
        place = store.place(version_path(name, missing))
        raise StoreError(f"{place}: deleted since it was written; nothing was published; run the same command again")
    try:
        store.create(version_path(name, MANIFEST), sign(manifest))
    except FileExistsError:
        return None
    return replace(facts, build=record)


def _write_quarantine(plan: BuildPlan) -> str:
    """Write the version's list of skipped rows; return its SHA-256.

    Raises WorkError if the record of a partition is gone.
    """
    store, listed = plan.build.store, []
    found = find_partition_records(store, (part.spill_name for part in plan.partitions))
    for part in plan.partitions:
        record = found.get(part.spill_name)
        if record is None:
            raise damaged(store, partition_record_path(part.spill_name))
        listed.append((part.spill_name, part.file.source, part.file.path, record.quarantine))
    return write_quarantine(store, version_path(plan.build.version, QUARANTINE), listed)


def _manifest(
    plan: BuildPlan, assignment: Assignment, records: Sequence[ShardRecord], files: dict[str, str]
) -> Manifest:
    splits = {}
    for name, _ in plan.spec.split_shares():
        mine = [record for record in records if record.split == name]
        splits[name] = SplitEntry(
            tokens=sum(record.tokens for record in mine),
            documents=sum(record.documents for record in mine),
            duplicates=sum(record.duplicates for record in mine),
            shards=[record.entry for record in mine],
        )
    return Manifest(
        dataset=plan.spec.dataset,
        version=plan.build.version,
        spec=plan.identity,
        tokenizer=plan.build.tokenizer,
        splits=splits,
        rows=row_counts(assignment, records),
        files=files,
    )


def _build_record(
    plan: BuildPlan,
    assignment: Assignment,
    records: Sequence[ShardRecord],
    measured: dict[str, int],
    times: dict[str, float],
) -> BuildRecord:
    libraries = {}
    for name in _LIBRARIES.split():
        with suppress(PackageNotFoundError):
            libraries[name] = _installed(name)
    statistics = {
        name: added((one.statistics for one in records if one.split == name), DocumentStatistics())
        for name, _ in plan.spec.split_shares()
    }
    return BuildRecord(
        spec=plan.spec.model_dump(mode="json"),
        inputs=[file.url for file in plan.inputs],
        seconds=times,
        measured=measured,
        host=platform.node(),
        python=platform.python_version(),
        libraries=libraries,
        encoders=assignment.encoders,
        statistics=statistics,
        encoded=assignment.encoded,
        marks=assignment.marks,
        gates=[],
        at=tag_moves.now(),
        by=tag_moves.user(),
    )


def finish_build(plan: BuildPlan, start: float, facts: VersionFacts | None = None) -> BuildResult:
    """Move the plan's tag to the version if the rules allow it (see move_by_build); return the result of the build.

    A version that another build published must pass the gates of this one too, by its recorded figures.

    Args:
        plan: the build's plan.
        start: when it began, by time.monotonic().
        facts: those of the version if this build published it.

    Raises:
        FormatError: a file of the published version is missing or cut short.
        VersionDeleted: gc deleted the version before the tag named it; the same command builds it again.
        GateFailed: the version was published before and does not pass a gate; the tag stays.
    """
    store, version, is_new = plan.build.store, plan.build.version, facts is not None
    if facts is None:
        facts = facts_of(store, version)
        check_lengths(store, facts.manifest)
        gates = evaluate_gates(facts, plan.tag, plan.limits)
        if failed(gates):
            raise published_failure(facts, plan.tag, gates)
        facts.to_json()  # a damaged file fails the build before its tag moves
    else:
        gates = facts.recorded_gates
    tag_note = tag_moves.move_by_build(store, plan.tag, version, plan.seen_tag_number)
    refuse_deleted(store, version)
    return BuildResult(
        facts=facts,
        published=is_new,
        tag=plan.tag,
        tag_moved=tag_moves.newest_number(store, plan.tag) != plan.seen_tag_number and tag_note is None,
        tag_note=tag_note,
        gates=gates,
        num_partitions=None if plan.published else len(plan.partitions),
        num_identical=len(plan.partitions) - len(plan.distinct),
        num_encoded=len(plan.missing),
        seconds=round(time.monotonic() - start, 3),
        reference_library=plan.reference.backend,
    )
