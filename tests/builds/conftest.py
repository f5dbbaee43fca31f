"""Fixtures of builds: the hub of tests, started once, and the commands that read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.hub_builds import HubBuilds, Hubs
from tests.drivers.hub_driver import HubCommands, hub_commands
from tests.servers.dataset_hub import DatasetHub, dataset_hub


@pytest.fixture(scope="session")
def hub() -> Iterator[DatasetHub]:
    """A hub; each test publishes datasets with names of its own there."""
    pytest.importorskip("datasets")
    with dataset_hub() as running:
        yield running


@pytest.fixture(scope="session")
def on_hub(hub: DatasetHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubCommands]:
    """Commands for which the hub of tests is the Hugging Face Hub."""
    with hub_commands(hub.url, tmp_path_factory.mktemp("hub")) as commands:
        yield commands


@pytest.fixture
def builds(hub: DatasetHub, on_hub: HubCommands, tmp_path: Path) -> Hubs:
    """Returns the commands of a spec with these sources and fields."""

    def builds_of(*sources: dict[str, Any], **fields: Any) -> HubBuilds:
        return HubBuilds(hub, on_hub, tmp_path, *sources, **fields)

    return builds_of
