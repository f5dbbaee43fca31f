"""Show a run in Prefect: its name, artifacts, and an event when a build publishes."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.runtime import flow_run

from tokenloom.console import printable
from tokenloom.flows.run_names import is_generated
from tokenloom.storage.formats import manifest
from tokenloom.storage.versions.versions import parse_reference, read_inputs, resolve, version_path
from tokenloom.tasks.messages.outcome import outcome_line, reading_lines
from tokenloom.tasks.publish import BuildResult
from tokenloom.tasks.running.reading import step_label
from tokenloom.tasks.verification.result import VerificationResult
from tokenloom.wording import counted

_MAX_ROWS = 500  # of a table; the UI shows all rows at once
# Fields of the result in the event `tokenloom.dataset.published`.
_PUBLISHED = (
    "version",
    "reference",
    "tag",
    "tag_moved",
    "tokens",
    "documents",
    "shards",
    "seconds",
    "partitions",
    "partitions_reused",
    "tokenizer",
)
_STEPS = {
    "tokenize": "text to spills of token ids",
    "assign": "where each document goes",
    "shuffle": "spills to shards in their global order",
    "validate": "counts, ids, and 1,000 documents encoded again",
    "publish": "manifest and tag",
}


def name_run(dataset: str, version: str) -> None:
    """Name this flow run after the version, unless a user named it."""
    if not is_generated(flow_run.get_name() or ""):
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.get_id()), name=f"{dataset} {version}")


def show_result(result: BuildResult) -> None:
    """Write the artifacts of a published version: a summary and tables of inputs and shards."""
    store, version = resolve(parse_reference(result.reference))
    build = json.loads(store.read(version_path(version["version"], manifest.BUILD)))
    inputs = read_inputs(store, version)
    key = artifact_key(version["dataset"])
    create_markdown_artifact(
        summary(result, version, inputs, build["seconds"]),
        key=f"{key}-summary",
        description=outcome_line(result.to_json()),
    )
    create_table_artifact(
        _first([{name: row[name] for name in ("source", "path", "bytes")} for row in inputs]),
        key=f"{key}-inputs",
        description=_description("input file", len(inputs)),
    )
    shards = [
        {"split": split, **{name: shard[name] for name in ("name", "documents", "tokens", "bytes", "sha256")}}
        for split, value in version["splits"].items()
        for shard in value["shards"]
    ]
    create_table_artifact(_first(shards), key=f"{key}-shards", description=_description("shard", len(shards)))


def artifact_key(dataset: str) -> str:
    """Return the name of a dataset in the characters that Prefect allows in the key of an artifact."""
    return re.sub("[^a-z0-9]+", "-", dataset).strip("-")


def _first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[:_MAX_ROWS]


def _description(what: str, count: int) -> str:
    return counted(count, what) if count <= _MAX_ROWS else f"the first {_MAX_ROWS} of {counted(count, what)}"


def summary(
    result: BuildResult, version: dict[str, Any], inputs: list[dict[str, Any]], seconds: dict[str, float]
) -> str:
    """Return a summary of a build as Markdown: from inputs to shards, the time of each step, and how to read it.

    Args:
        result: of the build.
        version: its manifest.
        inputs: rows of its inputs.json.
        seconds: by step, from its build.json.
    """
    slowest = max(seconds, key=lambda step: seconds[step])
    share = seconds[slowest] / max(sum(seconds.values()), 1e-9)
    return "\n".join(
        [
            f"## {version['dataset']} {version['version']}",
            _cell(outcome_line(result.to_json())),
            "```python",
            reading_lines(result.reference),
            "```",
            "```text",
            "\n    |\n".join(_diagram(version, inputs, seconds)),
            "```",
            f"The longest step was **{step_label(slowest)}**: {share:.0%} of {sum(seconds.values()):,.1f} s.",
            "",
            "| split | documents | tokens | shards |",
            "|---|---:|---:|---:|",
            *(
                f"| {name} | {split['documents']:,} | {split['tokens']:,} | {len(split['shards']):,} |"
                for name, split in version["splits"].items()
            ),
            "",
            "| rows | |",
            "|---|---:|",
            *(f"| {name} | {count:,} |" for name, count in manifest.ordered_rows(version["rows"]).items()),
        ]
    )


def _diagram(version: dict[str, Any], inputs: list[dict[str, Any]], seconds: dict[str, float]) -> list[str]:
    """Return the lines of a diagram: the input files, each step with its time, the shards."""
    shards = [shard for split in version["splits"].values() for shard in split["shards"]]
    return [
        f"{counted(len(inputs), 'file')}, {_megabytes(inputs)}",
        *(
            f"{step_label(step):<18} {seconds[step]:>9,.1f} s   {what}"
            for step, what in _STEPS.items()
            if step in seconds
        ),
        f"{counted(len(shards), 'shard')}, {_megabytes(shards)}",
    ]


def _megabytes(files: list[dict[str, Any]]) -> str:
    return f"{sum(file['bytes'] for file in files) / 1e6:,.1f} MB"


def show_verification(dataset: str, result: VerificationResult) -> None:
    """Write the result of a verification as a Markdown artifact.

    Args:
        dataset: its name.
        result: see run_verification.
    """
    damages, warnings = result["damages"], result["warnings"]
    found = f"{len(damages):,} damaged" if damages else "nothing is damaged"
    lines = [
        f"## {result['reference']}",
        f"{counted(result['files'], 'file')}, {counted(result['bytes'], 'byte')} read, "
        f"{counted(result['documents_encoded_again'], 'document')} encoded again: **{found}**.",
    ]
    if damages:
        lines += ["", "| file | what is wrong | next step |", "|---|---|---|"]
        lines += [
            f"| {_cell(row['file'])} | {_cell(row['what'])} | {_cell(row['next_step'])} |"
            for row in damages[:_MAX_ROWS]
        ]
    if len(damages) > _MAX_ROWS:
        lines.append(f"and {len(damages) - _MAX_ROWS:,} more: `tokenloom verify {result['reference']}` lists all")
    lines += ["", *(f"- {_cell(warning)}" for warning in warnings[:_MAX_ROWS])]
    create_markdown_artifact(
        "\n".join(lines), key=f"{artifact_key(dataset)}-verification", description=result["reference"]
    )


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("\n", " ")


def emit_published(dataset: str, result: BuildResult) -> None:
    """Emit the event `tokenloom.dataset.published`."""
    fields = result.to_json()
    payload = {name: fields[name] for name in _PUBLISHED}
    payload |= {
        "flow_run_id": flow_run.get_id(),
        "message": outcome_line(fields),
        "read": reading_lines(result.reference),
    }
    labels = {"tokenloom.version": result.version, "tokenloom.tag": result.tag if result.tag_moved else "none"}
    emit_event(
        "tokenloom.dataset.published",
        resource={"prefect.resource.id": f"tokenloom.dataset.{dataset}", "prefect.resource.name": dataset} | labels,
        payload={"dataset": dataset} | payload,
    )
