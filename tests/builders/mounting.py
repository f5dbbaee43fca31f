"""File systems in memory, which tests fill and make read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mount_memory(folder: Path, options: str) -> None:
    """Mount a file system in memory on `folder`; skips the test where this is not allowed."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("needs the right to mount a file system")


def mounted_memory(folder: Path, options: str) -> Iterator[Path]:
    """Yield a folder with a file system in memory, which is unmounted afterwards."""
    mount_memory(folder, options)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
