"""Environments with released packages of other projects, each of pinned versions, made once and kept in .peers."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import xxhash

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / ".peers"
_TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Environment:
    """What is installed beside Python.

    `alone` is installed without what it needs; `ours` says that tokenloom and what it needs are installed too.
    """

    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    ours: bool = False
    python: str = sys.executable


#: By name. A trainer that takes our loader needs `ours`; one that reads an export does not.
ENVIRONMENTS = {
    "automodel": Environment(("numpy==2.4.6", _TORCH), alone=("nemo-automodel==0.7.0",)),
    "curator": Environment(("nemo-curator==1.4.0", _TORCH)),
    "datasets": Environment(("datasets==5.2.0", "tiktoken==0.14.0")),
    "datasets-3": Environment(("datasets==3.6.0",)),
    "datatrove": Environment(("datatrove==0.10.1", "tokenizers==0.23.3", "orjson", _TORCH)),
    # MinHash needs xxhash 3, and spacy cuts English into words.
    "datatrove-dedup": Environment(
        ("datatrove==0.10.1", "tokenizers==0.23.3", "orjson", "spacy==3.8.18", "nltk==3.10.4", "xxhash==3.8.2")
    ),
    "dolma": Environment(("dolma==1.2.1",)),
    "jax": Environment(("jax==0.10.2", "grain==0.2.18"), ours=True),
    "litdata": Environment(("litdata==0.2.76", _TORCH, "torchvision==0.28.0", "tiktoken==0.14.0")),
    "megatron": Environment(("megatron-core==0.16.1", _TORCH)),
    "olmo": Environment(("ai2-olmo-core==3.0.0", _TORCH)),
    "streaming": Environment(("mosaicml-streaming==0.13.0", _TORCH, "torchvision==0.28.0", "tiktoken==0.14.0")),
    # Both import triton, which a torch without CUDA does not bring.
    "torchtitan": Environment(("torchtitan==0.3.0", "torchdata==0.11.0", "triton==3.9.0", _TORCH), ours=True),
    "trl": Environment(("trl==1.16.0", "transformers==5.24.0", "datasets==5.2.0", _TORCH)),
}

#: torchvision of PyPI is for CUDA; without these operators, a torch without CUDA can't import it.
VISION = """
import torch
if "+cpu" in torch.__version__:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def python_of(name: str) -> Path:
    """Return the Python of an environment, which is made if it is not there; several processes may ask at once."""
    wanted = ENVIRONMENTS[name]
    folder = FOLDER / f"{name}-{xxhash.xxh3_64_hexdigest(repr(wanted).encode())[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = folder / "environment" / "bin" / "python"
        if not (folder / "ready").exists():
            subprocess.run([wanted.python, "-m", "venv", "--clear", str(folder / "environment")], check=True)
            _install(python, [*wanted.requirements, *["-e", str(_ROOT)] * wanted.ours])
            if wanted.alone:
                _install(python, ["--no-deps", *wanted.alone])
            (folder / "ready").touch()
    return python


def _install(python: Path, arguments: list[str]) -> None:
    """Install by uv, which takes seconds, where it is there."""
    uv = shutil.which("uv")
    command = [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    subprocess.run([*command, *arguments], check=True)


def run_in(name: str, program: str, *arguments: object, given: str = "") -> str:
    """Run the text of a program in an environment; return what it prints."""
    command = [str(python_of(name)), "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpacked(requirement: str, python_version: str) -> Path:
    """Return the unpacked wheel of a package for another Python, of which pure modules are used."""
    folder = FOLDER / requirement.replace("==", "-")
    if not (folder / "ready").exists():
        for_python = ["--python-version", python_version, "--only-binary", ":all:", "--no-deps"]
        command = [sys.executable, "-m", "pip", "download", "-q", *for_python, "-d", str(folder), requirement]
        subprocess.run(command, check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (folder / "ready").touch()
    return folder
