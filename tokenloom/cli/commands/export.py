"""`tokenloom export`: write a version as files of another trainer."""

from __future__ import annotations

import argparse

from tokenloom.cli.argument_types import add_reference, add_workers, positive
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.errors import SpecError
from tokenloom.tasks.exporting.formats import FORMATS
from tokenloom.tasks.exporting.formats.base import ExportOptions
from tokenloom.wording import counted, shown_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument(
        "format", metavar="FORMAT", choices=list(FORMATS), help=f"the format of the files: {', '.join(FORMATS)}"
    )
    parser.add_argument("destination", metavar="DESTINATION", help="a new folder: a local path or a URL")
    parser.add_argument(
        "--split",
        action="append",
        default=[],
        help="the split to write; may be repeated (default: all that have documents)",
    )
    parser.add_argument(
        "--learn",
        metavar="POLICY",
        help="of conversations: whose tokens the masks let a model learn: assistant, last, all, or roles separated by "
        "commas (default: assistant)",
    )
    parser.add_argument(
        "--unit",
        choices=["document", "sample"],
        default="document",
        help="of mds, litdata, huggingface and parquet: what a row holds (default: document)",
    )
    parser.add_argument("--seq-len", type=positive, metavar="T", help="with --unit sample: tokens in a sample")
    add_workers(parser)


def run(
    reference: str,
    format: str,
    destination: str,
    split: list[str],
    learn: str | None,
    unit: str,
    seq_len: int | None,
    workers: int | None,
    out: Output,
) -> JsonResult:
    """Export a version, or finish an export that was killed.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        format: the name of a format.
        destination: a new folder.
        split: some of the version's splits; none for all.
        learn: a policy of masks.
        unit: "document" or "sample".
        seq_len: the tokens of a sample; None for documents.
        workers: processes; None for one per core.
        out: prints the result.

    Raises:
        SpecError: the version does not fit into the format, or an option is wrong.
        StoreError: the version does not exist, something else is at the destination, or a store fails.
        FormatError: a file of the version is damaged.
    """
    from tokenloom.flows.direct import export_directly
    from tokenloom.tasks.running.workers import chosen_num_workers

    if (unit == "sample") != (seq_len is not None):
        raise SpecError("--unit sample and --seq-len: give both or neither")
    options = ExportOptions(split, learn, seq_len)
    with showing_progress():
        found = export_directly(reference, format, destination, options, chosen_num_workers(workers))
    what = f"{counted(found['documents'], 'document')}, {counted(found['tokens'], 'token')}"
    files = f"{counted(found['files'], 'file')} of {found['format']}, {shown_bytes(found['bytes'])}"
    out.line(f"{found['reference']}: {what}")
    out.line(f"  {files}{' were there already' if found['existed'] else ''} in {found['destination']}")
    return JsonResult(dict(found))
