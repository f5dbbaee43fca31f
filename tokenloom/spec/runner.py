"""Where a build's tasks run, and with whose credentials: what changes no byte, and is in no version's identity."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tokenloom.spec.base import SpecModel, kind_field
from tokenloom.spec.form import as_any_of

BLOCK_URL = "block://"  # of a store that a block of Prefect names


class ProcessRunner(SpecModel):
    """Processes of the machine that runs the flow."""

    model_config = ConfigDict(title="Processes")
    kind: Literal["process"] = kind_field("process")
    workers: Annotated[int, Field(ge=0, le=512)] | None = Field(
        None, title="Workers", description="Default: one a core; 0: the flow's own process"
    )


class _ClusterRunner(SpecModel):
    workers: Annotated[int, Field(ge=1, le=512)] | None = Field(
        None, title="Workers", description="Tasks at a time; default: all that the cluster has, here one a core"
    )


class DaskRunner(_ClusterRunner):
    """Workers of a Dask cluster, each with the same tokenloom[dask] and a way to the store and to Prefect's server."""

    model_config = ConfigDict(title="Dask")
    kind: Literal["dask"] = kind_field("dask")
    address: str | None = Field(
        None, title="Scheduler", description="tcp://host:8786; default: a cluster on this machine, for the run alone"
    )


class RayRunner(_ClusterRunner):
    """Workers of a Ray cluster, each with the same tokenloom[ray] and a way to the store and to Prefect's server."""

    model_config = ConfigDict(title="Ray")
    kind: Literal["ray"] = kind_field("ray")
    address: str | None = Field(
        None, title="Cluster", description="ray://host:10001; default: a cluster on this machine, for the run alone"
    )


Runner = Annotated[ProcessRunner | DaskRunner | RayRunner, Field(discriminator="kind", json_schema_extra=as_any_of)]


class Credentials(SpecModel):
    """A Secret block of Prefect that holds what an object store asks for: a JSON object of fsspec's options."""

    model_config = ConfigDict(title="Credentials")
    protocol: Annotated[str, Field(pattern="^[a-z][a-z0-9+.-]*$")] = Field(
        title="Protocol", description="Of the URLs it is for: s3, gs, az, abfs"
    )
    block: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(
        title="Secret block", description='Its name; its value such as {"key": "...", "secret": "..."}'
    )
