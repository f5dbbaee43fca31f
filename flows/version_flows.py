"""The Prefect flows `verify-dataset`, `export-dataset` and `collect-garbage`, for versions that are published."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.states import Completed
from pydantic import Field

from tokenloom.errors import CheckError, InputError, SpecError, message_of
from tokenloom.flows import artifacts
from tokenloom.flows.blocks import credentials_in, store_of_block, using_credentials
from tokenloom.flows.build_dataset import absolute_path, check_transform, with_absolute_paths
from tokenloom.flows.export_steps import run_export
from tokenloom.flows.runners import open_runner, run_one
from tokenloom.flows.verify_steps import run_verification
from tokenloom.spec.blocks import ProcessRunner
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.references import parse_dataset, parse_reference
from tokenloom.tasks.exporting.base import ExportOptions
from tokenloom.tasks.report.catalogue import try_to_write_catalogue
from tokenloom.tasks.retention import Collected, Policy, collect
from tokenloom.tasks.verify import VerificationResult
from tokenloom.wording import first_of, seconds_of

_MAX_NAMED = 5


@flow(name="verify-dataset", flow_run_name="verify-{reference}")
def verify_dataset(reference: str, deep: bool = False, spec: BuildSpec | None = None) -> VerificationResult:
    """Verify a version. The run fails if a file is damaged, or if `deep` found no document to encode.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION; the default is @latest. A relative path needs TOKENLOOM_HOME.
        deep: Encode 1,000 documents again from their sources.
        spec: Says where the sources are now, and which runner to use. Default: the sources in build.json.

    Returns:
        The JSON object of `tokenloom verify --json`: reference, version, files, bytes, damages and more.
    """
    reference = absolute_path("reference", reference)
    if spec:
        check_transform(spec)
        spec = with_absolute_paths(spec)
    credentials = spec.credentials if spec else []
    where = spec.runner if spec else ProcessRunner()
    with using_credentials(credentials), open_runner(where, credentials) as runner:
        result = run_verification(reference, deep, spec if deep else None, runner)
    artifacts.show_verification(parse_reference(reference).dataset, result)
    if result["damages"]:
        raise CheckError(_message(result))
    if deep and not result["documents_encoded_again"]:
        raise InputError(f"{result['reference']}: no document could be encoded again: {'; '.join(result['warnings'])}")
    return result


def _message(result: VerificationResult) -> str:
    files = [row["file"] for row in result["damages"]]
    return (
        f"{result['reference']}: {len(files):,} damaged: {first_of(files, _MAX_NAMED)}; the artifact of this run "
        "describes each damage and the next step"
    )


@flow(name="export-dataset", flow_run_name="export-{reference}")
def export_dataset(
    reference: Annotated[str, Field(min_length=1)],
    format: Annotated[str, Field(min_length=1)],
    destination: Annotated[str, Field(min_length=1)],
    splits: str = "",
    learn: str = "",
    seq_len: Annotated[int, Field(ge=1)] | None = None,
    credentials: str = "",
) -> dict[str, Any]:
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
    with using_credentials(chosen), open_runner(ProcessRunner(), chosen) as runner:
        return run_export(reference, format, destination, options, runner)


@flow(name="collect-garbage", flow_run_name="collect-{dataset}")
def collect_garbage(
    dataset: Annotated[str, Field(min_length=1)],
    keep_last: Annotated[int, Field(ge=0)] = 3,
    grace: str = "14d",
    delete: bool = True,
    credentials: str = "",
) -> dict[str, Any]:
    """Delete versions that no tag and no rule keeps, and leftovers of builds.

    Args:
        dataset: STORE/DATASET, such as s3://corpora/store/news. A relative path needs TOKENLOOM_HOME. A schedule must
            give it, although Prefect's dialog of a schedule calls every field "(Optional)".
        keep_last: Keep this many of the versions that were published last.
        grace: Keep what was written less than this time ago: 12h, 30m, 14d.
        delete: Delete; if not, only show what a run would delete.
        credentials: Secret blocks by protocol, such as s3=prod-s3; spaces separate several. Default: the credentials in
            the worker's environment.

    Returns:
        The JSON object of `tokenloom gc --json`: deleted, kept, leftovers, bytes and more.
    """
    store = parse_dataset(absolute_path("dataset", store_of_block("dataset", dataset.strip().rstrip("/"))))
    try:
        policy = Policy(keep_last, seconds_of(grace.strip()))
    except ValueError as error:
        raise SpecError(f"grace: {message_of(error)}") from error
    with using_credentials(credentials_in(credentials)):
        found: Collected = run_one("collect", lambda: collect(store, policy, delete=delete))
        problem = try_to_write_catalogue(store) if found.deleted and delete else None
    if problem:
        get_run_logger().warning("%s", problem)
    artifacts.show_collection(found)
    done: Any = Completed(message=found.line(), data=found.to_json())
    return done  # type: ignore[no-any-return]  # Prefect returns its data
