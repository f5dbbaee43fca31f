"""What each command does: plain functions that print for people and return what `--json` prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenloom.cli.output import Json, print_line, print_table, printable
from tokenloom.errors import FormatError, SpecError, StoreError
from tokenloom.storage.formats.manifest import ordered_rows
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.stores import open_store
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.versions import (
    dataset_store,
    load_manifest,
    parse_reference,
    published_versions,
    read_inputs,
    resolve,
)
from tokenloom.words import about, counted, described_tokenizer


def init(path: str, quiet: bool) -> Json:
    """Write a starter spec; an existing file is left alone."""
    from tokenloom.cli.starter import STARTER_SPEC

    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(STARTER_SPEC)
    except FileExistsError as error:
        raise SpecError(f"{path}: it exists already; choose another name") from error
    except OSError as error:
        raise SpecError(f"{path}: can't be written: {error.strerror}") from error
    print_line(quiet, f"wrote {path}: set its sources, then run `tokenloom plan {path}` and `tokenloom build {path}`")
    return {"path": path}


def plan(spec: str, set: list[str], limit: int | None, quiet: bool) -> Json:
    """Show what a build would read and make, and what of it is cached; refuse it if the disk can't hold it."""
    from tokenloom.flows.direct import check_direct, plan_directly
    from tokenloom.tasks.estimate import check_disk
    from tokenloom.tasks.running.workers import chosen_num_workers

    loaded = _load_limited(spec, set, limit)
    check_direct(loaded, "plan here without it (--set)")
    planned, estimate = plan_directly(loaded, chosen_num_workers(loaded.runner.workers))
    rows = [_source_row(planned, name) for name in planned.spec.source_names()]
    header = ["source", "files", "bytes", "partitions", "cached"]
    totals = {name: sum(row[i + 1] for row in rows) for i, name in enumerate(header[1:])}
    print_table(quiet, header, [*rows, ["all", *totals.values()]])
    _print_plan(quiet, planned, estimate)
    if estimate and not planned.published:
        check_disk(planned, estimate)
    return {
        "dataset": planned.spec.dataset,
        "version": planned.version,
        "published": planned.published,
        "tokenizer": planned.tokenizer,
        **totals,
        "estimate": asdict(estimate) if estimate else None,
        "sources": [dict(zip(header, row, strict=True)) for row in rows],
        "left_out": planned.left_out,
    }


def _with_eot(tokenizer: Json) -> str:
    return f"{described_tokenizer(tokenizer)}, end of text {tokenizer['eot_id']}"


def _source_row(planned: Any, name: str) -> list[Any]:
    files = [i for i, file in enumerate(planned.inputs) if file.source == name]
    parts = [p for p in planned.partitions if planned.inputs[p.input_index].source == name]
    num_bytes = sum(planned.inputs[i].num_bytes for i in files)
    return [name, len(files), num_bytes, len(parts), sum(p.spill in planned.cached for p in parts)]


def _print_plan(quiet: bool, planned: Any, estimate: Any) -> None:
    from tokenloom.tasks.inputs import header_messages, left_out_messages

    state = "published already: a build has nothing to do" if planned.published else "not built yet"
    for message in (*left_out_messages(planned.left_out), *header_messages(planned.inputs)):
        print_line(quiet, message)
    print_line(quiet, f"\nversion {planned.version} of {planned.spec.dataset} in {planned.spec.store}: {state}")
    print_line(quiet, f"tokenizer {_with_eot(planned.tokenizer)}")
    if estimate and not planned.published:
        _print_estimate(quiet, estimate, is_encoded=not planned.missing)
    print_line(
        quiet,
        "Only encoding is incremental: a version is a full copy of its tokens, and the spills in work/ take",
    )
    print_line(quiet, "about as much again. Changing the split shares can move documents between splits.")


def _print_estimate(quiet: bool, estimate: Any, *, is_encoded: bool) -> None:
    from tokenloom.tasks.estimate import gigabytes

    basis = "already encoded" if is_encoded else f"from a sample of {gigabytes(estimate.sampled_bytes)}"
    if not estimate.num_documents:
        print_line(quiet, "warning: the sample holds no document; a build fails if the rest holds none either")
    print_line(
        quiet,
        f"about {counted(estimate.num_tokens, 'token')} in {counted(estimate.num_documents, 'document')} ({basis});",
    )
    print_line(
        quiet,
        f"{counted(estimate.num_shards, 'shard')} of {gigabytes(estimate.shard_bytes)} and new spills of "
        f"{gigabytes(estimate.spill_bytes)}, in {about(estimate.seconds)} on this machine.",
    )


def _load_limited(spec: str, overrides: list[str], limit: int | None) -> Any:
    from tokenloom.spec.spec_file import load_spec

    return load_spec(spec, [*overrides, *([f"limit={limit}"] if limit is not None else [])])


def build(spec: str, set: list[str], limit: int | None, workers: int | None, direct: bool, quiet: bool) -> Json:
    """Build and publish a version."""
    from tokenloom.tasks.messages.outcome import outcome_lines, reading_lines

    result = run_build(_load_limited(spec, set, limit), workers, direct)
    for line in outcome_lines(result):
        print_line(quiet, line)
    splits = [[name, *counts.values()] for name, counts in result["splits"].items()]
    print_table(quiet, ["split", "tokens", "documents", "shards"], splits)
    if left := {fate: n for fate, n in ordered_rows(result["rows"]).items() if n and fate not in ("read", "kept")}:
        listed = "; quarantine.jsonl lists those" if "quarantined" in left else ""
        counts = ", ".join(f"{n:,} {fate}" for fate, n in left.items())
        print_line(quiet, f"of {counted(result['rows']['read'], 'row')} left out: {counts}{listed}")
    for source, reasons in result["quarantined"].items():
        print_line(quiet, f"  {source}: " + ", ".join(f"{n:,} {reason}" for reason, n in reasons.items()))
    if result["tag"] != "latest":
        print_line(quiet, f"a try-out of the first documents of each source: its tag is {result['tag']}, never latest")
    elif result["tag_moved"] and not result["published"]:
        print_line(quiet, f"latest names {result['version']} now")
    if result["tag_note"]:
        print_line(quiet, f"the tag was left alone: {result['tag_note']}")
    print_line(quiet, reading_lines(result["reference"]))
    return result


def run_build(spec: Any, workers: int | None, direct: bool) -> Json:
    """Run a build with progress on stderr, as a Prefect flow or directly; return its result."""
    from tokenloom.cli.display import showing_progress

    spec = spec.with_workers(workers)
    if direct:
        from tokenloom.flows.direct import build_as_spec_says

        with showing_progress():
            return build_as_spec_says(spec).to_json()
    from tokenloom.server.prefect_session import run_flow

    with showing_progress():
        return run_flow(spec)


def ls(store: str, quiet: bool) -> Json:
    """List the datasets of a store, or the versions of a dataset."""
    folder = open_store(store)
    names = set(folder.names(""))
    if not names and not folder.exists(""):
        raise StoreError(f"{store}: no such store or dataset; a build makes it")
    if names & {"versions", "tags"}:
        return _list_versions(folder, quiet)
    found = [
        _dataset_row(dataset_store(str(folder.root), name), name) for name in sorted(filter(NAME_PATTERN.match, names))
    ]
    datasets = [row for row in found if row]
    cells = [[row["dataset"], row["versions"], row["damage"] or row["latest"] or "-"] for row in datasets]
    print_table(quiet, ["dataset", "versions", "latest"], cells)
    return {"store": str(folder.root), "datasets": datasets}


def _dataset_row(store: Store, name: str) -> Json | None:
    """Return what `ls` says of a dataset, None if nothing was ever published in it."""
    versions = published_versions(store)
    latest, damage = _named_by(store, "latest")
    if not versions and latest is None and damage is None:
        return None
    return {"dataset": name, "versions": len(versions), "latest": latest, "damage": damage}


def _named_by(store: Store, tag: str) -> tuple[str | None, str | None]:
    """Return the version that a tag names, or what is damaged about it."""
    try:
        newest = tags.newest(store, tag)
    except (FormatError, StoreError) as error:
        _raise_if_remote(store, error)
        return None, f"damaged: tags/{tag}; see `tokenloom verify`"
    return newest.version if newest else None, None


def _list_versions(store: Store, quiet: bool) -> Json:
    named: dict[str, list[str]] = {}
    damages = []
    for tag in store.names("tags"):
        version, damage = _named_by(store, tag)
        if version:
            named.setdefault(version, []).append(tag)
        damages += [damage] if damage else []
    versions = [_version_row(store, name, named.get(name, [])) for name in published_versions(store)]
    counts = ("tokens", "documents", "bytes")
    rows = [
        [v["version"], *(v[key] if v["damage"] is None else "damaged" for key in counts), ", ".join(v["tags"])]
        for v in versions
    ]
    print_table(quiet, ["version", *counts, "tags"], rows)
    damages += [v["damage"] for v in versions if v["damage"]]
    for damage in damages:
        print_line(quiet, printable(damage))
    return {"dataset": str(store.root).rpartition("/")[2], "versions": versions, "damages": damages}


def _version_row(store: Store, version: str, names: list[str]) -> Json:
    """Return what `ls` says of a version; of a damaged one only that it is."""
    row: Json = {"version": version, "tags": names, "tokens": None, "documents": None, "bytes": None, "damage": None}
    try:
        splits = load_manifest(store, version)["splits"].values()
    except (FormatError, StoreError) as error:
        _raise_if_remote(store, error)
        place = f"{store.root}@{version}"
        return row | {"damage": f"{error}; `tokenloom verify {place}` says what to do"}
    counts = {key: sum(split[key] for split in splits) for key in ("tokens", "documents")}
    return row | counts | {"bytes": sum(shard["bytes"] for split in splits for shard in split["shards"])}


def _raise_if_remote(store: Store, error: Exception) -> None:
    """Raise an error of a remote store, which may answer the next time; of a local one the file is to blame."""
    if isinstance(error, StoreError) and not store.is_local:
        raise error


def inspect(reference: str, quiet: bool) -> Json:
    """Show what a version holds: its manifest, and its inputs."""
    store, manifest = resolve(parse_reference(reference))
    inputs = read_inputs(store, manifest)
    print_line(quiet, f"{store.root}@{manifest['version']}")
    print_line(quiet, f"  tokenizer  {_with_eot(manifest['tokenizer'])}")
    num_bytes = sum(item["bytes"] for item in inputs)
    print_line(quiet, f"  inputs     {counted(len(inputs), 'file')}, {counted(num_bytes, 'byte')}")
    rows = ordered_rows(manifest["rows"])
    print_line(quiet, "  rows       " + ", ".join(f"{count:,} {name}" for name, count in rows.items()))
    splits = [
        [
            name,
            s["tokens"],
            s["documents"],
            s["duplicates"],
            len(s["shards"]),
            sum(x["bytes"] for x in s["shards"]),
        ]
        for name, s in manifest["splits"].items()
    ]
    print_line(quiet)
    print_table(quiet, ["split", "tokens", "documents", "duplicates", "shards", "bytes"], splits)
    return manifest | {"inputs": inputs}


def demo(dir: str, updates: int, workers: int | None, direct: bool, quiet: bool) -> Json:
    """Build a dataset from the standard library's sources, read it back, train a small model on it."""
    from tokenloom.cli.demo import run_demo

    if "://" in dir:
        raise SpecError("--dir: the demo writes into a local folder; a URL is none")
    return run_demo(
        Path(dir), updates, lambda spec: run_build(spec, workers, direct), lambda text: print_line(quiet, text)
    )
