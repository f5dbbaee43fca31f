"""The sdist and the wheel of this tree, and environments in which they are installed without the clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
_NO_INDEX = re.compile("Failed to fetch|network connectivity is disabled|dns error")


class Distributions(NamedTuple):
    """The files of a release."""

    sdist: Path
    wheel: Path


def build_distributions(folder: Path) -> Distributions:
    """Return an sdist of the tracked files and the wheel that is built from it; made once for a folder."""
    made = folder / "distributions"
    with FileLock(folder / "distributions.lock"):
        if not made.exists():
            shutil.rmtree(folder / "tracked", ignore_errors=True)
            copy_tracked(folder / "tracked")
            uv("build", "--out-dir", folder / "building", folder / "tracked")
            (folder / "building").rename(made)
    return Distributions(*made.glob("*.tar.gz"), *made.glob("*.whl"))


def copy_tracked(target: Path, *names: str) -> None:
    """Copy the tracked files with these names, and below these folders; all without names."""
    tracked = subprocess.run(["git", "ls-files", "-z", "--", *names], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("needs a git checkout, to copy what is tracked")
    for name in tracked.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def uv(*arguments: object) -> None:
    """Run uv; skip the test where there is none, or no package index that answers."""
    program = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs uv: pip install uv")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if _NO_INDEX.search(done.stderr):
        pytest.skip("needs a package index")
    assert done.returncode == 0, done.stderr


class Installation:
    """An environment, run with an empty HOME and from a folder outside the clone."""

    def __init__(self, folder: Path, *requirements: object, python: Path | str = sys.executable) -> None:
        self.folder, self.python = folder, folder / "environment/bin/python"
        for name in ("home", "work"):
            (folder / name).mkdir(parents=True)
        uv("venv", "--python", python, folder / "environment")
        self.add(*requirements)

    def add(self, *requirements: object) -> None:
        """Install more, with the options of `uv pip install`."""
        uv("pip", "install", "--python", self.python, *requirements)

    def run(self, *command: object, **variables: str) -> str:
        """Run a command of the environment in its folder `work`; return what it prints on stdout."""
        path = f"{self.python.parent}:/usr/bin:/bin"
        done = subprocess.run(
            [self.python.parent / str(command[0]), *map(str, command[1:])],
            cwd=self.folder / "work",
            env={"PATH": path, "HOME": str(self.folder / "home"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def python_of(version: str) -> Path:
    """Return a Python such as 3.12, from PATH or pyenv; skip the test where there is none."""
    name = f"python{version}"
    on_path = [Path(found)] if (found := shutil.which(name)) else []
    pyenvs = [Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser(), *(path.parents[1] for path in on_path)]
    for path in [*on_path, *(path for each in pyenvs for path in each.glob(f"versions/{version}.*/bin/{name}"))]:
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:  # a shim may find none
            return path
    pytest.skip(f"needs Python {version}, on PATH or of pyenv")
