"""Write the report of a version that was just published, which stays published whatever becomes of the report."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenloom.errors import TokenloomError, message_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import find_build_record, load_manifest, report_path
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import RunEach

if TYPE_CHECKING:
    from tokenloom.tasks.plan import BuildPlan
    from tokenloom.tasks.publish import BuildResult
    from tokenloom.tasks.report.figures import VersionFigures


STEP = "report"  # no task run of Prefect: it takes less time than one, and what becomes of it fails no build


def import_for_reports() -> None:
    """Begin to import what draws a report in a thread, while this process waits for its workers; return at once."""
    threading.Thread(target=_import, name="imports for the report").start()


def _import() -> None:
    with contextlib.suppress(ImportError):  # whoever writes the report says so
        from tokenloom.tasks.report.page import page_template

        page_template()


def with_new_report(plan: BuildPlan, result: BuildResult, run_each: RunEach) -> BuildResult:
    """Return the result of a build with the place of the version's report, which is written if the build published it.

    A worker collects the figures, because it has the tokenizer.
    """
    if not plan.spec.report or not result.published:
        return with_report(plan, result)

    def collect() -> VersionFigures:
        from tokenloom.tasks.report.collect import FiguresJob, collect_for_build

        job = FiguresJob(plan.store, plan.version, plan.definition, plan.tokenizer.fingerprint)
        figures: VersionFigures = run_each(STEP, collect_for_build, [(plan.version, job)])[0]
        return figures

    return replace(result, report=_write(plan.store, plan.version, collect))


def with_report(plan: BuildPlan, result: BuildResult) -> BuildResult:
    """Return the result of a build that published nothing with the place of the version's report, if there is one."""
    path = report_path(plan.version)
    has_report = plan.spec.report and plan.store.exists(path)
    return replace(result, report=plan.store.place(path) if has_report else None)


def report_of_candidate(store: Store, version: str) -> str | None:
    """Write the report of a candidate that was just published and return its place; None with `report: false`."""

    def collect() -> VersionFigures:
        from tokenloom.tasks.report.collect import collect_figures

        return collect_figures(store, load_manifest(store, version))

    build = find_build_record(store, version)
    return None if build and build.spec.get("report") is False else _write(store, version, collect)


def _write(store: Store, version: str, collect: Callable[[], VersionFigures]) -> str | None:
    """Write the report and return its place; None, with a message that says why, if that is not possible."""
    try:
        from tokenloom.tasks.report.writing import write_report  # late: only this needs the packages that draw it

        return write_report(store, collect())
    except ModuleNotFoundError as error:
        why = f"it needs the package {error.name!r}: pip install 'tokenloom[build]'"
    except (TokenloomError, OSError) as error:
        why = message_of(error)
    next_step = f"run `tokenloom report {store.root}@{version}` later, or set `report: false` in the spec"
    progress.report(progress.Message(f"published, but no report was written: {why}; {next_step}"))
    return None
