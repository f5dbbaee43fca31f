"""The Prefect flow `verify-dataset`, which reads every byte of a version and names every damaged file."""

from __future__ import annotations

from prefect import flow

from tokenloom.errors import CheckError, InputError
from tokenloom.flows.blocks import using_credentials
from tokenloom.flows.build_dataset import absolute_path, check_transform, with_absolute_paths
from tokenloom.flows.runners import open_runner
from tokenloom.flows.runs import report
from tokenloom.flows.runs.step_log import logging_steps
from tokenloom.flows.verify_steps import run_verification
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.runner import ProcessRunner
from tokenloom.storage.versions.references import parse_reference
from tokenloom.tasks.verification.verify import VerificationResult

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
    with (
        using_credentials(credentials),
        open_runner(spec.runner if spec else ProcessRunner(), credentials) as runner,
        logging_steps(),
    ):
        result = run_verification(reference, deep, spec if deep else None, runner)
    report.show_verification(parse_reference(reference).dataset, result)
    if result["damages"]:
        raise CheckError(_message(result))
    if deep and not result["documents_encoded_again"]:
        raise InputError(f"{result['reference']}: no document could be encoded again: {'; '.join(result['warnings'])}")
    return result


def _message(result: VerificationResult) -> str:
    files = [row["file"] for row in result["damages"]]
    more = f" and {len(files) - _MAX_NAMED:,} more" if len(files) > _MAX_NAMED else ""
    return (
        f"{result['reference']}: {len(files):,} damaged: {', '.join(files[:_MAX_NAMED])}{more}; the artifact of this "
        "run describes each damage and the next step"
    )
