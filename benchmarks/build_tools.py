"""The commands that build.py times: a build, bare processes, and peers with interpreters of their own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

from corpus import write_corpus, write_jsonl
from watched import run_measured

OURS, REFERENCE, FIRST = "tokenloom", "tokenloom, reference", "tokenloom, first build"
BARE, BARE_GIGATOKEN = "bare", "bare-gigatoken"
_PEERS = Path(__file__).parent / "peers"
#: name of tiktoken -> name of a file from which gigatoken knows how to split a text, and the special tokens
_RANKS = {name: f"{name}.tiktoken" for name in ("r50k_base", "cl100k_base", "o200k_base")}
_RANKS["gpt2"] = _RANKS["r50k_base"]  # they are the same


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

    def as_ranks(self) -> str | None:
        """Return the name of the file of its ranks, if gigatoken knows it, or else the path of its tokenizer.json."""
        return _RANKS.get(self.name) or self.as_file()


@dataclass(frozen=True)
class Peer:
    """A program of the folder peers/."""

    program: str
    given: Callable[[Vocabulary], str | None]  # the vocabulary that it can encode with
    reads_jsonl: bool = False  # and not parquet


BARE_PEER = Peer("bare_build.py", lambda vocabulary: vocabulary.name)
PEERS = {
    BARE_GIGATOKEN: Peer("gigatoken_bare.py", Vocabulary.as_ranks),
    "megatron-fast": Peer("megatron_build.py", Vocabulary.as_ranks, reads_jsonl=True),
    "hf": Peer("hf_build.py", Vocabulary.as_file),
    "hf-tiktoken": Peer("hf_build.py", Vocabulary.as_name),
    "litdata": Peer("litdata_build.py", Vocabulary.as_either),
    "datatrove": Peer("datatrove_build.py", Vocabulary.as_file),
}


@dataclass(frozen=True)
class Run:
    """What one run of a command took and made."""

    wall: float  # seconds, with the start of its processes
    peak_mib: float  # of the largest process
    tokens: int
    steps: dict[str, float] = field(default_factory=dict)  # seconds of a build
    fast_partitions: dict[str, int] = field(default_factory=dict)  # of a build, by fast encoder
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

    def prove_encoder(self) -> None:
        """Compare the fast encoder with the reference library, unless that was done."""
        if self.vocabulary.name != "byte":
            run_measured([sys.executable, "-m", "tokenloom", "tokenizer", str(self.spec), "--json"], self.environment)

    def first_build(self) -> Run:
        """Run a build as on a new machine: the home is empty, and so is the cache."""
        with tempfile.TemporaryDirectory(dir=self.folder) as home:
            return self.build("--direct", HOME=home, TOKENLOOM_CACHE=f"{home}/.cache/tokenloom")

    def build(self, *options: str, **variables: str) -> Run:
        """Run a whole build into a new store, with environment variables."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        command = [sys.executable, "-m", "tokenloom", "build", str(self.spec), "--workers", str(self.num_workers)]
        wall, peak_mib = _run([*command, *options], self.environment | variables)
        (version,) = (self.folder / "store/bench/versions").iterdir()
        splits = json.loads((version / "manifest.json").read_text())["splits"].values()
        record = json.loads((version / "build.json").read_text())
        fast_partitions = {name: use["partitions"] for name, use in record["encoders"].items()}
        return Run(wall, peak_mib, sum(split["tokens"] for split in splits), record["seconds"], fast_partitions)

    def peer(self, peer: Peer, python: str = sys.executable) -> Run:
        """Run a program of the folder peers/ with an interpreter, into an empty folder and without a network."""
        vocabulary, paths = self._vocabulary_of(peer), [self._jsonl()] if peer.reads_jsonl else self.paths
        output = self.folder / "peer"
        output.mkdir()
        caches = ("HF_HOME", "DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER")
        variables = {name: f"{output}/{name.lower()}" for name in caches}
        variables |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # the processes are the workers
        variables["RAYON_NUM_THREADS"] = str(self.num_workers)  # threads of gigatoken
        environment = {name: value for name, value in self.environment.items() if name != "PYTHONPATH"}
        arguments = [vocabulary, self.vocabulary.eot, str(self.num_workers), str(output), *map(str, paths)]
        wall, peak_mib = _run([python, str(_PEERS / peer.program), *arguments], environment | variables)
        answer = json.loads((output / "answer.json").read_text())
        shutil.rmtree(output)
        return Run(wall, peak_mib, answer["tokens"], versions=answer["versions"])

    def _vocabulary_of(self, peer: Peer) -> str:
        """Return what the peer is given; write it if that is a file of ranks."""
        given = peer.given(self.vocabulary)
        assert given is not None  # chosen_tools leaves the peer out
        return str(write_ranks(self.vocabulary.name, self.folder)) if given in _RANKS.values() else given

    def _jsonl(self) -> Path:
        """Return the path of the corpus as one file of JSON lines, which is written when it is first asked for."""
        path = self.folder / "corpus.jsonl"
        if not path.exists():
            write_jsonl(path, self.paths)
        return path


def write_ranks(name: str, folder: Path) -> Path:
    """Write the ranks of a name of tiktoken in a file that gigatoken reads; return its path."""
    path = folder / _RANKS[name]
    if not path.exists():
        ranks = ENCODING_CONSTRUCTORS[name]()["mergeable_ranks"]
        path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items()))
    return path


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    os.sync()  # what the command before has written is not written during this one
    return run_measured(command, environment)


Tools = dict[str, Callable[[Bench], Run]]


def chosen_tools(vocabulary: Vocabulary, interpreters: dict[str, str], first: bool = False) -> Tools:
    """Return the commands of a round by name; print which peers are left out, and why.

    Args:
        vocabulary: what is to be encoded with.
        interpreters: {name of a peer: path of its Python}.
        first: whether a first build takes part.
    """
    tools: Tools = {BARE: lambda bench: bench.peer(BARE_PEER), OURS: lambda bench: bench.build("--direct")}
    if first:
        tools[FIRST] = Bench.first_build
    if vocabulary.name != "byte":
        tools[REFERENCE] = lambda bench: bench.build("--direct", "--set", "tokenizer.backend=reference")
    for name, peer in PEERS.items():
        if name in interpreters and peer.given(vocabulary) is None:
            print(f"{name} is left out: it can't encode with {vocabulary.label}{_hint(vocabulary)}")
        elif name in interpreters:
            tools[name] = partial(Bench.peer, peer=peer, python=interpreters[name])
    if missing := PEERS.keys() - interpreters:
        names = ", ".join(name for name in PEERS if name in missing)
        print(f"left out: {names}; give the Python of an environment that has one, --peer NAME=PYTHON")
    return tools


def _hint(vocabulary: Vocabulary) -> str:
    return (
        "" if vocabulary.as_name() is None else "; give a tokenizer.json of the same vocabulary, --tokenizer-json FILE"
    )
