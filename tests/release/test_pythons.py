"""Python 3.11, 3.12 and 3.13 write the same bytes and pass the tests; so do the lowest versions that are allowed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders.chats import CHATML, chat_tokenizer, conversation
from tests.builders.datasets import write_jsonl, write_parquet
from tests.builders.distributions import CONSTRAINTS, ROOT, Distributions, Installation, python_of
from tests.builders.row_files import write_rows
from tests.counts import SUMMARY, full_only

pytestmark = [full_only, pytest.mark.timeout(3600)]

_PYTHONS = ("3.11", "3.12", "3.13")
#: Characters of Unicode 14, 15.0 and 15.1, which Python 3.11, 3.12 and 3.13 know, and one that none knows.
_NEW = "\U0001fae0 \U0001fae8 \U0002ebf0 \U000e0fff"
_SPECS = {
    "chats": {
        "sources": [
            {"kind": "parquet", "path": "inputs/a.parquet"},
            {"kind": "jsonl", "path": "inputs/b.jsonl", "name": "lines"},
            {"kind": "jsonl", "path": "inputs/chats.jsonl", "name": "chats", "messages": "messages"},
        ],
        "tokenizer": {"kind": "huggingface", "path": "inputs/tokenizer", "eot": "<|endoftext|>"},
        "chat": {"template": "inputs/chat.jinja"},
    },
    "gpt2": {
        "sources": [{"kind": "parquet", "path": "inputs/a.parquet"}, {"kind": "text", "path": "inputs/c.txt"}],
        "tokenizer": {"kind": "tiktoken", "name": "gpt2"},
    },
}
_BATCHES = """
import hashlib, sys
from tokenloom import TokenDataset, TokenLoader

data = TokenDataset(sys.argv[1], split="train", seq_len=64, packing="best_fit", fields=["document_ids"])
loader = TokenLoader(data, batch_size=4, seed=3, device="numpy")
digest = hashlib.sha256()
for _ in range(20):
    for value in next(loader).values():
        digest.update(str(value).encode() if isinstance(value, int) else value.tobytes())
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Specs and their inputs, to copy."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [f"document {i} {_NEW[: i % 8]} naïve — said {i % 7} times\n" * (1 + i % 9) for i in range(300)]
    write_parquet(folder / "inputs/a.parquet", texts[:200], group_rows=30)
    write_jsonl(folder / "inputs/b.jsonl", texts[150:])
    (folder / "inputs/c.txt").write_text(_NEW * 9, encoding="utf-8")
    rows = [conversation(f"said {i} {_NEW}", f"answered {i} " * (1 + i % 9)) for i in range(60)]
    write_rows(folder / "inputs/chats.jsonl", rows)
    (folder / "inputs/chat.jinja").write_text(CHATML)
    chat_tokenizer(folder / "inputs/tokenizer")
    for name, fields in _SPECS.items():
        spec = {"dataset": name, "store": "store", "splits": {"train": 0.9, "test": 0.1}, "shard_tokens": 5000}
        (folder / f"{name}.yaml").write_text(json.dumps(spec | fields))
    return folder


def _written(installed: Installation, inputs: Path, specs: Sequence[str]) -> dict[str, str]:
    """Build the specs; return the digests of what they wrote and of batches that are read back."""
    work = installed.folder / "work"
    shutil.copytree(inputs, work, dirs_exist_ok=True)
    found = {}
    vocabularies = {name: os.environ[name] for name in ("TIKTOKEN_CACHE_DIR",) if name in os.environ}
    for name in specs:
        built = json.loads(
            installed.run("tokenloom", "build", f"{name}.yaml", "--direct", "--workers", "2", "--json", **vocabularies)
        )
        version = work / f"store/{name}/versions" / built["version"]
        for path in sorted(version.rglob("*")):
            if path.suffix in (".tok", ".mask", ".docs", ".blocks") or path.name == "manifest.json":
                found[f"{name}/{path.relative_to(version)}"] = hashlib.sha256(path.read_bytes()).hexdigest()
        found[f"{name} batches"] = installed.run("python", "-c", _BATCHES, built["reference"])
    return found


def test_every_python_writes_and_reads_the_same_bytes(
    distributions: Distributions, inputs: Path, tmp_path: Path
) -> None:
    specs = ["chats", *(["gpt2"] if "TIKTOKEN_CACHE_DIR" in os.environ else [])]
    pythons = {version: python_of(version) for version in _PYTHONS}
    found = {}
    for version, python in pythons.items():
        requirements = (f"{distributions.wheel}[build]", *CONSTRAINTS)
        found[version] = _written(Installation(tmp_path / version, *requirements, python=python), inputs, specs)
    assert {Path(name).suffix for name in found["3.11"]} >= {".tok", ".mask", ".docs", ".json"}
    assert found["3.12"] == found["3.11"]
    assert found["3.13"] == found["3.11"]


def _test(installed: Installation, *arguments: str) -> str:
    """Run tests of the clone in an environment; return the last line of their report."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOKENLOOM_FULL", "PYTEST"))
    }
    command = [str(installed.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_quick_tests_pass_without_torch(version: str, distributions: Distributions, tmp_path: Path) -> None:
    python = python_of(version)
    installed = Installation(tmp_path, f"{distributions.wheel}[test]", *CONSTRAINTS, python=python)
    SUMMARY.append(f"Python {version}: {_test(installed, '-n', '3', '--dist', 'loadscope', '-m', 'not slow')}")


#: Tests of the path from a spec to batches, and of what the lowest versions once did otherwise.
_THIN_PATH = [
    *("tests/builds/test_golden_store.py", "tests/builds/test_links.py", "tests/builds/test_selection.py"),
    *("tests/flows/test_build_dataset.py", "tests/reader/test_loader.py", "tests/reader/test_numpy.py"),
    *("tests/storage/test_filesystem.py", "tests/storage/test_manifest.py", "tests/storage/test_shard.py"),
    *("tests/storage/test_spill.py", "tests/tasks/test_sources.py", "tests/tasks/test_source_kinds.py"),
    *("tests/tokenloom/test_dataset.py", "tests/tokenloom/test_spec.py", "tests/tokenloom/test_tokenizers.py"),
    # Which modules numpy imports depends on its version.
    "--deselect=tests/tokenloom/test_dataset.py::test_reading_a_local_dataset_imports_only_what_it_needs",
]


def test_the_lowest_versions_that_are_allowed_pass_the_thin_path(distributions: Distributions, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("arrayrecord", "azure", "build", "dask", "fast", "gcs", "s3")
    direct = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    lowest = tmp_path / "lowest.txt"
    lowest.write_text("\n".join(text for texts in direct for text in texts if not text.startswith("tokenloom[")))
    tests = ("pytest>=9.2", "pytest-timeout>=2.4", "pytest-xdist>=3.8", "hypothesis>=6.170")
    installed = Installation(
        tmp_path / "lowest", "--resolution", "lowest-direct", "-r", lowest, *tests, python=python_of("3.11")
    )
    installed.add("torch==2.13.0")  # not with the others: the lowest of its builds is that of CUDA
    installed.add("--no-deps", distributions.wheel)
    SUMMARY.append(f"lowest versions: {_test(installed, '-n', '3', '--dist', 'loadscope', *_THIN_PATH)}")
