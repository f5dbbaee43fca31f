"""Remote input files that a step opens several times."""

from __future__ import annotations

import fsspec

from tests.builders.memory_objects import SCHEME
from tokenloom.tasks.sources.files import open_url, sharing_files


def test_sharing_files_keeps_at_most_two_files_open() -> None:
    system = fsspec.filesystem("memory")
    for number in range(5):
        system.pipe_file(f"/shared/{number}", bytes(1000))
    with sharing_files():
        opened = []
        for number in (0, 1, 0, 2, 1):
            with open_url(f"{SCHEME}://shared/{number}") as file:
                opened.append(file)
    assert opened[2] is opened[0]
    assert opened[4] is opened[1]
    assert len({id(file) for file in opened}) == 3
    system.rm("/shared", recursive=True)
