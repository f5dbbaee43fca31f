"""The order of a build's steps, written once: run by Prefect (build_dataset.py) or directly (direct.py).

The report of a version and the store's catalogue are written last: the version stays published whatever happens then.

"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tokenloom.errors import BadRow, EncoderMismatch, InputError, TokenloomError, message_of, named_message_of
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.storage.work.plans import WritePlan, building
from tokenloom.tasks.encoding.encoders import rejected
from tokenloom.tasks.encoding.tokenization import tokenize_partition, tokenize_tryout
from tokenloom.tasks.planning.input_messages import disk_messages, input_messages, left_out_messages
from tokenloom.tasks.planning.plan import (
    BuildPlan,
    cut_file,
    partitions_by_source,
    plan_build,
    with_partitions,
    with_tryout_partitions,
)
from tokenloom.tasks.publishing.check import check_jobs, refuse_differences
from tokenloom.tasks.publishing.publish import BuildResult, finish_build, publish_version
from tokenloom.tasks.publishing.validate import validate_build
from tokenloom.tasks.publishing.version_facts import VersionFacts
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import MAX_SMALL_TASKS, Job, Runner
from tokenloom.tasks.shuffling.assign import assign_shards
from tokenloom.tasks.shuffling.shuffle import shuffle_shard
from tokenloom.tasks.sources import PartitionRange
from tokenloom.tasks.verification.sample import RUN_DOCUMENTS, compare_documents

if TYPE_CHECKING:
    from tokenloom.tasks.estimate import Estimate
    from tokenloom.tasks.planning.plan import BuildPlan
    from tokenloom.tasks.publishing.publish import BuildResult
    from tokenloom.tasks.report.figures import VersionFigures

_TASK_BYTES = 64_000_000
_CUT_FILES = 500
_ONE_WRITER = "this store lets two writers create the same name, so run one build of this dataset at a time"


def run_build(spec: BuildSpec, runner: Runner) -> BuildResult:
    """Build a version of a dataset and publish it; return at once if it is already published.

    Args:
        spec: with absolute paths.
        runner: runs the steps.

    Raises:
        TokenloomError: the build failed and nothing was published. The message has the problem, its place and the next
            step.
    """
    start = time.monotonic()
    with add_source_line(spec):
        plan = _prepare(spec, runner)
        if plan.published:
            return with_report(plan, finish_build(plan, start))
        with building(plan.store, plan.version) as write_plan:
            return _build(plan, runner, start, write_plan)


def _build(plan: BuildPlan, runner: Runner, start: float, write_plan: WritePlan) -> BuildResult:
    """Build and publish a version; `write_plan` renews its plan in the store."""
    if plan.spec.report:
        import_for_reports()
    progress.report(progress.StepStarted("cut", len(plan.inputs), "files", len(plan.inputs)))
    cuts = cut_inputs(plan, runner)
    plan = with_partitions(plan, cuts)
    write_plan({part.spill_name for part in plan.partitions})
    _report_messages(disk_messages(plan))
    if plan.missing and plan.choice.next_step:
        _report_messages([plan.choice.line(plan.reference.backend)])
    try:
        plan, published = _encode_and_publish(plan, runner, write_plan)
    except EncoderMismatch as error:
        raise rejected(plan.store, error) from error
    return with_report(plan, finish_build(plan, start, published), runner)


def _prepare(spec: BuildSpec, runner: Runner) -> BuildPlan:
    """Return the plan, and report warnings about it; prepare the store if there is anything to build."""
    progress.report(progress.StepStarted("plan", 0))
    plan: BuildPlan = runner.one("plan", lambda: plan_build(spec))
    _report_messages(left_out_messages(plan.left_out, only_unused=True))
    if not plan.published:
        _report_messages(input_messages(plan.inputs))
        plan.store.remove_stale_temporaries()
        if not plan.store.creates_exclusively():
            _report_messages([f"{plan.store.root}: {_ONE_WRITER}"])
    return plan


def _report_messages(messages: Iterable[str]) -> None:
    for message in messages:
        progress.report(progress.Message(message))


def cut_inputs(plan: BuildPlan, runner: Runner) -> list[list[PartitionRange]]:
    """Return the partitions of every input."""
    return runner.each("cut", cut_file, [Job(file.path, file) for file in plan.inputs], _CUT_FILES, MAX_SMALL_TASKS)


def sample_build(plan: BuildPlan, runner: Runner) -> Estimate:
    """Estimate the result of a build from a sample of its partitions."""
    from tokenloom.tasks.estimate import estimate_build, probe_partition, probed_partitions  # of `plan`, not of builds

    parts = probed_partitions(plan)
    with _explaining_bad_rows(plan):
        probes = runner.each("sample", partial(probe_partition, plan.build), [Job(part.label, part) for part in parts])
    return estimate_build(plan, list(zip(parts, probes, strict=True)), runner.num_workers)


def _encode_and_publish(plan: BuildPlan, runner: Runner, write_plan: WritePlan) -> tuple[BuildPlan, bool]:
    """Return the plan as executed, and whether this build published it."""
    seconds: dict[str, float] = {}
    num_bytes = 0 if plan.spec.limit else sum(part.num_bytes for part in plan.partitions)
    with _step("tokenize", seconds, num_bytes, "partitions", len(plan.partitions)), _explaining_bad_rows(plan):
        plan = _encode(plan, runner)
    with _step("assign", seconds):
        assignment = runner.one("assign", lambda: assign_shards(plan))
    num_tokens = sum(total.tokens for total in assignment.totals.values())
    with _step("shuffle", seconds, num_tokens, "shards", len(assignment.shards)):
        shards = [Job(shard.name, position, shard.num_tokens) for position, shard in enumerate(assignment.shards)]
        records = runner.each("shuffle", partial(shuffle_shard, plan.build), shards)
    checks = check_jobs(plan, assignment, records)
    num_checked = sum(check.weight for check in checks)
    with _step("check", seconds, num_checked):
        differences = runner.each("check", compare_documents, checks, RUN_DOCUMENTS, MAX_SMALL_TASKS)
        refuse_differences(plan, assignment, chain.from_iterable(differences))
    with _step("validate", seconds):
        measured = runner.one("validate", lambda: validate_build(plan, assignment, records, num_checked))
    with _step("publish", seconds):
        write_plan(())  # it may be old if this machine was suspended
        published = runner.one("publish", lambda: publish_version(plan, assignment, records, measured, seconds))
    return plan, published


def _encode(plan: BuildPlan, runner: Runner) -> BuildPlan:
    """Encode the partitions that no earlier build encoded; return the plan, which has those that a try-out read."""
    if plan.spec.limit is not None:
        sources = [Job(parts[0].file.source, parts) for parts in partitions_by_source(plan)]
        return with_tryout_partitions(plan, runner.each("tokenize", partial(tokenize_tryout, plan.build), sources))
    missing = plan.missing
    reused_bytes = sum(part.num_bytes for part in plan.partitions) - sum(part.num_bytes for part in missing)
    num_reused = len(plan.partitions) - plan.num_identical - len(missing)
    progress.report(progress.Reused(num_reused, reused_bytes))  # the bytes of identical partitions need no work either
    jobs = [Job(part.label, part, part.num_bytes) for part in missing]
    runner.each("tokenize", partial(tokenize_partition, plan.build), jobs, _TASK_BYTES)
    return plan


@contextmanager
def _explaining_bad_rows(plan: BuildPlan) -> Iterator[None]:
    """Add how to leave out such rows to the message of a BadRow raised in the block."""
    try:
        yield
    except BadRow as error:
        if plan.spec.documents.on_error == "skip":
            raise
        leave_out = "leave out bad rows (documents.on_error: skip)"
        raise error.changed(option=f"{error.option}, or {leave_out}" if error.option else leave_out) from error


@contextmanager
def _step(name: str, seconds: dict[str, float], total: int = 0, parts: str = "", num_parts: int = 0) -> Iterator[None]:
    progress.report(progress.StepStarted(name, total, parts, num_parts))
    start = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - start, 3)


STEP = "report"  # no task run of Prefect: it takes less time than one, and what becomes of it fails no build


def import_for_reports() -> None:
    """Begin to import what draws a report in a thread, while this process waits for its workers; return at once."""
    threading.Thread(target=_import, name="imports for the report").start()


def _import() -> None:
    with contextlib.suppress(ImportError):  # whoever writes the report says so
        from tokenloom.tasks.report import page  # noqa: F401
        from tokenloom.tasks.report.parts import templates

        templates().get_template("report.html")


def with_report(plan: BuildPlan, result: BuildResult, runner: Runner | None = None) -> BuildResult:
    """Return the result with the place of the version's report, which is written if the version is new or has none.

    A version that was found published has none if the build that published it was killed before it wrote the report.
    With a runner, a worker collects the figures: it has the tokenizer.
    """
    if not plan.spec.report:
        return result
    collect = partial(_collect_in_worker, plan, runner) if runner is not None else None
    result = replace(result, report=_report(result.facts, result.published, collect))
    if result.published or result.tag_moved:
        _write_catalogue(plan.store)
    return result


def _report(facts: VersionFacts, is_new: bool, collect: Callable[[], VersionFigures] | None = None) -> str | None:
    """Return the place of the report, which is written unless it is there.

    Returns None, and reports a message that says why, if it can't be written.
    """
    store, path = facts.store, report_path(facts.version)
    if not is_new and store.exists(path):
        return store.place(path)
    try:
        from tokenloom.tasks.report.collect import collect_figures
        from tokenloom.tasks.report.page import render_page, write_report  # late: only this needs what draws

        figures = collect() if collect else collect_figures(store, facts.manifest)
        return write_report(store, facts.version, render_page(figures).encode())
    except (TokenloomError, OSError) as error:
        why = message_of(error)
    except Exception as error:  # noqa: BLE001  (a fault of the drawing: the version is published all the same)
        why = named_message_of(error)
    next_step = f"run `tokenloom report {facts.reference}` later, or set `report: false` in the spec"
    progress.report(progress.Message(f"the version is published, but no report was written: {why}; {next_step}"))
    return None


def _collect_in_worker(plan: BuildPlan, runner: Runner) -> VersionFigures:
    from tokenloom.tasks.report.collect import FiguresJob, collect_for_build

    job = FiguresJob(plan.store, plan.version, plan.definition, plan.tokenizer.fingerprint)
    return runner.each(STEP, collect_for_build, [Job(plan.version, job)])[0]  # type: ignore[no-any-return]


def _write_catalogue(store: Store) -> None:
    from tokenloom.tasks.report.catalogue import try_to_write_catalogue

    if problem := try_to_write_catalogue(store):
        progress.report(progress.Message(f"the version is published, but {problem}"))


@contextmanager
def add_source_line(spec: BuildSpec) -> Iterator[None]:
    """Prefix the message of an InputError with the file, line and name of its source, if the spec came from a file.

    Example: "news.yaml:7: source wiki: /data/wiki.parquet: no column 'body'; ..."
    """
    try:
        yield
    except InputError as error:
        if error.source and (place := spec.source_place(error.source)):
            message, name = str(error.args[0]), f"source {error.source}: "
            error.args = (f"{place}: {name}{message.removeprefix(name)}", *error.args[1:])
        raise
