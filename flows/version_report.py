"""Write the report of a version that was just published; a build that succeeded never fails for it."""

from __future__ import annotations

from dataclasses import replace

from tokenloom.errors import TokenloomError, message_of
from tokenloom.storage.versions.published import load_manifest
from tokenloom.tasks.plan import BuildPlan
from tokenloom.tasks.publish import BuildResult
from tokenloom.tasks.running import progress


def with_report(plan: BuildPlan, result: BuildResult) -> BuildResult:
    """Return the result with the place of the version's report, which is written now if the build published it."""
    if not plan.spec.report:
        return result
    if result.published:
        return replace(result, report=_write(plan))
    path = f"reports/{plan.version}.html"
    return replace(result, report=plan.store.place(path) if plan.store.exists(path) else None)


def _write(plan: BuildPlan) -> str | None:
    """Write the report and return its place; None, with a message that says why, if that is not possible."""
    try:
        from tokenloom.tasks.report.writing import write_report  # late: only this needs the packages that draw it

        return write_report(plan.store, load_manifest(plan.store, plan.version))
    except ModuleNotFoundError as error:
        why = f"it needs the package {error.name!r}: pip install 'tokenloom[build]'"
    except (TokenloomError, OSError) as error:
        why = message_of(error)
    next_step = f"run `tokenloom report {plan.store.root}@{plan.version}` later, or set `report: false` in the spec"
    progress.report(progress.Message(f"published, but no report was written: {why}; {next_step}"))
    return None
