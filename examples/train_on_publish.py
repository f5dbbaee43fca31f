"""Train whenever a build publishes a version: a Prefect deployment, and the automation that starts it.

    python -m tokenloom.examples.train_on_publish news

creates the deployment `train-on-publish/train` on the server in PREFECT_API_URL or of a running `tokenloom up`. Each
version of the dataset that is tagged `latest` then starts a run of it. Put your own training in place of `train`.
"""

from __future__ import annotations

import argparse
import re

from prefect import flow
from prefect.deployments.runner import RunnerDeployment
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.types.entrypoint import EntrypointType

from tokenloom.automations import TAG, install_publication_automation
from tokenloom.errors import TokenloomError
from tokenloom.examples.train_small import train
from tokenloom.server.known_server import known_url
from tokenloom.spec.syntax import NAME_PATTERN


@flow(name="train-on-publish", log_prints=True)
def train_on_publish(reference: str, updates: int = 3000) -> float:
    """Train a small model on a version and return its test loss.

    Args:
        reference: STORE/DATASET@VERSION, from the event of its publication.
        updates: Training steps.
    """
    test_loss = train(reference, updates)["test"]
    assert isinstance(test_loss, float)
    return test_loss


def install(dataset: str, updates: int) -> str:
    """Deploy the flow to the work pool `tokenloom` and install its automation; return the automation's name."""
    if not re.match(NAME_PATTERN, dataset):
        raise TokenloomError(f"{dataset!r} is not a dataset name: use lower-case letters, digits, '.', '_', '-'")
    from tokenloom.examples import train_on_publish as module  # run as a script, this file has no importable name

    deployment = RunnerDeployment.from_flow(
        module.train_on_publish,
        name="train",
        parameters={"updates": updates},
        tags=[TAG],
        work_pool_name="tokenloom",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    deployment.apply()
    return install_publication_automation(dataset, "train-on-publish/train")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train whenever a build publishes a version of a dataset.")
    parser.add_argument("dataset", help="name of the dataset")
    parser.add_argument("--updates", type=int, default=3000, help="training steps (default: 3000)")
    arguments = parser.parse_args()
    try:
        url = known_url()
        if url is None:
            raise TokenloomError("no Prefect server: set PREFECT_API_URL, or run `tokenloom up`")
        with temporary_settings({PREFECT_API_URL: url}):
            print(f"installed: {install(arguments.dataset, arguments.updates)}")
    except TokenloomError as error:
        raise SystemExit(f"train_on_publish: {error}") from error
