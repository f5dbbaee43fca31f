"""The commands that build.py times: a build, bare processes, and peers with interpreters of their own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus import write_corpus
from watched import run_measured

OURS, REFERENCE, BARE = "tokenloom", "tokenloom, reference", "bare"
_PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and how tokenloom and the peers are given it.

    Args:
        name: of tiktoken, "byte", or the path of a tokenizer.json.
        eot: the end-of-text token of a tokenizer.json.
        file: a tokenizer.json of the same vocabulary as a name of tiktoken; None if there is none at hand.
    """

    name: str
    eot: str
    file: str | None = None

    @property
    def label(self) -> str:
        """The name to show: the last two parts of a path."""
        return "/".join(Path(self.name).parts[-2:])

    def definition(self) -> dict[str, str]:
        """Return the spec's tokenizer."""
        if self.name == "byte":
            return {"kind": "byte"}
        if self.name.endswith(".json"):
            return {"kind": "huggingface", "path": str(Path(self.name).absolute()), "eot": self.eot, "backend": "auto"}
        return {"kind": "tiktoken", "name": self.name, "backend": "auto"}

    def as_file(self) -> str | None:
        """Return the path of its tokenizer.json."""
        return self.name if self.name.endswith(".json") else self.file

    def as_name(self) -> str | None:
        """Return its name in tiktoken."""
        return None if self.name.endswith(".json") or self.name == "byte" else self.name

    def as_either(self) -> str | None:
        """Return its name in tiktoken, or else the path of its tokenizer.json."""
        return self.as_name() or self.as_file()


# name -> program, and the vocabulary that it can encode with
PEERS: dict[str, tuple[str, Callable[[Vocabulary], str | None]]] = {
    "hf": ("hf_build.py", Vocabulary.as_file),
    "hf-tiktoken": ("hf_build.py", Vocabulary.as_name),
    "litdata": ("litdata_build.py", Vocabulary.as_either),
    "datatrove": ("datatrove_build.py", Vocabulary.as_file),
}


@dataclass(frozen=True)
class Run:
    """What one run of a command took and made."""

    wall: float  # seconds, with the start of its processes
    peak_mib: float  # of the largest process
    tokens: int
    steps: dict[str, float] = field(default_factory=dict)  # seconds of a build
    versions: dict[str, str] = field(default_factory=dict)  # of a peer's packages


class Bench:
    """A corpus on disk, and the commands that read it."""

    def __init__(self, folder: Path, texts: list[str], vocabulary: Vocabulary, num_workers: int) -> None:
        self.folder = folder
        self.vocabulary = vocabulary
        self.num_workers = num_workers
        self.num_documents = len(texts)
        self.text_bytes = sum(len(text.encode()) for text in texts)
        self.paths = write_corpus(folder / "corpus", texts)
        # Modules are compiled to bytecode, as in an installation.
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment |= {"PREFECT_HOME": str(folder / "prefect"), "DO_NOT_TRACK": "1"}
        self.spec = folder / "spec.yaml"
        self.spec.write_text(json.dumps(self._definition()))

    def _definition(self) -> dict[str, Any]:
        return {
            "dataset": "bench",
            "store": f"{self.folder}/store",
            "sources": [{"kind": "parquet", "path": f"{self.folder}/corpus/*.parquet"}],
            "tokenizer": self.vocabulary.definition(),
            "shard_tokens": 20_000_000,
        }

    def prove_encoder(self, **variables: str) -> None:
        """Compare the fast encoder with the reference library, unless that was done; wait for a running proof."""
        if self.vocabulary.name != "byte":
            command = [sys.executable, "-m", "tokenloom", "tokenizer", str(self.spec), "--json"]
            run_measured(command, self.environment | variables)

    def first_build(self) -> Run:
        """Run a build as on a new machine: its encoder is not proven, and its cache is empty."""
        cache = {"TOKENLOOM_CACHE": str(self.folder / "cache")}
        run = self.build("--direct", **cache)
        self.prove_encoder(**cache)  # the proof that a build starts may outlive it
        return run

    def build(self, *options: str, **variables: str) -> Run:
        """Run a whole build into a new store, with environment variables."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        command = [sys.executable, "-m", "tokenloom", "build", str(self.spec), "--workers", str(self.num_workers)]
        wall, peak_mib = _run([*command, *options], self.environment | variables)
        (version,) = (self.folder / "store/bench/versions").iterdir()
        splits = json.loads((version / "manifest.json").read_text())["splits"].values()
        steps = json.loads((version / "build.json").read_text())["seconds"]
        return Run(wall, peak_mib, sum(split["tokens"] for split in splits), steps)

    def peer(self, program: str, python: str, vocabulary: str) -> Run:
        """Run a program of the folder peers/ with an interpreter, into an empty folder and without a network."""
        output = self.folder / "peer"
        output.mkdir()
        caches = ("HF_HOME", "DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER")
        variables = {name: f"{output}/{name.lower()}" for name in caches}
        variables |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # the processes are the workers
        environment = {name: value for name, value in self.environment.items() if name != "PYTHONPATH"}
        arguments = [vocabulary, self.vocabulary.eot, str(self.num_workers), str(output), *map(str, self.paths)]
        wall, peak_mib = _run([python, str(_PEERS / program), *arguments], environment | variables)
        answer = json.loads((output / "answer.json").read_text())
        shutil.rmtree(output)
        return Run(wall, peak_mib, answer["tokens"], versions=answer["versions"])

    def bare(self) -> Run:
        """Read and encode only, in as many processes as the build has workers."""
        return self.peer("bare_build.py", sys.executable, self.vocabulary.name)


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    os.sync()  # what the command before has written is not written during this one
    return run_measured(command, environment)


Tools = dict[str, Callable[[Bench], Run]]


def chosen_tools(vocabulary: Vocabulary, interpreters: dict[str, str]) -> Tools:
    """Return the commands of a round by name; print which peers are left out, and why.

    Args:
        vocabulary: what is to be encoded with.
        interpreters: {name of a peer: path of its Python}.
    """
    tools: Tools = {BARE: Bench.bare, OURS: lambda bench: bench.build("--direct")}
    if vocabulary.name != "byte":
        tools[REFERENCE] = lambda bench: bench.build("--direct", "--set", "tokenizer.backend=reference")
    for name, (program, given_as) in PEERS.items():
        given = given_as(vocabulary)
        if name in interpreters and given is None:
            print(f"{name} is left out: it can't encode with {vocabulary.label}{_hint(vocabulary)}")
        elif name in interpreters and given is not None:
            tools[name] = _peer(program, interpreters[name], given)
    if missing := PEERS.keys() - interpreters:
        names = ", ".join(name for name in PEERS if name in missing)
        print(f"left out: {names}; give the Python of an environment that has one, --peer NAME=PYTHON")
    return tools


def _peer(program: str, python: str, given: str) -> Callable[[Bench], Run]:
    return lambda bench: bench.peer(program, python, given)


def _hint(vocabulary: Vocabulary) -> str:
    return (
        "" if vocabulary.as_name() is None else "; give a tokenizer.json of the same vocabulary, --tokenizer-json FILE"
    )
