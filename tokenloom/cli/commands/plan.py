"""`tokenloom plan`: show what a build would read, make and reuse."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from tokenloom.cli.arguments import LEARN, Limit, Overrides, Price, Spec
from tokenloom.cli.commands.build import load_limited_spec
from tokenloom.cli.output import Json, Output, Result
from tokenloom.errors import StoreError
from tokenloom.wording import about, counted, described_end, described_tokenizer, percent, shown_bytes

if TYPE_CHECKING:
    from tokenloom.storage.stores.store import Store
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
    price: Price = None,
    out: Output,
) -> Result:
    """Show what a build would read, make and reuse.

    Tokens, disk, time and requests to the store are estimated from a sample. Nothing is built; in an object store, a
    probe shows whether it refuses to create a name twice.

    Example:
        plan news.yaml

    Raises:
        TokenloomError: the build would fail at once, for example because the disk is too small.
    """
    from tokenloom.flows.direct import check_direct, plan_directly
    from tokenloom.tasks.preview import check_disk, costs_of, volume_of
    from tokenloom.tasks.running.workers import chosen_num_workers

    loaded = load_limited_spec(spec, overrides, limit)
    check_direct(loaded, "plan here without it (--set)")
    num_workers = chosen_num_workers(loaded.runner.workers)
    planned, estimate, conversations = plan_directly(loaded, num_workers)
    if planned.published:
        estimate = None
    value = _value(planned, estimate, conversations, learn)
    if estimate:
        value |= costs_of(planned, volume_of(planned, estimate, num_workers), estimate.seconds / 3600, price)
        value["creates_exclusively"] = _exclusiveness(planned.build.store)
    _print_plan(out, planned, value)
    if estimate:
        _print_estimate(out, estimate, is_encoded=not planned.missing, has_marks=planned.build.marks is not None)
        _print_costs(out, value, is_local=planned.build.store.is_local)
        check_disk(planned, estimate)
    return Result(value)


def _value(planned: BuildPlan, estimate: Estimate | None, chats: list[FirstRows], learn: str) -> Json:
    """Describe the version that a build would make, and its inputs in total and by source.

    `encoder` is the fast encoder that it would use, None for the tokenizer's library; `encoder_reason` says why that is
    not the fastest one. `checks` are the limits that the version must keep. `warnings` name what of it may be empty,
    and faults in conversations.
    """
    from tokenloom.tasks.building.version_facts import tokenizer_label

    sources = [_source(planned, name) for name in planned.spec.source_names()]
    return {
        "dataset": planned.spec.dataset,
        "version": planned.build.version,
        "published": planned.published,
        "tokenizer": asdict(planned.build.tokenizer)
        | tokenizer_label(planned.build.tokenizer, planned.build.definition)
        | {"eot": planned.reference.eot, "eot_of_config": planned.eot_of_config},
        "encoder": planned.choice.proof.library if planned.choice.proof else None,
        "encoder_reason": planned.choice.reason or None,
        **{name: sum(source[name] for source in sources) for name in ("files", "bytes", "partitions", "cached")},
        "estimate": asdict(estimate) if estimate else None,
        "sources": sources,
        "left_out": planned.left_out,
        "chat": _chat(planned, chats, learn) if planned.build.chat else None,
        "kept_by_marks": planned.kept,
        "checks": planned.limits,
        "warnings": _warnings(planned, estimate, chats),
    }


def _exclusiveness(store: Store) -> str:
    """Return whether a server honours create-if-absent, by which exactly one of several builds publishes a version."""
    if store.is_local:
        return "honoured"
    try:
        return "honoured" if store.creates_exclusively() else "ignored: run one build of this dataset at a time"
    except StoreError as error:
        return f"refused, so a build can't publish there: {error}"


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


def _chat(planned: BuildPlan, chats: list[FirstRows], learn: str) -> Json:
    """Describe the rendering of conversations; `first` are the runs of tokens of the first one, from `place`."""
    from tokenloom.cli.commands.peek import class_runs
    from tokenloom.storage.formats.classes import learned_classes, parse_policy

    found, learned = next((rows.shown for rows in chats if rows.shown), None), learned_classes(parse_policy(learn))
    return {
        "layouts": {file.source: file.options["layout"] for file in planned.inputs if file.holds_conversations},
        "template": planned.spec.chat.template,
        "place": found.place if found else None,
        "first": class_runs(planned.reference, found.tokens, found.classes, learned) if found else [],
    }


def _warnings(planned: BuildPlan, estimate: Estimate | None, chats: list[FirstRows]) -> list[str]:
    """Warn of faults in conversations, and of splits that may be empty."""
    from tokenloom.chat.rendering import stop_as_text
    from tokenloom.tasks.building.version_facts import chat_warnings, empty_splits

    warnings, chat = list[str](), planned.build.chat
    for rows in chats:
        stop = partial(stop_as_text, chat, planned.reference) if chat and rows.shown else str
        warnings += chat_warnings(f"first rows of source {rows.source}", rows.counts, stop)
    count = estimate.num_documents if estimate else 0
    shares = {name: share for name, share in planned.spec.split_shares() if 0 < share * count < _FEW_DOCUMENTS}
    return [*warnings, *empty_splits(shares, count, is_estimate=True)]


def _print_plan(out: Output, planned: BuildPlan, value: Json) -> None:
    from tokenloom.tasks.building.input_messages import input_messages, left_out_messages

    header = ["source", "files", "bytes", "partitions", "cached"]
    out.table(header, [[each[name] for name in header] for each in [*value["sources"], {"source": "all"} | value]])
    for message in (*left_out_messages(planned.left_out), *input_messages(planned.inputs)):
        out.line(message)
    state = "not built yet"
    if planned.published:
        state = "already published: a build has nothing to do; `tokenloom inspect` shows the version"
    out.line()
    out.line(f"version {planned.build.version} of {planned.spec.dataset} in {planned.spec.store}: {state}")
    end = described_end(planned.build.tokenizer.eot_id, planned.reference.eot, is_of_config=planned.eot_of_config)
    out.line(f"tokenizer {described_tokenizer(value['tokenizer'])}, end of text {end}")
    out.line(planned.choice.line(planned.reference.backend))
    if value["chat"]:
        _print_chat(out, value["chat"])
    if kept := value["kept_by_marks"]:
        out.line(f"keep keeps {kept[0]:,} of {counted(kept[1], 'row')} of marks ({percent(kept[0] / max(1, kept[1]))})")
    elif planned.spec.documents.keep:
        out.line("keep reads marks of several files: what it keeps is known once it is built")
    if value["checks"]:
        limits = ", ".join(f"{name} {limit:,}" for name, limit in value["checks"].items())
        out.line(f"checks before it is published: {limits}")
    for warning in value["warnings"]:
        out.line(f"warning: {warning}")


def _print_chat(out: Output, chat: Json) -> None:
    from tokenloom.cli.commands.peek import print_runs

    layouts = ", ".join(f"{source} has the layout {layout}" for source, layout in chat["layouts"].items())
    out.line(f"conversations: {layouts}; template {chat['template']}")
    if chat["place"]:
        out.line(f"the first, {chat['place']}; what is learned is marked:")
        print_runs(out, chat["first"], _CONVERSATION_CHARS)


def _print_estimate(out: Output, estimate: Estimate, *, is_encoded: bool, has_marks: bool) -> None:
    basis = "already encoded" if is_encoded else f"from a sample of {shown_bytes(estimate.sampled_bytes)}"
    basis += "; before keep, repeat and exclude" if has_marks else ""
    if not estimate.num_documents:
        out.line("warning: the sample has no documents; a build fails if the rest has none either")
    tokens, documents = counted(estimate.num_tokens, "token"), counted(estimate.num_documents, "document")
    out.line(f"about {tokens} in {documents} ({basis});")
    disk = f"{shown_bytes(estimate.shard_bytes)} in total, plus {shown_bytes(estimate.spill_bytes)} of new spills"
    out.line(f"{counted(estimate.num_shards, 'shard')}, {disk}, in {about(estimate.seconds)} on this machine.")


def _print_costs(out: Output, costs: Json, *, is_local: bool) -> None:
    """Print what the build costs at its store: by step if it is remote, the build is large, or prices are given."""
    from tokenloom.tasks.sizes import MAX_SPILLS

    shape = ", ".join(counted(costs[f"{what}s"], what) for what in ("spill", "run", "piece", "request"))
    out.line(f"{shape} to the store, {shown_bytes(costs['mean_read_bytes'])} a read.")
    if is_local and not costs["runs"] and costs["price"] is None:
        return
    out.table(["step", *costs["steps"]["plan"]], [[step, *cost.values()] for step, cost in costs["steps"].items()])
    paid = "" if costs["price"] is None else f", {costs['price']:,.2f} dollars"
    hours = f"{costs['machine_hours']:,} hours of this machine{paid}"
    out.line(f"{shown_bytes(costs['bytes_moved'])} moved, {shown_bytes(costs['worker_bytes'])} a worker, {hours}")
    for name, size in costs["proposed"].items():
        out.line(f"the shuffle wants less than 128 KiB of a read; more with {name}: {size:_}")
    out.line(f"create-if-absent: {costs['creates_exclusively']}; above {MAX_SPILLS:,} partitions, build --anyway")
