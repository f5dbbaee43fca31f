"""Where the tasks of a build run, and with which credentials; neither affects the identity of a version."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tokenloom.spec.base import SpecModel, kind_field
from tokenloom.spec.form import as_any_of

BLOCK_URL = "block://"  # prefix of a store that is defined by a Prefect block


class ProcessRunner(SpecModel):
    """Processes on the machine that runs the flow."""

    model_config = ConfigDict(title="Processes")
    kind: Literal["process"] = kind_field("process")
    workers: Annotated[int, Field(ge=0, le=512)] | None = Field(
        None,
        description="Worker processes; default: one per core; 0: the flow's own process does the work",
    )


class _ClusterRunner(SpecModel):
    workers: Annotated[int, Field(ge=1, le=512)] | None = Field(
        None,
        description="Tasks at a time; default: all workers of the cluster, or one per core on this machine",
    )


class DaskRunner(_ClusterRunner):
    """Workers of a Dask cluster; each has the same tokenloom[dask] and reaches the store and Prefect's server."""

    model_config = ConfigDict(title="Dask")
    kind: Literal["dask"] = kind_field("dask")
    address: str | None = Field(
        None,
        title="Scheduler",
        description="Address of the scheduler, `tcp://host:8786`; default: a cluster on this machine for this run",
    )


class RayRunner(_ClusterRunner):
    """Workers of a Ray cluster; each has the same tokenloom[ray] and reaches the store and Prefect's server."""

    model_config = ConfigDict(title="Ray")
    kind: Literal["ray"] = kind_field("ray")
    address: str | None = Field(
        None,
        title="Cluster",
        description="Address of the cluster, `ray://host:10001`; default: a cluster on this machine for this run",
    )


Runner = Annotated[ProcessRunner | DaskRunner | RayRunner, Field(discriminator="kind", json_schema_extra=as_any_of)]


class Credentials(SpecModel):
    """A Secret block of Prefect with the credentials of an object store: a JSON object of fsspec options."""

    model_config = ConfigDict(title="Credentials")
    protocol: Annotated[str, Field(pattern="^[a-z][a-z0-9+.-]*$")] = Field(
        description="Protocol of the URLs that need them: `s3`, `gs`, `az`, `abfs`"
    )
    block: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(
        title="Secret block",
        description='Name of the Secret block; its value is like `{"key": "...", "secret": "..."}`',
    )
