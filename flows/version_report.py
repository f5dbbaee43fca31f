"""Write the report of a published version and the store's catalogue; the version stays published whatever happens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tokenloom.errors import TokenloomError, message_of, named_message_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.tasks.publishing.version_facts import VersionFacts
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import Job, Runner

if TYPE_CHECKING:
    from tokenloom.tasks.planning.plan import BuildPlan
    from tokenloom.tasks.publishing.publish import BuildResult
    from tokenloom.tasks.report.figures import VersionFigures

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
