"""The Prefect flows `build-dataset` and `build-a-spec-file`, which publish versions of token shards.

Prefect caches nothing. Only the store decides what exists: a build makes what is not there yet. A run of
build-a-spec-file reads a file again that a team reviews, and its form needs one line of text: Prefect's form can't save
a schedule whose parameters are a whole spec. Both emit an event when a version is published, and when the build fails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import Event, emit_event
from prefect.flows import Flow
from prefect.runtime import deployment as this_deployment
from prefect.runtime import flow_run as this_run
from prefect.states import Completed
from pydantic import Field

from tokenloom.errors import SpecError, WorkerLost, WorkError, message_of, one_line
from tokenloom.flows import artifacts
from tokenloom.flows.blocks import using_credentials, with_store_of_block
from tokenloom.flows.build_steps import run_build
from tokenloom.flows.runners import open_runner
from tokenloom.spec.base import is_absolute, join_path
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec
from tokenloom.storage.formats.manifest import NAME_PATTERN
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.tag_moves import check_tag, move_by_hand
from tokenloom.tasks.building import preload_build
from tokenloom.tasks.building.outcome import outcome, outcome_line, reading_lines
from tokenloom.tasks.building.publish import BuildResult
from tokenloom.wording import redacted

TRANSFORMS = "TOKENLOOM_TRANSFORMS"  # the modules, separated by commas, whose functions a deployment's runs may call

_DATASET = "tokenloom.dataset"  # a label of flow runs
# Fields of a build's result that the event `tokenloom.dataset.published` contains.
_PUBLISHED = (
    "version reference tag tag_moved tokens documents shards seconds partitions partitions_reused tokenizer report"
)


def label_run(dataset: str) -> None:
    """Label this run with its dataset, which the event of its failure names."""
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(UUID(this_run.get_id()), {_DATASET: dataset})


def emit_published(dataset: str, result: Mapping[str, Any]) -> None:
    """Emit the event `tokenloom.dataset.published` of this flow run.

    Args:
        dataset: its name.
        result: see BuildResult.to_json.
    """
    tag = result["tag"] if result["tag_moved"] else "none"
    emit_event(
        event="tokenloom.dataset.published",
        resource=_resource(dataset) | {"tokenloom.version": result["version"], "tokenloom.tag": tag},
        payload={
            "dataset": dataset,
            **{name: result[name] for name in _PUBLISHED.split()},
            "flow_run_id": this_run.get_id(),
            "message": outcome_line(result),
            "read": reading_lines(result["reference"]),
        },
    )


def emit_failed(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Emit the event `tokenloom.dataset.failed`: a hook of builds.

    Prefect calls it in the run's own process, or in one of the worker if that process is gone. It sends the event
    before it returns: a process that got SIGTERM does not wait for queues to empty.
    """
    error = state.result(raise_on_failure=False) if state.is_failed() else None
    with get_client(sync_client=True) as client:
        dataset = _dataset_of(client.read_flow_run(flow_run.id))
        event = Event(
            event="tokenloom.dataset.failed",
            resource=_resource(dataset),
            payload={
                "dataset": dataset,
                "state": "failed" if state.is_failed() else "crashed" if state.is_crashed() else "cancelled",
                "error": type(error).__name__ if isinstance(error, BaseException) else None,
                "message": one_line(redacted(state.message or "")),
                "flow_run_id": str(flow_run.id),
            },
        )
        client.request("POST", "/events", json=[event.model_dump(mode="json")])


#: of the flows that build
FAILURE_HOOKS: dict[str, Any] = {name: [emit_failed] for name in ("on_failure", "on_cancellation", "on_crashed")}


def _resource(dataset: str) -> dict[str, str]:
    return {"prefect.resource.id": f"tokenloom.dataset.{dataset}", "prefect.resource.name": dataset}


def _dataset_of(run: FlowRun) -> str:
    """Return the dataset that a run builds, from its label or else its parameters; "unknown" if neither names it."""
    spec: Any = run.parameters.get("spec")
    given = spec.get("dataset") if isinstance(spec, dict) else None
    named = str(run.labels.get(_DATASET) or given or "")
    return named if NAME_PATTERN.match(named) else "unknown"


@flow(name="build-dataset", flow_run_name="build-{spec.dataset}", **FAILURE_HOOKS)
def build_dataset(spec: BuildSpec) -> dict[str, Any]:
    """Build a version of a dataset and publish it.

    Args:
        spec: What to build: sources, tokenizer, splits, store. A relative path starts from TOKENLOOM_HOME, which
            `tokenloom up` prints; where it is not set, only absolute paths and URLs are accepted.

    Returns:
        The JSON object of `tokenloom build --json`: reference, version, published, splits and more.
    """
    return build_and_report(spec)


def build_and_report(spec: BuildSpec, tag: str = "") -> dict[str, Any]:
    """Build and publish in a flow run, report the outcome there, and return the final state of the flow.

    Args:
        spec: the spec of the build.
        tag: a further tag that names the version afterwards; "" for none.
    """
    label_run(spec.dataset)
    check_transform(spec)
    spec = with_absolute_paths(with_store_of_block(spec))
    with using_credentials(spec.credentials):
        result = _build(spec)
        if result.published:
            emit_published(spec.dataset, result.to_json())
            artifacts.show_result(result)
        if tag:
            facts = result.facts
            move_by_hand(facts.store, tag, facts.manifest, tags.newest(facts.store, tag), "form of a build")
        outcome_json = result.to_json()
        return Completed(message=outcome(outcome_json), data=outcome_json)  # type: ignore[return-value]  # returns its data


def _build(spec: BuildSpec) -> BuildResult:
    """Build; retry the run of a deployment once after a killed worker or a damaged work file."""
    try:
        return _build_once(spec)
    except (WorkError, WorkerLost) as error:
        if this_deployment.get_id() is None:
            raise
        get_run_logger().warning("%s; trying once more", message_of(error))
    return _build_once(spec)


def _build_once(spec: BuildSpec) -> BuildResult:
    with open_runner(spec.runner, spec.credentials) as runner:
        runner.preload(partial(preload_build, spec.tokenizer.model_dump()))
        return run_build(spec, runner)


def check_transform(spec: BuildSpec) -> None:
    """Raise SpecError if a deployment's run would call a function that the worker's environment does not admit.

    The user of a form may not be the user of the worker. The run of a command has no deployment.
    """
    transform = spec.documents.transform
    if transform is None or this_deployment.get_id() is None:
        return
    module = transform.function.partition(":")[0]
    if module not in [name.strip() for name in os.environ.get(TRANSFORMS, "").split(",")]:
        raise SpecError(
            f"documents.transform.function: {transform.function} is code, and the runs of a deployment call only "
            f"functions of the modules in {TRANSFORMS}; if you trust {module}, set {TRANSFORMS}={module} where the "
            "worker starts, or build with `tokenloom build` there"
        )


def with_absolute_paths(spec: BuildSpec) -> BuildSpec:
    """Return the spec with absolute paths; relative ones start from TOKENLOOM_HOME, as a worker's folder is arbitrary.

    Raises SpecError if a path is relative and TOKENLOOM_HOME is not set.
    """
    for key, path in spec.paths():
        absolute_path(key, path)
    return spec.resolve(os.environ.get("TOKENLOOM_HOME") or "/")


def absolute_path(key: str, path: str) -> str:
    """Return an absolute path or URL; a relative path starts from TOKENLOOM_HOME.

    Raises SpecError, which names `key`, if the path is relative and TOKENLOOM_HOME is not set.
    """
    home = os.environ.get("TOKENLOOM_HOME")
    if not (home or is_absolute(path) or path.startswith("~")):
        raise SpecError(
            f"{key}: {path!r} is relative, which has no meaning in a deployment; write an absolute path or a URL, or "
            "set TOKENLOOM_HOME where the worker runs"
        )
    return join_path(home or "/", path)


def _run_name() -> str:
    return f"build-{PurePath(this_run.parameters.get('spec_file', '')).stem}"


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
