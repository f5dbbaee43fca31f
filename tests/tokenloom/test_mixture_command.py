"""`tokenloom mixture`: what a state's mixture reads, as a table, as JSON and as a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.reader.oracle import make_store
from tokenloom.cli.main import main
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture

_NUM_MEMBERS = 14


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    data = TokenDataset(make_store(tmp_path_factory.mktemp("charted"), (900,)), seq_len=16)
    members = {f"m{i:02}": (data, i + 1.0) for i in range(_NUM_MEMBERS)}
    return Mixture(members, [(500, {name: float(name == "m03") for name in members})])


def state_of(mixture: Mixture, path: Path) -> list[str]:
    """Write the state of a loader; return the arguments that name it."""
    loader = TokenLoader(mixture, 2)
    path.write_text(json.dumps(loader.state_dict() | {"samples": 40}))
    return ["mixture", str(path), "--store", str(Path(mixture.datasets["m00"].reference).parent)]


def test_the_plan_of_a_number_of_samples_is_shown(
    mixture: Mixture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = state_of(mixture, tmp_path / "state.json")
    assert main([*command, "--samples", "2000", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    consumed = TokenLoader(mixture, 1).consumed(2000)
    assert (found["samples"], found["taken"]) == (2000, 40)
    assert {name: member["samples"] for name, member in found["members"].items()} == {
        name: read.samples for name, read in consumed.items()
    }
    assert main([*command, "--samples", "2000"]) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == "2,000 samples of 16 tokens; 40 are taken"
    assert header.split()[:5] == ["member", "from", "0", "from", "500"]
    assert len(rows) == _NUM_MEMBERS
    repeat = found["members"]["m03"]["first_repeat"]
    assert rows[3].split() == ["m03", "0.0381", "1", *rows[3].split()[3:-1], f"{repeat:,}"]
    assert mixture.describe(2000).splitlines()[4].split() == rows[3].split()


def test_the_chart_has_a_bar_for_each_stage_and_member(mixture: Mixture, tmp_path: Path) -> None:
    path = tmp_path / "shares.svg"
    assert main([*state_of(mixture, tmp_path / "state.json"), "--svg", str(path)]) == 0
    svg = {"svg": "http://www.w3.org/2000/svg"}
    root = ElementTree.parse(path).getroot()
    bars = [rect for rect in root.findall("svg:rect", svg) if rect.find("svg:title", svg) is not None]
    by_stage = [bars[:12], bars[12:]]
    assert [len(stage) for stage in by_stage] == [12, 12]  # eleven members, and the others together
    for stage in by_stage:
        assert sum(float(rect.attrib["width"]) for rect in stage) == pytest.approx(420, abs=0.1)
    assert any("3 others: 0.0571" in "".join(rect.itertext()) for rect in by_stage[0])


def test_the_state_of_a_dataset_is_refused(
    mixture: Mixture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    command = state_of(mixture, path)
    path.write_text(json.dumps(TokenLoader(mixture.datasets["m00"], 2).state_dict()))
    assert main(command) == 2
    assert "state.json: the state is of a dataset, not of a mixture" in capsys.readouterr().err
