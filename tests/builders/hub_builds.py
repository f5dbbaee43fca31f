"""Builds of datasets of a hub of tests, by the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.builders.datasets import make_spec
from tests.builders.equal_files import LINES, TEXTS, ZIPPED, Form, Written
from tests.drivers.hub_driver import HubCommands, Outcome
from tests.servers.dataset_hub import MAIN, DatasetHub
from tokenloom.spec.build_spec import BuildSpec

Files = Mapping[str, Written]
#: Forms of the data files of a dataset, by name; the last two are read by the package.
ON_HUB: dict[str, Form] = TEXTS | {"jsonl.zip": ZIPPED, "txt": LINES}
#: How a source names files of a dataset, and the form of these files.
WAYS = {"read by us": "parquet", "streamed": "txt", "by a path": "jsonl"}


class HubBuilds:
    """The commands of one spec.

    Args:
        hub: has the datasets.
        commands: runs the command line.
        folder: for the spec and its store.
        sources: of the spec.
        fields: its other keys.
    """

    def __init__(
        self, hub: DatasetHub, commands: HubCommands, folder: Path, *sources: Mapping[str, Any], **fields: Any
    ) -> None:
        self.hub, self._commands = hub, commands
        self._written = {
            "dataset": "data",
            "store": str(folder / "store"),
            "tokenizer": {"kind": "byte"},
            "report": False,
            "splits": {"train": 1.0},
            "sources": [{"kind": "huggingface", **source} for source in sources],
            **fields,
        }
        self._path = folder / "spec.yaml"
        self._path.write_text(json.dumps(self._written))

    @property
    def spec(self) -> BuildSpec:
        """The spec."""
        fields = dict(self._written)
        return make_spec(fields.pop("store"), fields.pop("sources"), **fields)

    def run(self, command: str, *arguments: object, **environment: str) -> Outcome:
        """Run a command that reads the spec."""
        return self._commands.run(command, self._path, *arguments, **environment)

    def build(self, workers: int = 0, **environment: str) -> dict[str, Any]:
        """Build; return the JSON of the command."""
        outcome = self.run("build", "--json", "--direct", "--workers", workers, **environment)
        assert outcome.code == 0, outcome.errors
        built: dict[str, Any] = json.loads(outcome.out)
        return built

    def verify(self, version: str) -> dict[str, Any]:
        """Compare all documents of a version with their sources; return the JSON of the command."""
        reference = f"{self.spec.store}/data@{version}"
        outcome = self._commands.run("verify", reference, "--deep", "--json")
        assert outcome.code == 0, outcome.errors
        verified: dict[str, Any] = json.loads(outcome.out)
        return verified


Hubs = Callable[..., HubBuilds]  # of sources and fields


def parts_of(files: Files) -> dict[str, bytes]:
    """Return the contents of files, for a commit."""
    return {path: content for path, file in files.items() for content in file.parts.values()}


def files_of(form: Form, num_files: int = 3, folder: str = "data") -> dict[str, Written]:
    """Return files of one size and other rows, and one more with the content of the first."""
    equal = form.of_equal_size(num_files)
    equal.append(equal[0])
    return {f"{folder}/train-{i}{form.suffix}": file for i, file in enumerate(equal)}


def published(hub: DatasetHub, name: str, files: Files, branch: str = MAIN, readme: bytes = b"# Data\n") -> str:
    """Publish files and a README.md as a commit of a dataset; return the commit."""
    return hub.commit(name, parts_of(files) | {"README.md": readme}, branch)


def source_of(way: str, name: str) -> dict[str, Any]:
    """Return the source that reads a dataset in one of WAYS."""
    if way == "by a path":
        return {"kind": "jsonl", "path": f"hf://datasets/{name}/data/*"}
    return {"name": name}
