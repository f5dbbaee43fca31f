"""The Prefect flow `rebuild-dataset`, for schedules: each run reads a spec file again and builds it.

The spec file is in a folder or repository that a team reviews, and the form of a schedule needs only one line of text.
Prefect's form can't save a schedule whose parameters are a whole spec.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from tokenloom.flows.build_dataset import absolute_path, build_and_report
from tokenloom.flows.runs.hooks import HOOKS
from tokenloom.spec.loading import load_spec


@flow(name="rebuild-dataset", **HOOKS)
def rebuild_dataset(
    spec_file: Annotated[str, Field(min_length=1)],
    overrides: str = "",
) -> dict[str, Any]:
    """Build a version of the dataset in a spec file, and publish it if anything changed.

    Args:
        spec_file: YAML file on the worker's machine, or a URL such as s3://bucket/news.yaml. A relative path
            starts from TOKENLOOM_HOME, paths in the file from its folder. A schedule must give it, although Prefect's
            dialog of a schedule calls every field "(Optional)".
        overrides: One KEY=VALUE per line, as with --set on the command line, such as limit=1000.

    Returns:
        The JSON object of `tokenloom build --json`: reference, version, published, splits and more.
    """
    place = absolute_path("spec_file", spec_file.strip())
    lines = [line.strip() for line in overrides.splitlines() if line.strip()]
    return build_and_report(load_spec(place, lines, os.environ.get("TOKENLOOM_HOME", ".")))
