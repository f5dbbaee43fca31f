"""The order of a build's steps, written once: run by Prefect (build_dataset.py) or directly (direct.py).

The report of a version and the store's catalogue are written last: the version stays published whatever happens then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from tokenloom.errors import BadRow, EncoderMismatch, InputError, TokenloomError, message_of, named_message_of
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.storage.work.plans import WritePlan, building
from tokenloom.storage.work.records import (
    Assignment,
    ShardRecord,
    damaged,
    find_partition_records,
    find_run_parts,
    find_work_records,
    shard_record_path,
)
from tokenloom.tasks.building.assign import assign_shards, with_runs
from tokenloom.tasks.building.check import RUN_DOCUMENTS, compare_documents
from tokenloom.tasks.building.documents import preload_encoder
from tokenloom.tasks.building.input_messages import disk_messages, input_messages, left_out_messages
from tokenloom.tasks.building.inputs import check_all_unchanged
from tokenloom.tasks.building.marking import check_marks, mark_file, mark_jobs, read_marks, unused_keys
from tokenloom.tasks.building.marks.tables import count_kept, num_keys
from tokenloom.tasks.building.merge import merge_part
from tokenloom.tasks.building.plan import (
    MIN_FAST_BYTES,
    Build,
    BuildPlan,
    cut_file,
    partitions_by_source,
    plan_build,
    with_partitions,
    with_tryout_partitions,
)
from tokenloom.tasks.building.publish import BuildResult, finish_build, publish_version
from tokenloom.tasks.building.shuffle import num_unmade, shuffle_shard
from tokenloom.tasks.building.tokenization import tokenize_partition, tokenize_tryout
from tokenloom.tasks.building.validate import check_jobs, refuse_differences, rejected, validate_build
from tokenloom.tasks.building.version_facts import VersionFacts
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import ALL, Job, Runner, Share, WorkLeft, refuse_left
from tokenloom.tasks.sizes import MAX_SMALL_TASKS, MAX_SPILLS
from tokenloom.tokenizers.fast.proofs import choose

if TYPE_CHECKING:
    from tokenloom.tasks.preview import Estimate, FirstRows

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
    with _naming_source_lines(spec):
        plan = _plan(spec, runner)
        if plan.published:
            return with_report(plan, finish_build(plan, start), runner)
        with building(plan.build.store, plan.build.version) as write_plan:
            if plan.spec.report:
                import_for_reports()
            plan = _cut(plan, runner, write_plan)
            with _rejecting_encoders(plan.build.store):
                plan, facts = _encode_and_publish(plan, runner, write_plan)
            return with_report(plan, finish_build(plan, start, facts), runner)


def run_share(spec: BuildSpec, runner: Runner, share: Share) -> dict[str, Any]:
    """Do a share of a build, and publish nothing: do its part of each step until others have some of a step left.

    The store is all that the shares of a build have in common; any may run twice, or on two machines at once.

    Args:
        spec: with absolute paths.
        runner: runs the steps.
        share: the part of each step's jobs to do.

    Returns:
        The JSON object of `build --share --json`: dataset, version, whether it is published, and what is left: {} if
        nothing is, else how much of the first step that has some left.

    Raises:
        TokenloomError: as run_build; what is finished stays.
    """
    with _naming_source_lines(spec):
        plan = _plan(spec, runner)
        shown = {"dataset": spec.dataset, "version": plan.build.version, "published": plan.published}
        if plan.published:
            return shown | {"left": {}}
        with building(plan.build.store, plan.build.version) as write_plan, _rejecting_encoders(plan.build.store):
            counts: dict[str, int] = {}
            try:
                _make_shards(_cut(plan, runner, write_plan), runner, write_plan, {}, share)
            except WorkLeft as left:
                counts = left.counts
            runner.one("validate", lambda: check_all_unchanged(plan.spec, plan.inputs))
            check_marks(plan, runner)
            return shown | {"left": counts}


def _plan(spec: BuildSpec, runner: Runner) -> BuildPlan:
    """Return the plan of a build; warn of what its inputs and its store lack, unless it is published."""
    progress.report(progress.StepStarted("plan", 0))
    marks = read_marks(spec, runner) if spec.documents.marks or spec.documents.exclude else None
    plan: BuildPlan = runner.one("plan", lambda: plan_build(spec, marks))
    progress.warn(left_out_messages(plan.left_out, only_unused=True))
    if not plan.published:
        progress.warn(input_messages(plan.inputs))
        store = plan.build.store
        store.remove_stale_temporaries()
        if not store.creates_exclusively():
            progress.warn([f"{store.root}: {_ONE_WRITER}"])
    return plan


def _cut(plan: BuildPlan, runner: Runner, write_plan: WritePlan) -> BuildPlan:
    """Return the plan with its partitions, which `write_plan` names in the store."""
    progress.report(progress.StepStarted("cut", len(plan.inputs), "files", len(plan.inputs)))
    if sum(file.num_bytes for file in plan.inputs) >= MIN_FAST_BYTES:
        definition = plan.build.definition
        runner.preload(partial(preload_encoder, definition))
        choose(plan.reference, definition)  # the workers' server needs as long; it keeps the parts for later
    plan = cut_inputs(plan, runner)
    if (count := len(plan.distinct)) > MAX_SPILLS and not plan.spec.anyway:
        raise InputError(
            f"{count:,} partitions; above {MAX_SPILLS:,} a build takes a billion requests or more: raise "
            "partition_bytes or join small files, and see `tokenloom plan`; or build --anyway"
        )
    write_plan({part.spill_name for part in plan.partitions})
    progress.warn(disk_messages(plan))
    if plan.missing and plan.choice.next_step:
        progress.warn([plan.choice.line(plan.reference.backend)])
    return plan


def plan_and_sample(spec: BuildSpec, runner: Runner) -> tuple[BuildPlan, Estimate, list[FirstRows]]:
    """Return the plan of a build, an estimate of its result from a sample, and the first rows of its conversations.

    It raises the errors that a build raises before it encodes: sampling reads rows, and finds a missing column.
    """
    from tokenloom.tasks.preview import (  # only `plan` needs them
        estimate_build,
        first_rows,
        probe_partition,
        probed_partitions,
    )

    with _naming_source_lines(spec):
        plan = cut_inputs(plan_build(spec, read_marks(spec, runner)), runner)
        parts = probed_partitions(plan)
        jobs = [Job(part.label, part) for part in parts]
        with _explaining_bad_rows(plan):
            probes = runner.each("sample", partial(probe_partition, plan.build), jobs)
        if plan.build.marks:
            plan = replace(plan, kept=runner.examine(count_kept, [plan.build.marks])[0])
        starts = [parts[0] for parts in partitions_by_source(plan) if parts[0].file.holds_conversations]
        conversations = runner.examine(partial(first_rows, plan.build), starts)
        estimate = estimate_build(plan, list(zip(parts, probes, strict=True)), runner.num_workers)
        return plan, estimate, conversations


def cut_inputs(plan: BuildPlan, runner: Runner) -> BuildPlan:
    """Return the plan with the partitions of every input."""
    jobs = [Job(file.path, file) for file in plan.inputs]
    return with_partitions(plan, runner.each("cut", cut_file, jobs, _CUT_FILES, MAX_SMALL_TASKS))


@contextmanager
def _naming_source_lines(spec: BuildSpec) -> Iterator[None]:
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


@contextmanager
def _rejecting_encoders(store: Store) -> Iterator[None]:
    """Delete the spills of a fast encoder that the block finds to be wrong; see rejected."""
    try:
        yield
    except EncoderMismatch as error:
        raise rejected(store, error) from error


def _encode_and_publish(
    plan: BuildPlan, runner: Runner, write_plan: WritePlan
) -> tuple[BuildPlan, VersionFacts | None]:
    """Return the plan as executed, and the facts of the version, None if another build published it first."""
    seconds: dict[str, float] = {}
    plan, assignment = _make_shards(plan, runner, write_plan, seconds)
    records = _records(plan.build, assignment)
    build, checks = runner.one("check", lambda: check_jobs(plan, assignment, records))
    num_checked = sum(check.weight for check in checks)
    with _step("check", seconds, num_checked):
        differences = runner.each("check", partial(compare_documents, build), checks, RUN_DOCUMENTS, MAX_SMALL_TASKS)
        refuse_differences(plan, assignment, chain.from_iterable(differences))
    with _step("validate", seconds):
        if plan.spec.documents.marks or plan.spec.documents.exclude:
            check_marks(plan, runner)
        measured = runner.one("validate", lambda: validate_build(plan, assignment, records, num_checked))
    with _step("publish", seconds):
        write_plan(())  # it may be old if this machine was suspended
        facts = runner.one("publish", lambda: publish_version(plan, assignment, records, measured, seconds))
    return plan, facts


def _make_shards(
    plan: BuildPlan, runner: Runner, write_plan: WritePlan, seconds: dict[str, float], share: Share = ALL
) -> tuple[BuildPlan, Assignment]:
    """Make the shards, or do a share of it; return the plan as executed, and which documents each shard has.

    Raises WorkLeft if other shares have something of a step left.
    """
    plan = _tokenize(plan, runner, seconds, share)
    if plan.build.marks is not None:
        _mark(plan, runner, write_plan, seconds, share)
    with _step("assign", seconds):
        assignment = runner.one("assign", lambda: assign_shards(plan))
    if plan.build.marks is not None and share is ALL:
        numbers = runner.examine(num_keys, plan.build.marks.marks)
        progress.warn(unused_keys(plan.build.marks, assignment.marks.values(), numbers))
    if assignment.parts:
        write_plan(part.name for part in assignment.parts)
        assignment = _merge(plan, runner, assignment, seconds, share)
    _shuffle(plan, runner, assignment, seconds, share)
    return plan, assignment


def _tokenize(plan: BuildPlan, runner: Runner, seconds: dict[str, float], share: Share) -> BuildPlan:
    """Encode the partitions that no earlier build encoded; return the plan, which has those that a try-out read."""
    own = plan.partitions if share is ALL else share.of(plan.distinct, lambda part: part.num_bytes)
    num_bytes = 0 if plan.spec.limit else sum(part.num_bytes for part in own)
    with _step("tokenize", seconds, num_bytes, "partitions", len(own)), _explaining_bad_rows(plan):
        if plan.spec.limit is not None:
            sources = [Job(parts[0].file.source, parts) for parts in partitions_by_source(plan)]
            return with_tryout_partitions(plan, runner.each("tokenize", partial(tokenize_tryout, plan.build), sources))
        mine = replace(plan, partitions=own)
        jobs = [Job(part.label, part, part.num_bytes) for part in mine.missing]
        num_reused = len(mine.distinct) - len(jobs)
        progress.report(progress.Reused(num_reused, num_bytes - sum(job.weight for job in jobs)))  # of copies, too
        runner.each("tokenize", partial(tokenize_partition, plan.build), jobs, _TASK_BYTES)
    if share is not ALL:
        missing = [part.spill_name for part in plan.missing]
        refuse_left(partitions=len(missing) - len(find_partition_records(plan.build.store, missing)))
    return plan


def _mark(plan: BuildPlan, runner: Runner, write_plan: WritePlan, seconds: dict[str, float], share: Share) -> None:
    """Evaluate the marks of all documents of a share that no earlier build evaluated."""
    with _step("mark", seconds, sum(part.num_bytes for part in plan.partitions), "files", len(plan.inputs)):
        names, jobs = mark_jobs(plan)
        write_plan(names)
        own = set(share.of(range(len(plan.inputs)), lambda i: plan.inputs[i].num_bytes))
        mine = [Job(job[0][0].file.path, job) for job in jobs if job[0][0].input_index in own]
        runner.each("mark", partial(mark_file, plan.build), mine)
    if share is not ALL:
        refuse_left(files=len(mark_jobs(plan)[1]))


def _merge(
    plan: BuildPlan, runner: Runner, assignment: Assignment, seconds: dict[str, float], share: Share
) -> Assignment:
    """Make the parts of runs of a share that no earlier build made; return the assignment with all parts."""
    there = find_run_parts(plan.build.store, assignment.parts)
    jobs = [Job(there[i].name, i) for i in share.of(range(len(there))) if not there[i].is_made]
    with _step("merge", seconds, len(jobs), "parts", len(jobs)):
        runner.each("merge", partial(merge_part, plan.build, assignment.digest), jobs)
        assignment = with_runs(plan.build, assignment)
    if share is not ALL:
        refuse_left(run_parts=sum(not part.is_made for part in assignment.parts))
    return assignment


def _shuffle(plan: BuildPlan, runner: Runner, assignment: Assignment, seconds: dict[str, float], share: Share) -> None:
    """Make the shards of a share."""
    jobs = [Job(shard.name, i, shard.num_tokens) for i, shard in enumerate(assignment.shards)]
    own = share.of(jobs, lambda job: job.weight)
    with _step("shuffle", seconds, sum(job.weight for job in own), "shards", len(own)):
        runner.each("shuffle", partial(shuffle_shard, plan.build, assignment.digest), own)
    if share is not ALL:
        refuse_left(shards=num_unmade(plan.build, assignment))


def _records(build: Build, assignment: Assignment) -> list[ShardRecord]:
    """Return the records of all shards, in order; raise WorkError if one is gone."""
    paths = [shard_record_path(build.version, shard.name) for shard in assignment.shards]
    records = find_work_records(build.store, paths, ShardRecord)
    if lost := set(paths).difference(records):
        raise damaged(build.store, min(lost))
    return list(records.values())


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


REPORT_STEP = "report"  # not a task run of Prefect: that takes longer than the report, whose failure fails no build


def import_for_reports() -> None:
    """Import the drawing of reports in a thread, while this process waits for its workers; return at once."""
    threading.Thread(target=_import, name="imports for the report").start()


def _import() -> None:
    with contextlib.suppress(ImportError):  # _write_report reports the missing package
        from tokenloom.tasks.report import page  # noqa: F401
        from tokenloom.tasks.report.templates import templates

        templates().get_template("report.html")


def with_report(plan: BuildPlan, result: BuildResult, runner: Runner) -> BuildResult:
    """Return the result with the place of the version's report, which is written if the version is new or has none.

    A version that was found published has none if the build that published it was killed before it wrote the report.
    """
    if not plan.spec.report:
        return result
    store, path = plan.build.store, report_path(plan.build.version)
    is_there = not result.published and store.exists(path)
    result = replace(result, report=store.place(path) if is_there else _write_report(plan, result, runner))
    if result.published or result.tag_moved:
        from tokenloom.tasks.report.catalogue import try_to_write_catalogue

        if problem := try_to_write_catalogue(store):
            progress.warn([f"the version is published, but {problem}"])
    return result


def _write_report(plan: BuildPlan, result: BuildResult, runner: Runner) -> str | None:
    """Write the report of a version, whose figures a worker collects: it has the tokenizer. Return its place.

    Returns None, and reports a message that says why, if it can't be written.
    """
    try:
        from tokenloom.tasks.report.figures import collect_for_build
        from tokenloom.tasks.report.page import render_page, write_report  # late: few builds need it

        store, version = plan.build.store, plan.build.version
        figures = runner.each(REPORT_STEP, partial(collect_for_build, plan.build), [Job(version, version)])[0]
        return write_report(store, version, render_page(figures).encode())
    except (TokenloomError, OSError) as error:
        why = message_of(error)
    except Exception as error:  # noqa: BLE001  (a fault of the drawing: the version is published all the same)
        why = named_message_of(error)
    next_step = f"run `tokenloom report {result.reference}` later, or set `report: false` in the spec"
    progress.warn([f"the version is published, but no report was written: {why}; {next_step}"])
    return None
