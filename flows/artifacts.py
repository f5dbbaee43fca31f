"""The artifacts of a run."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from tokenloom.flows.store_links import page_url
from tokenloom.storage.formats.manifest import CATALOGUE, InputEntry, Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.build_record import GateResult
from tokenloom.storage.versions.published import read_inputs, report_path
from tokenloom.tasks.building.outcome import notes, outcome_line, reading_lines
from tokenloom.tasks.building.publish import BuildResult
from tokenloom.tasks.retention import Collected
from tokenloom.tasks.running.progress import STEPS, step_label
from tokenloom.tasks.verify import VerificationResult
from tokenloom.wording import counted, printable_line, shown_bytes

_MARKS = re.compile(r"[\\`*\[\]|~]")  # they begin something within a line of Markdown
_MAX_ROWS = 500  # the UI shows all rows of a table at once


def show_result(result: BuildResult) -> None:
    """Write a summary of a published version as an artifact."""
    facts = result.facts
    manifest = facts.manifest
    create_markdown_artifact(
        summary(result, read_inputs(facts.store, manifest), _links(facts.store, manifest, result.report)),
        key=f"{artifact_key(manifest.dataset)}-summary",
        description=_cell(outcome_line(result.to_json())),
    )


def _links(store: Store, manifest: Manifest, report: str | None) -> list[str]:
    """Return lines of Markdown that link a version's report and the catalogue; its place if a browser can't open it."""
    if report is None:
        return []
    pages = {"All figures and charts": f"{manifest.dataset}/{report_path(manifest.version)}", "All versions": CATALOGUE}
    links = {text: page_url(store, path) for text, path in pages.items()}
    if not all(links.values()):
        return [f"All figures and charts: `{_cell(report)}`"]
    return [" · ".join(f"[{text}](<{_cell(str(url))}>)" for text, url in links.items())]


def artifact_key(dataset: str) -> str:
    """Return the name of a dataset in the characters that Prefect allows in the key of an artifact."""
    return re.sub("[^a-z0-9]+", "-", dataset).strip("-")


def summary(result: BuildResult, inputs: list[InputEntry], links: Sequence[str] = ()) -> str:
    """Return a summary of a build as Markdown: from inputs to shards, the time of each step, and how to read it.

    Args:
        result: the result of the build.
        inputs: the inputs of the version.
        links: lines about the version's pages.
    """
    assert result.facts.build is not None  # the build has just written it
    manifest, seconds = result.facts.manifest, result.facts.build.seconds
    slowest = max(seconds, key=seconds.__getitem__)
    share = seconds[slowest] / max(sum(seconds.values()), 1e-9)
    return "\n".join(
        [
            f"## {_cell(manifest.dataset)} {manifest.version}",
            _cell(outcome_line(result.to_json())),
            *(f"- {_cell(note)}" for note in notes(result.to_json())),
            "```python",
            *map(printable_line, reading_lines(result.reference).split("\n")),
            "```",
            *links,
            "",
            f"{counted(len(inputs), 'file')}, {shown_bytes(sum(entry.bytes for entry in inputs))}, became "
            f"{counted(len(manifest.shards), 'shard')}, {shown_bytes(manifest.shard_bytes)}. The longest step was "
            f"**{step_label(slowest)}**: {share:.0%} of {sum(seconds.values()):,.1f} s.",
            "",
            *_step_rows(seconds),
            "",
            "| split | documents | tokens | shards |",
            "|---|---:|---:|---:|",
            *(
                _row(name, f"{split.documents:,}", f"{split.tokens:,}", f"{len(split.shards):,}")
                for name, split in manifest.splits.items()
            ),
            "",
            "| rows | |",
            "|---|---:|",
            *(_row(name, f"{count:,}") for name, count in manifest.row_counts.items()),
            *_gate_rows(result.gates),
        ]
    )


def _gate_rows(gates: list[GateResult]) -> list[str]:
    """Return the lines of a table of checks; none without checks."""
    rows = [_row(gate.name, gate.expected, gate.found) for gate in gates]
    return ["", "| check | expected | found |", "|---|---|---|", *rows] if rows else []


def _step_rows(seconds: dict[str, float]) -> list[str]:
    """Return the lines of a table of the steps, with their times and shares of the whole."""
    whole = max(sum(seconds.values()), 1e-9)
    rows = [
        _row(step_label(step), f"{seconds[step]:,.1f}\u00a0s", f"{seconds[step] / whole:.0%}")
        for step in STEPS
        if step in seconds
    ]
    return ["| step | time | share |", "|---|---:|---:|", *rows]


def show_verification(dataset: str, result: VerificationResult) -> None:
    """Write the result of a verification as a Markdown artifact.

    Args:
        dataset: its name.
        result: see run_verification.
    """
    damages, warnings = result["damages"], result["warnings"]
    found = f"{len(damages):,} damaged" if damages else "nothing is damaged"
    lines = [
        f"## {_cell(result['reference'])}",
        f"{counted(result['files'], 'file')}, {counted(result['bytes'], 'byte')} read, "
        f"{counted(result['documents_encoded_again'], 'document')} encoded again: **{found}**.",
    ]
    if damages:
        lines += ["", "| file | problem | next step |", "|---|---|---|"]
        lines += [_row(row["file"], row["what"], row["next_step"]) for row in damages[:_MAX_ROWS]]
    if len(damages) > _MAX_ROWS:
        lines.append(f"and {len(damages) - _MAX_ROWS:,} more: tokenloom verify {_cell(result['reference'])} lists all")
    lines += ["", *(f"- {_cell(warning)}" for warning in warnings[:_MAX_ROWS])]
    create_markdown_artifact(
        "\n".join(lines), key=f"{artifact_key(dataset)}-verification", description=_cell(result["reference"])
    )


def show_collection(found: Collected) -> None:
    """Write the outcome of a collection for each version and each kind of leftovers as a table artifact."""
    rows = [
        {"version": version, "outcome": outcome, "why": printable_line(why)} for version, outcome, why in found.rows()
    ]
    rows += [
        {"version": "", "outcome": found.verb, "why": f"{kind}: {counted(num_files, 'file')}"}
        for kind, num_files in found.leftovers.items()
    ]
    create_table_artifact(
        rows[:_MAX_ROWS], key=f"{artifact_key(found.dataset)}-collection", description=_cell(found.line())
    )


def _row(*texts: str) -> str:
    """Return a row of a table of Markdown."""
    return f"| {' | '.join(map(_cell, texts))} |"


def _cell(text: str) -> str:
    """Return a text of a file or a user for Markdown, in which none of it counts as HTML or Markdown."""
    return _MARKS.sub(r"\\\g<0>", html.escape(printable_line(text), quote=False))
