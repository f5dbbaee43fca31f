"""Measure builds of conversations against datasets and transformers, and reading with masks against reading without.

    python benchmarks/chat.py --data DIR --tokenizer DIR [--trl WHEEL] [--conversations 200000] [--rounds 3]
        [--workers 2] [--peer PYTHON] [--json FILE]

The conversations are put together with a fixed seed from the files of --data (by default, `chat` in
TOKENLOOM_TEST_DATA), in parquet. --tokenizer is a folder with tokenizer.json and tokenizer_config.json, such as
Qwen 3's. Two templates are measured: ChatML, which is below, and with --trl the one that TRL trains Qwen 3 with, which
is read from TRL's wheel. The peer (peers/hf_chat.py) maps `apply_chat_template` with `return_assistant_tokens_mask`
over the rows with as many processes, and saves ids and masks; --peer is the interpreter of an environment with datasets
and transformers, by default this one.

Rounds are interleaved, with fresh processes and a fresh store. Times include the start of the processes. Both tools
must make the same number of tokens and learn the same number. Then TokenLoader reads, in turn and from memory, the
conversations with their masks and a version of plain text with the same tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure, print_table, write_json
from made_chats import write_conversations
from read import loader_steps, rate
from tokenloom.storage.formats.classes import learned_classes
from watched import run_measured

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
OURS, PEER, TEXT = "tokenloom", "datasets.map", "tokenloom, plain text"
_TRAINING_TEMPLATE = "trl/chat_templates/qwen3_training.jinja"
_END_OF_TEXT = "<|endoftext|>"
_PROGRAM = Path(__file__).parent / "peers" / "hf_chat.py"


@dataclass(frozen=True)
class Run:
    """What one run of a tool took and made."""

    wall: float  # seconds, with the start of its processes
    peak_mib: float  # of the largest process
    tokens: int
    learned: int


class ChatBench:
    """Conversations on disk, a template, and the commands that read them."""

    def __init__(self, folder: Path, paths: list[Path], template: str, arguments: argparse.Namespace) -> None:
        folder.mkdir()
        self.folder, self.paths, self.arguments = folder, paths, arguments
        self.template = folder / "template.jinja"
        self.template.write_text(template, encoding="utf-8")
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment |= {"PREFECT_HOME": str(folder / "prefect"), "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}

    def build(self) -> Run:
        """Build the conversations with tokenloom."""
        source = {"kind": "parquet", "messages": "messages", "tools": "tools"}
        return self._build("chat", source, {"chat": {"template": str(self.template)}})

    def build_text(self) -> Run:
        """Build the contents of the conversations as plain text with tokenloom."""
        return self._build("text", {"kind": "parquet", "text": "text"}, {})

    def _build(self, dataset: str, source: dict[str, Any], options: dict[str, Any]) -> Run:
        shutil.rmtree(self.folder / "store" / dataset, ignore_errors=True)
        tokenizer = {"kind": "huggingface", "path": str(self.arguments.tokenizer), "eot": _END_OF_TEXT}
        spec = {"dataset": dataset, "store": f"{self.folder}/store", "tokenizer": tokenizer, "report": False}
        spec |= {"sources": [source | {"path": f"{self.paths[0].parent}/*.parquet"}], "shard_tokens": 20_000_000}
        path = self.folder / f"{dataset}.yaml"
        path.write_text(json.dumps(spec | options))
        command = [sys.executable, "-m", "tokenloom", "build", str(path), "--direct"]
        os.sync()  # what the command before has written is not written during this one
        wall, peak_mib = run_measured([*command, "--workers", str(self.arguments.workers)], self.environment)
        (built,) = (self.folder / "store" / dataset / "versions").iterdir()
        splits = json.loads((built / "manifest.json").read_text())["splits"].values()
        return Run(wall, peak_mib, sum(split["tokens"] for split in splits), _num_learned(built))

    def map(self) -> Run:
        """Do the same with the peer."""
        output = self.folder / "peer"
        output.mkdir()
        variables = {
            "HF_HOME": str(output / "home"),
            "TOKENIZERS_PARALLELISM": "false",
        }  # the processes are the workers
        job = [str(self.arguments.tokenizer), str(self.template), str(self.arguments.workers), str(output)]
        os.sync()
        command = [self.arguments.peer, str(_PROGRAM), *job, *map(str, self.paths)]
        wall, peak_mib = run_measured(command, self.environment | variables)
        answer = json.loads((output / "answer.json").read_text())
        shutil.rmtree(output)
        return Run(wall, peak_mib, answer["tokens"], answer["learned"])


def _num_learned(built: Path) -> int:
    """Return the learned tokens of a version, from its masks."""
    counts = sum(
        (np.bincount(np.fromfile(path, np.uint8), minlength=256) for path in built.rglob("*.mask")), np.zeros(256)
    )
    return int(counts[learned_classes("assistant")].sum())


def run_rounds(bench: ChatBench, rounds: int) -> list[dict[str, Run]]:
    """Run both tools once a round; raises SystemExit if they do not make the same."""
    done = []
    for _ in range(rounds):
        one = {OURS: bench.build(), PEER: bench.map()}
        ours, theirs = ((run.tokens, run.learned) for run in one.values())
        if ours != theirs:
            raise SystemExit(f"{OURS} made {ours} tokens and learned tokens, {PEER} {theirs}: no time can be compared")
        done.append(one)
        print(", ".join(f"{name} {run.wall:.1f} s" for name, run in one.items()), file=sys.stderr)
    return done


def build_figures(name: str, bench: ChatBench, arguments: argparse.Namespace) -> Iterator[Figure]:
    """Yield the rates of both tools for a template, their ratio within a round, and their memory."""
    rounds = run_rounds(bench, arguments.rounds)
    for tool in (OURS, PEER):
        yield Figure(f"{name}: {tool}", "conversations/s", [arguments.conversations / one[tool].wall for one in rounds])
    yield Figure(f"{name}: {OURS} / {PEER}", "", [one[PEER].wall / one[OURS].wall for one in rounds], ">= 3, goal 5")
    for tool in (OURS, PEER):
        yield Figure(f"{name}: memory of a process: {tool}", "MiB", [one[tool].peak_mib for one in rounds])


def reading_figures(bench: ChatBench, rounds: int, num_batches: int) -> Iterator[Figure]:
    """Yield the rate of reading with masks, and its ratio to that of plain text, for two packings."""
    text = bench.build_text()
    yield Figure(f"memory of a process: {TEXT}", "MiB", [text.peak_mib])
    for packing in ("concat", "best_fit"):
        ways = {name: loader_steps(f"{bench.folder}/store/{name}", 0, packing=packing) for name in ("chat", "text")}
        for step in ways.values():
            rate(step, num_batches)  # now everything is in memory
        found = [{name: rate(step, num_batches) for name, step in ways.items()} for _ in range(rounds)]
        yield Figure(f"reading, {packing}: with masks", "M tokens/s", [one["chat"] / 1e6 for one in found])
        ratios = [one["chat"] / one["text"] for one in found]
        yield Figure(f"reading, {packing}: with masks / without", "", ratios, ">= 0.8")


def templates_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the text of each template by name; print which one is left out."""
    found = {"ChatML": CHATML}
    if arguments.trl:
        with zipfile.ZipFile(arguments.trl) as wheel:
            found["Qwen 3"] = wheel.read(_TRAINING_TEMPLATE).decode()
    else:
        print("left out: the template that TRL trains Qwen 3 with; give TRL's wheel, --trl WHEEL")
    return found


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Measure in a folder, print the figures, and write them if that is asked for."""
    paths = write_conversations(folder / "corpus", arguments.data, arguments.conversations)
    few = write_conversations(folder / "few", arguments.data, min(200, arguments.conversations))
    figures: list[Figure] = []
    for number, (name, template) in enumerate(templates_of(arguments).items()):
        run_rounds(ChatBench(folder / f"few-{number}", few, template, arguments), 1)  # warms caches, proves encoders
        bench = ChatBench(folder / f"bench-{number}", paths, template, arguments)
        figures += build_figures(name, bench, arguments)
    figures += reading_figures(bench, arguments.rounds, arguments.batches)
    print(f"{arguments.conversations:,} conversations, {arguments.tokenizer.name}, {arguments.workers} workers")
    print_table(figures)
    if arguments.json:
        versions = {package: version(package) for package in ("tokenloom", "gigatoken", "tokenizers", "jinja2")}
        details = {"conversations": arguments.conversations, "workers": arguments.workers, "versions": versions}
        write_json(arguments.json, figures, benchmark="chat", tokenizer=arguments.tokenizer.name, **details)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure builds of conversations, and reading with masks.")
    data = os.environ.get("TOKENLOOM_TEST_DATA")
    parser.add_argument("--data", type=Path, default=data and Path(data, "chat"), required=not data)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="tokenizer.json and its config")
    parser.add_argument("--trl", type=Path, metavar="WHEEL", help="TRL's wheel, for the template of Qwen 3")
    parser.add_argument("--conversations", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=500, help="that reading measures (default: 500)")
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="with datasets and transformers")
    parser.add_argument("--json", metavar="FILE", help="a file to write")
    with tempfile.TemporaryDirectory(dir=os.environ.get("TOKENLOOM_BENCH_DIR")) as name:
        measure(parser.parse_args(), Path(name))


if __name__ == "__main__":
    main()
