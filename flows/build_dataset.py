"""The Prefect flow `build-dataset`: raw text in, a published version of token shards out.

Prefect caches nothing: the store is the one truth, and a step that finds its valid result returns at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect import flow

from tokenloom.errors import SpecError
from tokenloom.flows import report
from tokenloom.flows.blocks import using_credentials, with_store_of_block
from tokenloom.flows.build_steps import run_build
from tokenloom.flows.run_hooks import BUILD_HOOKS, begin, completed
from tokenloom.flows.run_log import logging_progress
from tokenloom.flows.runners import open_runner, run_one
from tokenloom.spec.base import is_absolute
from tokenloom.spec.build_spec import BuildSpec


@flow(name="build-dataset", **BUILD_HOOKS)
def build_dataset(spec: BuildSpec) -> dict[str, Any]:
    """Build a version of a dataset and publish it.

    Args:
        spec: What to build: sources, tokenizer, splits, store. Relative paths need TOKENLOOM_HOME.

    Returns:
        reference, version, published, splits: as `tokenloom build --json` prints them.
    """
    return build_and_report(spec)


def build_and_report(spec: BuildSpec) -> dict[str, Any]:
    """Build and publish in a flow run, and show there what became of it; return what the flow returns."""
    begin(spec.dataset)
    result = _build(spec)
    if result["published"]:
        report.emit_published(spec.dataset, result)
        with using_credentials(spec.credentials):
            report.show_result(result)
    return completed(result)  # type: ignore[return-value]  # Prefect returns its data


def _build(spec: BuildSpec) -> dict[str, Any]:
    spec = with_absolute_paths(with_store_of_block(spec))
    with (
        using_credentials(spec.credentials),
        open_runner(spec.runner, spec.credentials) as (num_workers, run_each),
        logging_progress(),
    ):
        return run_build(spec, num_workers, run_one, run_each).to_json()


def with_absolute_paths(spec: BuildSpec) -> BuildSpec:
    """Make relative paths absolute from TOKENLOOM_HOME; a worker's own folder means nothing to whoever wrote them."""
    for key, path in spec.paths():
        absolute_path(key, path)
    home = os.environ.get("TOKENLOOM_HOME")
    return spec.resolve(Path(home)) if home else spec


def absolute_path(key: str, path: str) -> str:
    """Return a path or URL, made absolute from TOKENLOOM_HOME; raises SpecError, naming `key`, without that."""
    if path.startswith("~"):
        return str(Path(path).expanduser())
    if is_absolute(path):
        return path
    home = os.environ.get("TOKENLOOM_HOME")
    if not home:
        raise SpecError(
            f"{key}: {path!r} is relative, which says nothing in a deployment; write an absolute path or a URL, or set "
            "TOKENLOOM_HOME where the worker runs"
        )
    return str((Path(home) / path).absolute())
