"""The Prefect flow `collect-garbage`, which retires and deletes the versions of a dataset that nobody keeps."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, get_run_logger
from pydantic import Field

from tokenloom.errors import SpecError, message_of
from tokenloom.flows.blocks import credentials_in, store_of_block, using_credentials
from tokenloom.flows.build_dataset import absolute_path
from tokenloom.flows.runners import run_one
from tokenloom.flows.runs import report
from tokenloom.flows.runs.hooks import HOOKS, completed_with
from tokenloom.storage.versions.references import parse_dataset
from tokenloom.tasks.report.catalogue import try_to_write_catalogue
from tokenloom.tasks.retention.collect import Collected, collect, collection_line
from tokenloom.tasks.retention.policy import Policy
from tokenloom.wording import seconds_of


@flow(name="collect-garbage", **HOOKS)
def collect_garbage(
    dataset: Annotated[str, Field(min_length=1)],
    keep_last: Annotated[int, Field(ge=0)] = 3,
    keep_days: Annotated[float, Field(ge=0)] = 30,
    grace: str = "24h",
    keep_work: str = "7d",
    dry_run: bool = False,
    credentials: str = "",
) -> dict[str, Any]:
    """Retire versions that no rule, tag or lease keeps; delete those that an earlier run retired, and leftovers.

    Args:
        dataset: STORE/DATASET, such as s3://corpora/store/news. A relative path needs TOKENLOOM_HOME. A schedule must
            give it, although Prefect's dialog of a schedule calls every field "(Optional)".
        keep_last: Keep this many of the versions that were published last.
        keep_days: Keep versions that were published less than this many days ago.
        grace: How long a version stays retired before a run deletes it: 24h, 30m, 7d.
        keep_work: How long versions that are not published stay, and spills that no version uses.
        dry_run: Change nothing; show what a run would do.
        credentials: Secret blocks by protocol, such as s3=prod-s3; spaces separate several. Default: the credentials in
            the worker's environment.

    Returns:
        The JSON object of `tokenloom gc --json`: deleted, retired, kept, bytes and more.
    """
    place = store_of_block("dataset", dataset.strip().rstrip("/"))
    store = parse_dataset(absolute_path("dataset", place))
    policy = Policy(keep_last, keep_days, _seconds("grace", grace), _seconds("keep_work", keep_work))
    with using_credentials(credentials_in(credentials)):
        found: Collected = run_one("collect", lambda: collect(store, policy, dry_run=dry_run))
        problem = try_to_write_catalogue(store) if found.deleted and not dry_run else None
    if problem:
        get_run_logger().warning("%s", problem)
    report.name_run(found.dataset, "collected")
    report.show_collection(found)
    return completed_with(collection_line(found), found.to_json())  # type: ignore[return-value]  # Prefect returns its data


def _seconds(name: str, text: str) -> float:
    try:
        return seconds_of(text.strip())
    except ValueError as error:
        raise SpecError(f"{name}: {message_of(error)}") from error
