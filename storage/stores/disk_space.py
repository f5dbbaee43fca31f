"""What is free on the file system of a path that need not exist yet."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def free_bytes(path: Path) -> int | None:
    """Return the free bytes of the file system that `path` lies on or would lie on; None if it does not tell."""
    try:
        usage = shutil.disk_usage(_existing(path))
        return usage.free if usage.total else None  # no file system on a disk: /proc
    except OSError:
        return None


def describe_file_system(path: Path) -> str:
    """Return where the file system of `path` is mounted and what is free there, for messages.

    Example: "file system /mnt/data, 0 bytes free"
    """
    there = Path(os.path.realpath(_existing(path)))
    mount = next(folder for folder in (there, *there.parents) if os.path.ismount(folder))
    try:
        status = os.statvfs(mount)
    except OSError:
        return f"file system {mount}"
    no_files = " and none left for files" if status.f_files and not status.f_favail else ""
    return f"file system {mount}, {status.f_bavail * status.f_frsize:,} bytes free{no_files}"


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))
