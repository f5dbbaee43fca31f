"""The Prefect flow `collect-garbage`, which deletes the versions of a dataset that nothing keeps."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.states import Completed
from pydantic import Field

from tokenloom.errors import SpecError, message_of
from tokenloom.flows.blocks import credentials_in, store_of_block, using_credentials
from tokenloom.flows.build_dataset import absolute_path
from tokenloom.flows.runners import run_one
from tokenloom.flows.runs import report
from tokenloom.storage.versions.references import parse_dataset
from tokenloom.tasks.report.catalogue import try_to_write_catalogue
from tokenloom.tasks.retention.collect import Collected, Policy, collect
from tokenloom.wording import seconds_of


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
    place = store_of_block("dataset", dataset.strip().rstrip("/"))
    store = parse_dataset(absolute_path("dataset", place))
    try:
        policy = Policy(keep_last, seconds_of(grace.strip()))
    except ValueError as error:
        raise SpecError(f"grace: {message_of(error)}") from error
    with using_credentials(credentials_in(credentials)):
        found: Collected = run_one("collect", lambda: collect(store, policy, delete=delete))
        problem = try_to_write_catalogue(store) if found.deleted and delete else None
    if problem:
        get_run_logger().warning("%s", problem)
    report.show_collection(found)
    done: Any = Completed(message=found.line(), data=found.to_json())
    return done  # type: ignore[no-any-return]  # Prefect returns its data
