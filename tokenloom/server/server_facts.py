"""What a Prefect server has for tokenloom: its version, the deployments, the workers of the pool."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version
from prefect import __version__
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

from tokenloom.server.deployments import NAMES
from tokenloom.server.prefect_server import POOL


@dataclass(frozen=True)
class ServerFacts:
    """What a server has: its version and that of Prefect here, the deployments that are missing, the workers online."""

    version: str
    client: str
    missing: list[str]
    workers: list[str]
    pool: str = POOL

    @property
    def is_older(self) -> bool:
        """Whether the server is older than Prefect here, which Prefect does not support."""
        return Version(self.version) < Version(self.client)


def server_facts(url: str) -> ServerFacts:
    """Return what a server has.

    Args:
        url: the URL of its API, which answers.
    """
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        missing = [name.partition("/")[2] for name in NAMES if not _is_deployed(client, name)]
        return ServerFacts(client.api_version(), __version__, missing, _online(client))


def _is_deployed(client: SyncPrefectClient, name: str) -> bool:
    try:
        client.read_deployment_by_name(name)
    except ObjectNotFound:
        return False
    return True


def _online(client: SyncPrefectClient) -> list[str]:
    try:
        client.read_work_pool(POOL)  # the next call has no ObjectNotFound
        workers = client.read_workers_for_work_pool(POOL)
    except ObjectNotFound:
        return []
    return [worker.name for worker in workers if worker.status == WorkerStatus.ONLINE]
