"""`tokenloom publish`: publish a version whose checks failed, or list those that wait."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import SpecError, StoreError
from tokenloom.flows.version_report import report_of_candidate
from tokenloom.server.prefect_session import announce
from tokenloom.storage.formats.names import VERSION_PATTERN
from tokenloom.storage.formats.version_files import GateResult
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import is_dataset, is_published
from tokenloom.storage.versions.references import Reference, dataset_store, names_version, parse_reference, why_missing
from tokenloom.storage.work.candidates import CandidateRecord, find_candidates
from tokenloom.tasks.publishing.candidates import Publication, described, publish_candidate
from tokenloom.tasks.publishing.gates import failed
from tokenloom.wording import counted


@dataclass(frozen=True)
class PublishResult(Result, Publication):
    """What a publication did, see Publication; `reference` names the version, `report` is the place of its report."""

    reference: str
    report: str | None


@dataclass(frozen=True)
class WaitingCandidate:
    """A version that was built and not published; `gates` are the checks that failed, `at` is ISO 8601 in UTC."""

    version: str
    at: str
    documents: int
    tokens: int
    gates: list[GateResult]


@dataclass(frozen=True)
class CandidatesResult(Result):
    """The versions of a dataset that wait for publication."""

    dataset: str
    candidates: list[WaitingCandidate]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "reference",
        metavar="STORE/DATASET[@VERSION]",
        help="the version to publish; without @VERSION: list those that wait for publication",
    )
    parser.add_argument("--force", action="store_true", help="publish although checks fail; needs --reason")
    parser.add_argument("--reason", metavar="TEXT", help="why it is published; kept in the tag's log and in build.json")


def run(reference: str, force: bool, reason: str | None, out: Output) -> PublishResult | CandidatesResult:
    """Publish a version whose checks failed, or list the versions that wait.

    Args:
        reference: STORE/DATASET@VERSION, or STORE/DATASET to list.
        force: publish although checks fail.
        reason: why; given with `force`, and only then.
        out: prints the result.

    Raises:
        SpecError: the options do not fit together, or the reference or the reason is not valid.
        GateFailed: a check fails today, and `force` is not set.
        StoreError: there is no such candidate.
        WorkError: the candidate is damaged.
    """
    parsed = parse_reference(reference)
    is_list = not names_version(reference)
    _validate_options(parsed, is_list, force, (reason or "").strip())
    store = dataset_store(parsed.store, parsed.dataset)
    if not (is_dataset(store) if is_list else store.exists("")):
        raise StoreError(why_missing(store, parsed))
    if is_list:
        return _list_candidates(store, parsed, out)
    start = time.monotonic()
    with showing_progress():
        done = publish_candidate(store, parsed.name, reason if force else None)
        report = report_of_candidate(store, done.version, done.published)
    result = PublishResult(**vars(done), reference=f"{store.root}@{done.version}", report=report)
    if done.published or done.tag_moved:
        event = described(store, done, round(time.monotonic() - start, 3))
        announce(parsed.dataset, event | {"report": report})
    _print(out, result)
    return result


def _validate_options(reference: Reference, is_list: bool, force: bool, reason: str) -> None:
    if force != bool(reason):
        raise SpecError('--force and --reason: give both, as in --force --reason "the duplicates are intended"')
    if is_list and force:
        raise SpecError("--force: name the version, as in STORE/DATASET@VERSION")
    if not is_list and not VERSION_PATTERN.match(reference.name):
        raise SpecError(
            f"{reference}: name a version of 16 hexadecimal digits, as a version that is not published has no tag; "
            f"`tokenloom publish {reference.store}/{reference.dataset}` lists those that wait"
        )


def _list_candidates(store: Store, reference: Reference, out: Output) -> CandidatesResult:
    found = {name: record for name, record in find_candidates(store).items() if not is_published(store, name)}
    waiting = [_waiting(name, record) for name, record in sorted(found.items(), key=lambda item: item[1].at)]
    if waiting:
        rows = [[each.version, each.at, each.documents, each.tokens, _names(each.gates)] for each in waiting]
        out.table(["version", "built at", "documents", "tokens", "failed checks"], rows)
    else:
        out.line(f"{store.root}: no version waits for publication")
    return CandidatesResult(reference.dataset, waiting)


def _waiting(version: str, record: CandidateRecord) -> WaitingCandidate:
    sources = [counts for split in record.build.statistics.values() for counts in split.sources.values()]
    documents, tokens = sum(each.documents for each in sources), sum(each.tokens for each in sources)
    return WaitingCandidate(version, record.at, documents, tokens, failed(record.build.gates))


def _names(gates: list[GateResult]) -> str:
    return ", ".join(gate.name for gate in gates)


def _print(out: Output, result: PublishResult) -> None:
    if result.published:
        why = f", although {counted(len(failed(result.gates)), 'check')} failed" if result.forced else ""
        out.line(f"published {result.reference}{why}")
        out.table(
            ["check", "result", "expected", "found"],
            [[gate.name, "passed" if gate.passed else "failed", gate.expected, gate.found] for gate in result.gates],
        )
    else:
        out.line(f"already published: {result.reference}")
    if result.tag_moved:
        out.line(f"{result.tag} now names {result.version}: {result.reason}")
    if result.report:
        out.line(f"report {result.report}")
