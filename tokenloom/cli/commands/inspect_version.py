"""`tokenloom inspect`: show what a version contains."""

from __future__ import annotations

from dataclasses import asdict

from tokenloom.cli.arguments import Ref
from tokenloom.cli.output import Output, Result
from tokenloom.storage.versions.published import find_build_record, read_inputs
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.tasks.building.version_facts import VersionFacts
from tokenloom.wording import counted, counted_rows, described_tokenizer, percent


def run(reference: Ref, *, out: Output) -> Result:
    """Show a version's manifest and inputs, and what build.json says of its checks and empty parts."""
    store, manifest = resolve(parse_reference(reference))
    inputs = read_inputs(store, manifest)
    build = find_build_record(store, manifest.version)
    facts = VersionFacts(store, manifest, build)
    out.line(facts.reference)
    out.line(f"  tokenizer  {described_tokenizer(facts.tokenizer)}, end of text {manifest.tokenizer.eot_id}")
    num_bytes = sum(entry.bytes for entry in inputs)
    out.line(f"  inputs     {counted(len(inputs), 'file')}, {counted(num_bytes, 'byte')}")
    out.line(f"  rows       {counted_rows(manifest.row_counts)}")
    if num_pruned := build.measured.get("rows_not_read") if build else None:
        out.line(
            f"             {num_pruned:,} of those filtered were not read: their paths or statistics rule them out"
        )
    if found := facts.conversations:
        learned = f"{percent(found.learned_share)} of the tokens are learned by default"
        chats = f"{counted(found.conversations, 'conversation')}, {counted(found.turns, 'ended turn')} of the assistant"
        out.line(f"  chat       {chats}; {learned}" if found.conversations else f"  masks      {learned}")
        roles = (f"{role} {count:,}" for role, count in found.tokens.items())
        out.line(f"  roles      {', '.join(roles)}")
    splits = [
        [name, split.tokens, split.documents, split.duplicates, len(split.shards), split.shard_bytes]
        for name, split in manifest.splits.items()
    ]
    out.line()
    out.table(["split", "tokens", "documents", "duplicates", "shards", "bytes"], splits)
    for warning in facts.warnings:
        out.line(f"warning: {warning}")
    out.line(facts.file_check)
    gates = [asdict(gate) for gate in facts.recorded_gates]
    shown = {"inputs": [asdict(entry) for entry in inputs], "gates": gates, "warnings": facts.warnings}
    if found:
        shown["conversations"] = asdict(found)
    return Result(manifest.json() | shown)
