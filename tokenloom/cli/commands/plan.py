"""`tokenloom plan`: show what a build would read, make and reuse."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from tokenloom.cli.arguments import LEARN, Limit, Overrides, Spec
from tokenloom.cli.commands.build import load_limited_spec
from tokenloom.cli.output import Json, Output, Result
from tokenloom.errors import StoreError
from tokenloom.wording import about, counted, described_end, described_tokenizer, shown_bytes

if TYPE_CHECKING:
    from tokenloom.storage.stores.store import Store
    from tokenloom.storage.versions.build_record import GateResult
    from tokenloom.tasks.building.plan import BuildPlan
    from tokenloom.tasks.preview import Estimate, FirstRows

_CONVERSATION_CHARS = 60  # shown of each part of the first conversation
_FEW_DOCUMENTS = 3  # expected in a split; it is then empty with a probability of 5 % or more


def plan(
    spec: Spec,
    *,
    overrides: Overrides = (),
    limit: Limit = None,
    learn: Annotated[str, LEARN] = "assistant",
    out: Output,
) -> Result:
    """Show what a build would read, make and reuse.

    Tokens, disk and time are estimated from a sample. Nothing is built.

    Example:
        plan news.yaml

    Raises:
        TokenloomError: the build would fail at once, for example because the disk is too small.
    """
    from tokenloom.flows.direct import check_direct, plan_directly
    from tokenloom.tasks.preview import check_disk
    from tokenloom.tasks.running.workers import chosen_num_workers

    loaded = load_limited_spec(spec, overrides, limit)
    check_direct(loaded, "plan here without it (--set)")
    planned, estimate = plan_directly(loaded, chosen_num_workers(loaded.runner.workers))
    value = _value(planned, estimate, learn)
    header = ["source", "files", "bytes", "partitions", "cached"]
    total = {"source": "all"} | value
    out.table(header, [[each[name] for name in header] for each in [*value["sources"], total]])
    _print_plan(out, planned, estimate, value)
    if value["not_writable"]:
        out.line(f"warning: a build by this user fails: {value['not_writable']}")
    if estimate and not planned.published:
        check_disk(planned, estimate)
    return Result(value)


def _value(planned: BuildPlan, estimate: Estimate | None, learn: str) -> Json:
    """Describe the version that a build would make, and its inputs in total and by source.

    `encoder` is the fast encoder that it would use, None for the library `reference_library`; `encoder_reason` says why
    that is not the fastest library, None if it is. `checks` are the limits that the version must keep; `gates` are
    their results for a version that is published, and `file_check` is what was checked of its files. `warnings` name
    what of the version is empty, or may be. `not_writable` says why this user can't write the store, as a build does;
    None if that is possible or, on a remote store, unknown.
    """
    from tokenloom.tasks.building.version_facts import tokenizer_label
    from tokenloom.tasks.preview import first_rows

    chats = list(first_rows(planned))
    sources = [_source(planned, name) for name in planned.spec.source_names()]
    if planned.published:
        gates, warnings, file_check = _of_published(planned)
    else:
        gates, warnings, file_check = [], _warnings(planned, estimate, chats), None
    return {
        "dataset": planned.spec.dataset,
        "version": planned.build.version,
        "published": planned.published,
        "tokenizer": asdict(planned.build.tokenizer)
        | tokenizer_label(planned.build.tokenizer, planned.build.definition)
        | {"eot": planned.reference.eot, "eot_of_config": planned.eot_of_config},
        "encoder": planned.choice.proof.library if planned.choice.proof else None,
        "encoder_reason": planned.choice.reason or None,
        "reference_library": planned.reference.backend,
        **{name: sum(source[name] for source in sources) for name in ("files", "bytes", "partitions", "cached")},
        "estimate": asdict(estimate) if estimate else None,
        "sources": sources,
        "left_out": planned.left_out,
        "chat": _chat(planned, chats, learn),
        "checks": planned.limits,
        "gates": [asdict(gate) for gate in gates],
        "warnings": warnings,
        "file_check": file_check,
        "not_writable": None if planned.published else _why_not_writable(planned.build.store),
    }


def _source(planned: BuildPlan, name: str) -> Json:
    """Count the files, bytes and partitions of a source; `cached` are the partitions that are encoded already."""
    files = [file for file in planned.inputs if file.source == name]
    partitions = [part for part in planned.partitions if planned.inputs[part.input_index].source == name]
    return {
        "source": name,
        "files": len(files),
        "bytes": sum(file.num_bytes for file in files),
        "partitions": len(partitions),
        "cached": sum(part.spill_name in planned.cached for part in partitions),
    }


def _chat(planned: BuildPlan, chats: list[FirstRows], learn: str) -> Json | None:
    """Describe the rendering of conversations; `first` are the runs of tokens of the first one, from `place`."""
    if planned.build.chat is None:
        return None
    from tokenloom.cli.commands.peek import class_runs
    from tokenloom.storage.formats.classes import learned_classes, parse_policy

    found, given = next((rows.shown for rows in chats if rows.shown), None), planned.spec.chat.template
    learned = learned_classes(parse_policy(learn))
    return {
        "layouts": {file.source: file.options["layout"] for file in planned.inputs if file.holds_conversations},
        "template": "of the tokenizer" if given == "tokenizer" else given,
        "sha256": hashlib.sha256(planned.build.chat.template.encode()).hexdigest(),
        "place": found.place if found else None,
        "first": class_runs(found.tokenizer, found.tokens, found.classes, learned) if found else [],
    }


def _of_published(planned: BuildPlan) -> tuple[list[GateResult], list[str], str]:
    """Look up a published version: results of checks, empty parts, and the check of its files."""
    from tokenloom.tasks.building.gates import evaluate_gates
    from tokenloom.tasks.building.version_facts import facts_of

    facts = facts_of(planned.build.store, planned.build.version)
    return evaluate_gates(facts, planned.tag, planned.limits), facts.warnings, facts.file_check


def _warnings(planned: BuildPlan, estimate: Estimate | None, chats: list[FirstRows]) -> list[str]:
    """Warn of sources that are copies, of faults in conversations, and of splits that may be empty."""
    from tokenloom.chat.rendering import stop_as_text
    from tokenloom.tasks.building.plan import partitions_by_source
    from tokenloom.tasks.building.version_facts import chat_warnings, empty_splits

    warnings, seen = [], set[str]()
    for parts in partitions_by_source(planned):
        names = {part.spill_name for part in parts}
        if planned.spec.documents.deduplicate and names <= seen:
            source = planned.inputs[parts[0].input_index].source
            warnings.append(f"source {source}: each file is a copy of one of another source: nothing of it is kept")
        seen |= names
    for rows in chats:
        first = (
            partial(stop_as_text, planned.build.chat, rows.shown.tokenizer)
            if planned.build.chat and rows.shown
            else str
        )
        warnings += chat_warnings(f"first rows of source {rows.source}", rows.counts, first)
    count = estimate.num_documents if estimate else 0
    shares = {name: share for name, share in planned.spec.split_shares() if 0 < share * count < _FEW_DOCUMENTS}
    return [*warnings, *empty_splits(shares, count, is_estimate=True)]


def _why_not_writable(store: Store) -> str | None:
    """Return why this user can't write a store; None if that is possible, or if only writing would show it."""
    try:
        if store.is_local:  # a remote one would keep a probe
            store.creates_exclusively()
    except StoreError as error:
        return str(error)
    return None


def _print_plan(out: Output, planned: BuildPlan, estimate: Estimate | None, value: Json) -> None:
    from tokenloom.storage.versions.build_record import GateResult
    from tokenloom.tasks.building.gates import gate_line
    from tokenloom.tasks.building.input_messages import input_messages, left_out_messages

    for message in (*left_out_messages(planned.left_out), *input_messages(planned.inputs)):
        out.line(message)
    state = "already published: a build has nothing to do" if planned.published else "not built yet"
    out.line()
    out.line(f"version {planned.build.version} of {planned.spec.dataset} in {planned.spec.store}: {state}")
    end = described_end(planned.build.tokenizer.eot_id, planned.reference.eot, is_of_config=planned.eot_of_config)
    out.line(f"tokenizer {described_tokenizer(value['tokenizer'])}, end of text {end}")
    out.line(planned.choice.line(planned.reference.backend))
    if value["chat"]:
        _print_chat(out, value["chat"])
    if planned.published:
        out.line(value["file_check"])
        for gate in value["gates"]:
            then = "" if gate["passed"] else "; a build ends with exit code 3 and moves no tag"
            out.line(f"{gate_line(GateResult(**gate))}{then}")
    elif planned.limits:
        limits = ", ".join(f"{name} {limit:,}" for name, limit in planned.limits.items())
        out.line(f"checks before it is published: {limits}")
    for warning in value["warnings"]:
        out.line(f"warning: {warning}")
    if estimate and not planned.published:
        _print_estimate(out, estimate, is_encoded=not planned.missing)
    out.line("Only encoding is incremental: a version is a full copy of its tokens, and the spills in work/ take")
    out.line("about as much space again. Changing the split shares can move documents between splits.")


def _print_chat(out: Output, chat: Json) -> None:
    from tokenloom.cli.commands.peek import print_runs

    layouts = ", ".join(f"{source} has the layout {layout}" for source, layout in chat["layouts"].items())
    out.line(f"conversations: {layouts}; template {chat['template']}, SHA-256 {chat['sha256'][:12]}")
    if chat["place"]:
        out.line(f"the first, {chat['place']}; what is learned is marked:")
        print_runs(out, chat["first"], _CONVERSATION_CHARS)


def _print_estimate(out: Output, estimate: Estimate, *, is_encoded: bool) -> None:
    basis = "already encoded" if is_encoded else f"from a sample of {shown_bytes(estimate.sampled_bytes)}"
    if not estimate.num_documents:
        out.line("warning: the sample has no documents; a build fails if the rest has none either")
    tokens, documents = counted(estimate.num_tokens, "token"), counted(estimate.num_documents, "document")
    out.line(f"about {tokens} in {documents} ({basis});")
    out.line(
        f"{counted(estimate.num_shards, 'shard')}, {shown_bytes(estimate.shard_bytes)} in total, plus "
        f"{shown_bytes(estimate.spill_bytes)} of new spills, in {about(estimate.seconds)} on this machine."
    )
