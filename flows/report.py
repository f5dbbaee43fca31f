"""What a run shows in Prefect beside its tasks: its name, artifacts, and an event when a build ends."""

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
from tokenloom.tasks.running.reading import step_label
from tokenloom.wording import counted

_MOST_ROWS = 500  # of a table; the UI shows all rows at once
# What the event `tokenloom.dataset.published` says of a result.
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
    """Name this flow run after what it builds, unless somebody named it."""
    if not is_generated(flow_run.get_name() or ""):
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.get_id()), name=f"{dataset} {version}")


def show_result(result: dict[str, Any]) -> None:
    """Write the summary, and the tables of inputs and shards, of the version that a build published.

    Args:
        result: of the flow, see BuildResult.to_json.
    """
    store, version = resolve(parse_reference(result["reference"]))
    build = json.loads(store.read(version_path(version["version"], manifest.BUILD)))
    inputs = read_inputs(store, version)
    key = artifact_key(version["dataset"])
    create_markdown_artifact(
        summary(result, version, inputs, build["seconds"]), key=f"{key}-summary", description=outcome_line(result)
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
    """Return a dataset's name as Prefect allows it in the key of an artifact."""
    return re.sub("[^a-z0-9]+", "-", dataset).strip("-")


def _first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[:_MOST_ROWS]


def _description(what: str, count: int) -> str:
    return counted(count, what) if count <= _MOST_ROWS else f"the first {_MOST_ROWS} of {counted(count, what)}"


def summary(
    result: dict[str, Any], version: dict[str, Any], inputs: list[dict[str, Any]], seconds: dict[str, float]
) -> str:
    """Return what a build did as Markdown: the way from inputs to shards, what each step took, and how to read it.

    Args:
        result: of the flow, see BuildResult.to_json.
        version: its manifest.
        inputs: rows of its inputs.json.
        seconds: by step, from its build.json.
    """
    slowest = max(seconds, key=lambda step: seconds[step])
    share = seconds[slowest] / max(sum(seconds.values()), 1e-9)
    return "\n".join(
        [
            f"## {version['dataset']} {version['version']}",
            _cell(outcome_line(result)),
            "```python",
            reading_lines(result["reference"]),
            "```",
            "```text",
            "\n    |\n".join(_way(version, inputs, seconds)),
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


def _way(version: dict[str, Any], inputs: list[dict[str, Any]], seconds: dict[str, float]) -> list[str]:
    """Return the way from files to shards: what goes in, each step with its time, what comes out."""
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


def show_verification(dataset: str, result: dict[str, Any]) -> None:
    """Write what a verification found as Markdown.

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
        lines += ["| " + " | ".join(_cell(row[name]) for name in row) + " |" for row in _first(damages)]
    if len(damages) > _MOST_ROWS:
        lines.append(f"and {len(damages) - _MOST_ROWS:,} more: `tokenloom verify {result['reference']}` names all")
    lines += ["", *(f"- {_cell(warning)}" for warning in warnings[:_MOST_ROWS])]
    create_markdown_artifact(
        "\n".join(lines), key=f"{artifact_key(dataset)}-verification", description=result["reference"]
    )


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("\n", " ")


def emit_published(dataset: str, result: dict[str, Any]) -> None:
    """Emit the event `tokenloom.dataset.published`."""
    payload = {name: result[name] for name in _PUBLISHED}
    payload |= {
        "flow_run_id": flow_run.get_id(),
        "message": outcome_line(result),
        "read": reading_lines(result["reference"]),
    }
    labels = {"tokenloom.version": result["version"], "tokenloom.tag": result["tag"] if result["tag_moved"] else "none"}
    emit_event(
        "tokenloom.dataset.published",
        resource={"prefect.resource.id": f"tokenloom.dataset.{dataset}", "prefect.resource.name": dataset} | labels,
        payload={"dataset": dataset} | payload,
    )
