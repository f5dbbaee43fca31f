"""work/ can be deleted during a build, which then writes its files again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, built_alone, lines_spec, listed_files

TEXTS = [f"document {i} " * 5 for i in range(40)]


def test_work_deleted_before_any_rename_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = lines_spec(tmp_path, TEXTS, shard_tokens=1000)
    expected = built_alone(spec, tmp_path)
    rename, num_renames = os.replace, 0

    def counting(*names: Any) -> None:
        nonlocal num_renames
        num_renames += 1
        rename(*names)

    monkeypatch.setattr(os, "replace", counting)
    build(spec)
    assert num_renames >= 8
    for nth in range(num_renames):
        calls = 0

        def deleting(*names: Any, nth: int = nth, store: Path = tmp_path / f"store-{nth}") -> None:
            nonlocal calls
            if calls == nth:
                shutil.rmtree(store / "data" / "work")
            calls += 1
            rename(*names)

        monkeypatch.setattr(os, "replace", deleting)
        again = spec.model_copy(update={"store": str(tmp_path / f"store-{nth}")})
        assert listed_files(again, build(again).version) == expected, f"deleted before rename {nth}"
        assert calls > nth
