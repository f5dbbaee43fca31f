"""Write the report of a published version, which stays published whatever becomes of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tokenloom.errors import TokenloomError, message_of
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import find_build_record, load_manifest, report_path
from tokenloom.tasks.running import progress

if TYPE_CHECKING:
    from tokenloom.tasks.plan import BuildPlan
    from tokenloom.tasks.publish import BuildResult


def with_report(plan: BuildPlan, result: BuildResult) -> BuildResult:
    """Return the result with the place of the version's report, which is written if the version is new or has none.

    A version that was found published has none if the build that published it was killed before it wrote the report.
    """
    return replace(result, report=_report(plan.store, plan.version, result.published)) if plan.spec.report else result


def report_of_candidate(store: Store, version: str, published: bool) -> str | None:
    """Return the place of a candidate's report, written as by with_report; None with `report: false`."""
    build = find_build_record(store, version)
    return None if build and build.spec.get("report") is False else _report(store, version, published)


def _report(store: Store, version: str, is_new: bool) -> str | None:
    path = report_path(version)
    return store.place(path) if not is_new and store.exists(path) else _write(store, version)


def _write(store: Store, version: str) -> str | None:
    """Write the report and return its place; None, with a message that says why, if that is not possible."""
    try:
        from tokenloom.tasks.report.writing import make_report, write_report  # only this needs the packages that draw

        return write_report(store, version, make_report(store, load_manifest(store, version)))
    except ModuleNotFoundError as error:
        why = f"it needs the package {error.name!r}: pip install 'tokenloom[build]'"
    except (TokenloomError, OSError) as error:
        why = message_of(error)
    next_step = f"run `tokenloom report {store.root}@{version}` later, or set `report: false` in the spec"
    progress.report(progress.Message(f"the version is published, but no report was written: {why}; {next_step}"))
    return None
