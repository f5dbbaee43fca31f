"""The outcome of a build in words: for the command line and for the state, log, summary and event of a run.

    published /data/store/news@6f6e75a47b3e9a29
    900,355 tokens in 20,918 documents, 3 shards, in 4.1 s; 12 of 27 partitions reused; tokenizer byte (byte), 256 ids

The command line prints two lines; a run shows both in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenloom.tasks.building.version_facts import lengths_checked
from tokenloom.wording import counted, described_tokenizer, duration


def outcome_lines(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return two lines: the version that a build published, found or was overtaken with, and its contents and cost.

    Args:
        result: see BuildResult.to_json.
    """
    seconds = duration(result["seconds"])
    if result["published"]:
        version, took = f"published {result['reference']}", f", in {seconds}"
    elif was_overtaken(result):
        version, took = f"another build published the same version first: {result['reference']}", f", in {seconds}"
    else:
        version, took = f"up to date, nothing new to publish: {result['reference']}", f"; checked in {seconds}"
    holds = f"{counted(result['tokens'], 'token')} in {counted(result['documents'], 'document')}"
    facts = [f"{holds}, {counted(result['shards'], 'shard')}{took}"]
    if result["partitions"] is not None:
        identical = f", {result['partitions_identical']:,} identical" if result["partitions_identical"] else ""
        partitions = counted(result["partitions"], "partition")
        facts.append(f"{result['partitions_reused']:,} of {partitions} reused{identical}")
    if result["gates"]:
        num_passed, gates = sum(gate["passed"] for gate in result["gates"]), counted(len(result["gates"]), "check")
        facts.append(f"{gates} passed" if num_passed == len(result["gates"]) else f"{num_passed:,} of {gates} passed")
    return version, "; ".join([*facts, f"tokenizer {described_tokenizer(result['tokenizer'])}"])


def encoding_line(result: Mapping[str, Any]) -> str | None:
    """Return the encoders of a version in one line; None if they are unknown, or its kind has only one.

    Args:
        result: see BuildResult.to_json.
    """
    library, encoders = result["reference_library"], result["encoders"]
    if encoders is None or library == result["tokenizer"]["kind"]:
        return None
    if not encoders:
        return f"encoded by {library}"
    num_partitions = sum(use["partitions"] for use in encoders.values())
    has_rest = result["partitions"] is not None and num_partitions < result["partitions"]
    rest = f"; {library} encoded {result['partitions'] - num_partitions:,} of the partitions" if has_rest else ""
    gives = "gives" if len(encoders) == 1 else "give"
    return f"encoded by {' and '.join(encoders)} ({gives} the ids of {library}){rest}"


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each thing to know: checks without anything to compare with, empty parts, bytes not read.

    Args:
        result: see BuildResult.to_json.
    """
    uncompared = [f"{gate['name']}: {gate['found']}" for gate in result["gates"] if not gate["compared"]]
    warnings = [f"warning: {warning}" for warning in result["warnings"]]
    is_found = not result["published"] and not was_overtaken(result)
    return [*uncompared, *warnings, *([lengths_checked(result["reference"])] if is_found else [])]


def was_overtaken(result: Mapping[str, Any]) -> bool:
    """Return whether a build made its version while another build published the same one."""
    return result["partitions"] is not None and not result["published"]


def outcome_line(result: Mapping[str, Any]) -> str:
    """Return the same in one line."""
    version, facts = outcome_lines(result)
    return f"{version}{': ' if result['published'] else ' has '}{facts}"


def reading_lines(reference: str) -> str:
    """Return two lines of Python that open a version."""
    quoted = json.dumps(reference, ensure_ascii=False)
    return f'from tokenloom import TokenDataset\ndata = TokenDataset({quoted}, split="train", seq_len=2048)'


def outcome(result: Mapping[str, Any]) -> str:
    """Return the outcome of a build, notes about it, and two lines of Python that open the version."""
    return "\n".join([outcome_line(result), *notes(result), reading_lines(result["reference"])])
