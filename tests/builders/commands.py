"""Commands of the command line, run in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenloom.cli.main import main


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    """Return the JSON of a command, one line, that ends with this exit code."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    value: dict[str, Any] = json.loads(out)
    return value
