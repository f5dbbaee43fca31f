"""`tokenloom build` and `verify`: build and publish a version, read it again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tokenloom.cli.arguments import (
    Direct,
    InShares,
    Limit,
    Overrides,
    Prefect,
    Ref,
    SourceSpec,
    Spec,
    Workers,
)
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import FAILED, NO, Json, Output, Result
from tokenloom.errors import SpecError
from tokenloom.wording import counted, counted_rows, print_status

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec


def build(
    spec: Spec,
    *,
    overrides: Overrides = (),
    limit: Limit = None,
    workers: Workers = None,
    direct: Direct = False,
    prefect: Prefect = False,
    share: InShares = None,
    anyway: bool = False,
    out: Output,
) -> Result:
    """Build and publish a version.

    Run it again after a failure: it continues where it stopped. If nothing has changed since a version was published,
    it builds nothing.

    Args:
        anyway: build from more than 1,048,576 partitions, whose merging takes a billion requests

    Example:
        build news.yaml --set documents.min_chars=5

    Exit code 3:
        A check of the spec failed, or documents that were encoded again have other ids.
    """
    loaded = load_limited_spec(spec, [*overrides, *["anyway=true"] * anyway], limit).with_workers(workers)
    if share:
        if not direct:
            raise SpecError("--share: machines share a build without Prefect; give --direct too")
        return _build_share(loaded, share, out)
    result = run_build(loaded, direct, prefect)
    print_build(out, result)
    return Result(result)


def _build_share(spec: BuildSpec, share: tuple[int, int], out: Output) -> Result:
    """Do a share of a build, and print what is left."""
    from tokenloom.flows.direct import share_from_spec
    from tokenloom.tasks.running.steps import Share

    with showing_progress():
        result = share_from_spec(spec, Share(*share))
    line = f"share {share[0]}/{share[1]} of {result['dataset']}@{result['version']} is done; "
    last = "`tokenloom build` without --share publishes it"
    if left := next(iter(result["left"].items()), None):
        what = counted(left[1], left[0].replace("_", " ").removesuffix("s"))
        line += f"others have left: {what}; run them, then {last if left[0] == 'shards' else 'all for the next step'}"
    else:
        line += f"nothing is left: {'it is published' if result['published'] else last}"
    out.line(line)
    return Result(result)


def load_limited_spec(path: str, overrides: Sequence[str], limit: int | None = None) -> BuildSpec:
    """Read a spec, with the overrides of --set and the limit of --limit."""
    from tokenloom.spec.loading import load_spec

    return load_spec(path, [*overrides, *([f"limit={limit}"] if limit is not None else [])])


def run_build(spec: BuildSpec, direct: bool, prefect: bool) -> Json:
    """Build with progress on stderr; return the fields of BuildResult.to_json.

    Args:
        spec: what to build.
        direct: run the steps in this process, not as a Prefect flow.
        prefect: run them as a flow also if no server is known.
    """
    with showing_progress():
        if not direct:
            from tokenloom.server.known_server import known_url, run_flow

            if (url := known_url()) or prefect:
                return run_flow(spec, url)
            print_status(
                "no Prefect server is known: building directly; --prefect and `tokenloom up` show it in Prefect"
            )
        from tokenloom.tasks.building import preload_build
        from tokenloom.tasks.running.workers import preload_early

        preload_early(partial(preload_build, spec.tokenizer.model_dump()))
        from tokenloom.flows.direct import build_from_spec  # the workers' server loads the tokenizer meanwhile

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
    if left := {fate: count for fate, count in rows.items() if count and fate not in ("read", "kept", "copies")}:
        listed = "; quarantine.jsonl lists the quarantined rows" if "quarantined" in left else ""
        out.line(f"{sum(left.values()):,} of {counted(rows['read'], 'row')} left out: {counted_rows(left)}{listed}")
    if copies := rows.get("copies"):
        out.line(f"{copies:,} further copies of documents")
    for source, reasons in result["quarantined"].items():
        out.line(f"  {source}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()))


def verify(
    reference: Ref, *, deep: bool = False, spec: SourceSpec = None, workers: Workers = None, out: Output
) -> Result:
    """Read every byte of a version and list the damaged files.

    Args:
        deep: encode about 1,000 documents again from their sources

    Example:
        verify store/news

    Exit code 3:
        Something is damaged.
    """
    from tokenloom.flows.verify_steps import verify_directly
    from tokenloom.tasks.running.workers import chosen_num_workers

    if spec and not deep:
        raise SpecError("--spec: only --deep reads sources; give both")
    given = None
    if spec:
        from tokenloom.spec.loading import load_spec  # importing it takes as long as reading a gigabyte

        given = load_spec(spec)
    with showing_progress():
        result = verify_directly(reference, deep, given, chosen_num_workers(workers))
    _print_verification(out, result, deep)
    is_unchecked = deep and not result["documents_encoded_again"]
    return Result(result, NO if result["damages"] else FAILED if is_unchecked else 0)


def _print_verification(out: Output, result: Json, deep: bool) -> None:
    damages = result["damages"]
    out.line(f"{result['reference']}: {f'{len(damages):,} damaged' if damages else 'nothing is damaged'}")
    out.line(f"  {counted(result['files'], 'file')}, {counted(result['bytes'], 'byte')} read")
    if deep:
        out.line(f"  {counted(result['documents_encoded_again'], 'document')} encoded again")
    for row in damages:
        out.line(f"{row['file']}: {row['what']}")
    for step in dict.fromkeys(row["next_step"] for row in damages):
        files = [row["file"] for row in damages if row["next_step"] == step]
        out.line(f"next, for {files[0]}{f' and {len(files) - 1} more' * (len(files) > 1)}: {step}")
    for warning in result["warnings"]:
        out.line(f"note: {warning}")
