"""The files and lines that docs/comparison/index.md gives as its sources are in the released packages."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from tests.peers.environments import unpacked

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/comparison/index.md").read_text(encoding="utf-8")
#: By name on the page: package, version, and the folder in its wheel that the page's paths start from.
_PACKAGES = {
    "Megatron-core": ("megatron-core==0.19.2", "megatron"),
    "datatrove": ("datatrove==0.10.1", "datatrove"),
    "NeMo Curator": ("nemo-curator==1.4.0", "nemo_curator"),
    "OLMo-core": ("ai2-olmo-core==3.0.0", "olmo_core"),
    "MosaicML": ("mosaicml-streaming==0.13.0", "streaming"),
    "LitData": ("litdata==0.2.76", "litdata"),
    "Grain": ("grain==0.2.18", "grain/_src/python"),
    "torchtitan": ("torchtitan==0.3.0", "torchtitan"),
}
_TOOL = re.compile("|".join(_PACKAGES))
_SOURCE = re.compile(r"`([\w/]+\.py)`((?: \([^)]*\))?(?:,? l\.\d+)*)")


def _sources(tool: str) -> list[tuple[str, list[int]]]:
    """Return the files that the bullets name for a tool, with the lines given beside them."""
    found = []
    bullets = re.split(r"\n(?=- )|\n\n", _PAGE)
    for bullet in (bullet.replace("\n  ", " ") for bullet in bullets if bullet.startswith("- ") and "::" not in bullet):
        current = None
        for match in re.finditer(f"({_TOOL.pattern})|{_SOURCE.pattern}", bullet):
            if match[1]:
                current = match[1]
            elif current == tool and not match[2].startswith(("tools/", "preprocess_data")):
                found.append((match[2], [int(line) for line in re.findall(r"l\.(\d+)", match[3])]))
    return found


@pytest.mark.parametrize("tool", _PACKAGES)
def test_each_file_and_line_is_in_the_release(tool: str) -> None:
    requirement, folder = _PACKAGES[tool]
    version = requirement.partition("==")[2]
    assert re.search(rf"^\| {tool}[^|]*\| {re.escape(version)}", _PAGE, re.MULTILINE)
    wheel = unpacked(requirement, "3.12")
    sources = _sources(tool)
    assert len(sources) >= 3
    for name, lines in sources:
        files = [path for path in chain((wheel / folder).rglob("*.py"), wheel.rglob("*.py")) if path.match(name)]
        assert files, (tool, name)
        longest = max(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        assert all(line <= longest for line in lines), (tool, name, lines)
