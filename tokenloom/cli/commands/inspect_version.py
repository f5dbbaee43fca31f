"""`tokenloom inspect`: show what a version contains."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tokenloom.cli.argument_types import add_reference
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.storage.formats.manifest import ordered_rows
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.wording import counted, described_tokenizer, fates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)


def run(reference: str, out: Output) -> JsonResult:
    """Show a version's manifest and inputs."""
    store, manifest = resolve(parse_reference(reference))
    inputs = read_inputs(store, manifest)
    out.line(f"{store.root}@{manifest.version}")
    tokenizer = manifest.tokenizer
    out.line(f"  tokenizer  {described_tokenizer(asdict(tokenizer))}, end of text {tokenizer.eot_id}")
    num_bytes = sum(entry.bytes for entry in inputs)
    out.line(f"  inputs     {counted(len(inputs), 'file')}, {counted(num_bytes, 'byte')}")
    out.line(f"  rows       {fates(ordered_rows(manifest.row_counts))}")
    splits = [
        [
            name,
            split.tokens,
            split.documents,
            split.duplicates,
            len(split.shards),
            split.shards.num_bytes(),
        ]
        for name, split in manifest.splits.items()
    ]
    out.line()
    out.table(["split", "tokens", "documents", "duplicates", "shards", "bytes"], splits)
    return JsonResult(manifest.raw | {"inputs": [asdict(entry) for entry in inputs]})
