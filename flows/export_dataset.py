"""The Prefect flow `export-dataset`, which writes a version as files of another trainer."""

from __future__ import annotations

from typing import Annotated

from prefect import flow
from pydantic import Field

from tokenloom.flows.blocks import credentials_in, using_credentials
from tokenloom.flows.build_dataset import absolute_path
from tokenloom.flows.export_steps import run_export
from tokenloom.flows.runners import open_runner
from tokenloom.flows.runs.step_log import logging_steps
from tokenloom.spec.runner import ProcessRunner
from tokenloom.tasks.exporting.export import ExportResult
from tokenloom.tasks.exporting.formats.base import ExportOptions


@flow(name="export-dataset", flow_run_name="export-{reference}")
def export_dataset(
    reference: Annotated[str, Field(min_length=1)],
    format: Annotated[str, Field(min_length=1)],
    destination: Annotated[str, Field(min_length=1)],
    splits: str = "",
    learn: str = "",
    seq_len: Annotated[int, Field(ge=1)] | None = None,
    credentials: str = "",
) -> ExportResult:
    """Export a version, or finish an export that was killed.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION; the default is @latest. A relative path needs TOKENLOOM_HOME.
        format: megatron, olmo, llmc, nanogpt, datatrove, mds, litdata, huggingface or parquet.
        destination: A new folder or URL; {version} in it becomes the version, so that a schedule makes a folder each.
        splits: Names, separated by spaces. Default: all that have documents.
        learn: Of conversations, what masks let a model learn: assistant, last, all, or roles separated by commas.
        seq_len: Rows are samples of this many tokens, of mds, litdata, huggingface and parquet. Default: documents.
        credentials: Secret blocks by protocol, such as s3=prod-s3; spaces separate several.

    Returns:
        The JSON object of `tokenloom export --json`: files, bytes, documents, tokens, losses and more.
    """
    reference, destination = absolute_path("reference", reference), absolute_path("destination", destination)
    options = ExportOptions(splits.split(), learn or None, seq_len)
    chosen = credentials_in(credentials)
    with (
        using_credentials(chosen),
        open_runner(ProcessRunner(), chosen) as runner,
        logging_steps(),
    ):
        return run_export(reference, format, destination, options, runner)
