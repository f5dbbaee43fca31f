"""`tokenloom inspect`: show what a version contains."""

from __future__ import annotations

import argparse

from tokenloom.cli.argument_types import add_reference
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.storage.formats.manifest import ordered_rows
from tokenloom.storage.versions.versions import parse_reference, read_inputs, resolve
from tokenloom.wording import counted, described_tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)


def run(reference: str, out: Output) -> JsonResult:
    """Show a version's manifest and inputs."""
    store, manifest = resolve(parse_reference(reference))
    inputs = read_inputs(store, manifest)
    out.line(f"{store.root}@{manifest['version']}")
    tokenizer = manifest["tokenizer"]
    out.line(f"  tokenizer  {described_tokenizer(tokenizer)}, end of text {tokenizer['eot_id']}")
    num_bytes = sum(item["bytes"] for item in inputs)
    out.line(f"  inputs     {counted(len(inputs), 'file')}, {counted(num_bytes, 'byte')}")
    rows = ordered_rows(manifest["rows"])
    out.line("  rows       " + ", ".join(f"{count:,} {name}" for name, count in rows.items()))
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
    out.line()
    out.table(["split", "tokens", "documents", "duplicates", "shards", "bytes"], splits)
    return JsonResult(manifest | {"inputs": inputs})
