"""The Prefect flow `build-a-spec-file`, for people and schedules: each run reads a spec file again and builds it.

The spec file is in a folder or repository that a team reviews, and the form needs only one line of text. Prefect's form
can't save a schedule whose parameters are a whole spec.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from tokenloom.flows.build_dataset import absolute_path, build_and_report
from tokenloom.flows.runs.events import FAILURE_HOOKS
from tokenloom.spec.loading import load_spec
from tokenloom.storage.versions.tags import check_tag


def _run_name() -> str:
    return f"build-{PurePath(flow_run.parameters.get('spec_file', '')).stem}"


@flow(name="build-a-spec-file", flow_run_name=_run_name, **FAILURE_HOOKS)
def build_a_spec_file(
    spec_file: Annotated[str, Field(min_length=1)],
    limit: Annotated[int, Field(ge=0)] = 0,
    tag: str = "",
    overrides: str = "",
) -> dict[str, Any]:
    """Build a version of the dataset in a spec file, and publish it if anything changed.

    Args:
        spec_file: YAML file on the worker's machine, or a URL such as s3://bucket/news.yaml. A relative path
            starts from TOKENLOOM_HOME, which `tokenloom up` prints, paths in the file from its folder. A schedule must
            give it, although Prefect's dialog of a schedule calls every field "(Optional)".
        limit: A try-out: use only so many documents of each source, the first ones. Its tag is tryout, never latest.
            0 builds all.
        tag: A further tag that names the version afterwards, such as prod; empty for none.
        overrides: One KEY=VALUE per line, as with --set on the command line, such as seed=7.

    Returns:
        The JSON object of `tokenloom build --json`: reference, version, published, splits and more.
    """
    place, tag = absolute_path("spec_file", spec_file.strip()), tag.strip()
    if tag:
        check_tag(tag)
    lines = [line.strip() for line in overrides.splitlines() if line.strip()]
    lines += [f"limit={limit}"] if limit else []
    return build_and_report(load_spec(place, lines, os.environ.get("TOKENLOOM_HOME", ".")), tag)
