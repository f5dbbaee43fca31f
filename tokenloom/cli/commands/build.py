"""`tokenloom build`: build and publish a version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenloom.cli.arguments import Direct, Limit, Overrides, Prefect, Spec, Workers
from tokenloom.cli.output import Json, Output, Result
from tokenloom.console import print_status
from tokenloom.wording import counted, counted_rows

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec


def run(
    spec: Spec,
    *,
    overrides: Overrides = (),
    limit: Limit = None,
    workers: Workers = None,
    direct: Direct = False,
    prefect: Prefect = False,
    out: Output,
) -> Result:
    """Build and publish a version."""
    result = build(load_limited_spec(spec, overrides, limit), workers, direct, prefect)
    print_build(out, result)
    return Result(result)


def load_limited_spec(path: str, overrides: Sequence[str], limit: int | None = None) -> BuildSpec:
    """Read a spec, with the overrides of --set and the limit of --limit."""
    from tokenloom.spec.loading import load_spec

    return load_spec(path, [*overrides, *([f"limit={limit}"] if limit is not None else [])])


def build(spec: BuildSpec, workers: int | None, direct: bool, prefect: bool) -> Json:
    """Build with progress on stderr; return the fields of BuildResult.to_json.

    Args:
        spec: what to build.
        workers: worker processes; None for what the spec says.
        direct: run the steps in this process, not as a Prefect flow.
        prefect: run them as a flow also if no server is known.
    """
    from tokenloom.cli.display import showing_progress  # late: the workers' server starts before it is imported

    spec = spec.with_workers(workers)
    with showing_progress():
        if not direct:
            from tokenloom.server.known_server import known_url, run_flow

            if (url := known_url()) or prefect:
                return run_flow(spec, url)
            print_status(
                "no Prefect server is known: building directly; --prefect and `tokenloom up` show it in Prefect"
            )
        from tokenloom.flows.direct import build_from_spec

        return build_from_spec(spec).to_json()


def print_build(out: Output, result: Json) -> None:
    """Print the result of a build, the fields of BuildResult.to_json."""
    from tokenloom.tasks.building.outcome import encoding_line, notes, outcome_lines, reading_lines, was_overtaken

    for line in filter(None, (*outcome_lines(result), *notes(result), encoding_line(result))):
        out.line(line)
    splits = [[name, *counts.values()] for name, counts in result["splits"].items()]
    out.table(["split", "tokens", "documents", "shards"], splits)
    _print_left_out_rows(out, result)
    if result["tag"] != "latest":
        out.line(f"a try-out of the first documents of each source: its tag is {result['tag']}, never latest")
    elif result["tag_moved"] and not result["published"] and not was_overtaken(result):
        out.line(f"latest now names {result['version']}")
    if result["tag_note"]:
        out.line(f"the tag was not moved: {result['tag_note']}")
    if result["report"]:
        out.line(f"report {result['report']}")
    out.lines(reading_lines(result["reference"]))


def _print_left_out_rows(out: Output, result: Json) -> None:
    rows = result["rows"]
    if left := {fate: count for fate, count in rows.items() if count and fate not in ("read", "kept")}:
        listed = "; quarantine.jsonl lists the quarantined rows" if "quarantined" in left else ""
        out.line(f"{sum(left.values()):,} of {counted(rows['read'], 'row')} left out: {counted_rows(left)}{listed}")
    for source, reasons in result["quarantined"].items():
        out.line(f"  {source}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()))
