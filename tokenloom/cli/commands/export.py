"""`tokenloom export`: write a version in the format of another trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from tokenloom.cli.arguments import LEARN, Argument, Ref, Workers, positive
from tokenloom.cli.display import showing_progress
from tokenloom.cli.output import Output, Result
from tokenloom.errors import SpecError
from tokenloom.tasks.exporting.base import ExportOptions
from tokenloom.tasks.exporting.export import FORMATS
from tokenloom.wording import counted, shown_bytes


def export(
    reference: Ref,
    format: Annotated[
        str, Argument("FORMAT", choices=list(FORMATS), help=f"the format of the files: {', '.join(FORMATS)}")
    ],
    destination: Annotated[str, Argument("DESTINATION")],
    *,
    split: Sequence[str] = (),
    learn: Annotated[str | None, LEARN] = None,
    unit: Literal["document", "sample"] = "document",
    seq_len: Annotated[int | None, Argument("T", positive)] = None,
    workers: Workers = None,
    out: Output,
) -> Result:
    """Write a version as files of another trainer.

    Run it again after a failure: it continues where it stopped.

    Args:
        destination: a new folder: a local path or a URL
        split: the split to write; may be repeated (default: all that have documents)
        unit: of mds, litdata, huggingface and parquet: what a row holds
        seq_len: with --unit sample: tokens in a sample

    Example:
        export store/news megatron exported
    """
    from tokenloom.flows.export_steps import export_directly
    from tokenloom.tasks.running.workers import chosen_num_workers

    if (unit == "sample") != (seq_len is not None):
        raise SpecError("--unit sample and --seq-len: give both or neither")
    options = ExportOptions(list(split), learn, seq_len)
    with showing_progress():
        result = export_directly(reference, format, destination, options, chosen_num_workers(workers))
    out.line(f"{result['reference']}: {counted(result['documents'], 'document')}, {counted(result['tokens'], 'token')}")
    files = f"{counted(result['files'], 'file')} of {result['format']}, {shown_bytes(result['bytes'])}"
    out.line(f"  {files}{' were there already' if result['existed'] else ''} in {result['destination']}")
    return Result(dict(result))
