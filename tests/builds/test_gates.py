"""Gates before publication: a version that fails one leaves the store as it was, until its limit is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, build_record, local_store, make_spec, write_jsonl
from tokenloom.cli.main import main
from tokenloom.errors import GateFailed
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves, tags
from tokenloom.storage.versions.published import published_versions
from tokenloom.tasks.building.gates import evaluate_gates
from tokenloom.tasks.building.version_facts import facts_of

# Before: 100 documents of 9 bytes. After: 64 of them, 16 documents of 360 bytes, 24 copies, 16 empty rows, 5 bad rows.
BEFORE = [f"doc {i:05}" for i in range(100)]
AFTER = [*BEFORE[:64], *(f"{i:03}{'x' * 357}" for i in range(16)), *[BEFORE[0]] * 24, *[""] * 16]
NUM_BAD = 5
# The limit that the second version just keeps, and the next one that it does not.
EDGES = {
    "min_documents": (80, 81),
    "min_tokens": (64 * 10 + 16 * 361, 6417),
    "max_duplicate_share": (24 / 125, 0.1919),
    "max_quarantined_share": (5 / 125, 0.0399),
    "max_filtered_share": (16 / 125, 0.1279),
    "max_token_drift": (5.416, 5.4159),  # 1,000 tokens -> 6,416
    "max_document_drift": (0.2, 0.1999),
    "max_bytes_per_token_drift": (0.09375, 0.0937),  # 9/10 -> 63/64: (63/64) / (9/10) is 1.09375
    "max_length_drift": (0.2, 0.1999),  # 16 of 80 documents are in a bin of their own
}
STRICT = {"min_documents": 81, "max_token_drift": 5.0}


def spec_of(folder: Path, name: str, **checks: float) -> BuildSpec:
    source = {"kind": "jsonl", "path": str(folder / f"{name}.jsonl"), "name": "docs"}
    return make_spec(folder / "store", [source], documents={"on_error": "skip"}, checks=checks)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both inputs, and a store in which `latest` names the version of the first."""
    folder = tmp_path_factory.mktemp("made")
    write_jsonl(folder / "before.jsonl", BEFORE)
    path = write_jsonl(folder / "after.jsonl", AFTER)
    path.write_text(path.read_text() + '{"text": 3}\n' * NUM_BAD)
    build(spec_of(folder, "before"))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of `made`."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def store_of(folder: Path) -> LocalStore:
    return local_store(str(folder / "store"), "data")


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, ...]:
    """Return what a store shows: its versions, the log of its tag, and `ls --json`."""
    capsys.readouterr()
    assert main(["ls", str(folder / "store" / "data"), "--json"]) == 0
    store = store_of(folder)
    return published_versions(store), tags.log(store, "latest"), json.loads(capsys.readouterr().out)


def fail(spec: BuildSpec) -> GateFailed:
    with pytest.raises(GateFailed) as caught:
        build(spec)
    return caught.value


@pytest.mark.parametrize("name", EDGES)
def test_each_gate_fails_beyond_its_limit_and_passes_at_it(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, outside = EDGES[name]
    before = shown(folder, capsys)
    error = fail(spec_of(folder, "after", **{name: outside}))
    assert [(gate["name"], gate["passed"]) for gate in error.gates] == [(name, False)]
    assert f"{name}: expected {error.gates[0]['expected']}, found {error.gates[0]['found']}" in str(error)
    assert (error.exit_code, "\n" in str(error)) == (3, False)
    assert shown(folder, capsys) == before
    result = build(spec_of(folder, "after", **{name: inside}))
    assert (result.version, result.published, result.tag_moved, result.num_encoded) == (error.version, True, True, 0)
    assert [gate.passed for gate in result.gates] == [True]
    assert build_record(store_of(folder), result.version).gates == result.gates


def test_the_same_build_fails_again_without_encoding_or_shuffling(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fail(spec_of(folder, "after", **STRICT))

    def refuse(*args: object) -> None:
        raise AssertionError("this was made before")

    monkeypatch.setattr("tokenloom.tasks.building.tokenization.read_documents", refuse)
    monkeypatch.setattr("tokenloom.tasks.building.shuffle.merge_documents", refuse)
    again = fail(spec_of(folder, "after", **STRICT))
    assert (again.version, again.gates) == (first.version, first.gates)


def test_the_first_version_has_nothing_to_drift_from(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "before.jsonl", BEFORE)
    result = build(spec_of(tmp_path, "before", max_token_drift=0.0, max_length_drift=0.0))
    assert result.published
    assert {gate.found for gate in result.gates} == {"not compared: latest names no version"}


def test_a_try_out_is_not_checked(folder: Path) -> None:
    tryout = build(spec_of(folder, "after", min_documents=1000).model_copy(update={"limit": 10}))
    assert (tryout.published, tryout.gates) == (True, [])


def test_a_published_version_is_checked_by_its_recorded_figures_and_no_tag_moves(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shown(folder, capsys)
    error = fail(spec_of(folder, "before", min_documents=1000, max_token_drift=0.1))
    assert (error.exit_code, [gate["passed"] for gate in error.gates]) == (3, [False, True])
    assert f"{error.version} was published before, and latest names it: 1 of 2 checks failed: min_" in str(error)
    assert error.gates[1]["found"] == "not compared: latest names this version"
    assert str(error).endswith("Correct the data or `checks` and build again")  # there is no version to go back to
    assert shown(folder, capsys) == before
    assert [gate.passed for gate in build(spec_of(folder, "before", min_documents=100)).gates] == [True]
    build(spec_of(folder, "after"))
    moved = shown(folder, capsys)
    error = fail(spec_of(folder, "before", max_document_drift=0.2))  # 80 -> 100
    assert f"{error.version} was published before, and latest was not moved to it" in str(error)
    again = fail(spec_of(folder, "after", min_documents=1000))
    assert f"or let latest name the version before: `tokenloom rollback {store_of(folder).root}`" in str(again)
    assert shown(folder, capsys) == moved
    assert build(spec_of(folder, "before", max_document_drift=0.25)).tag_moved


def test_each_gate_finds_the_same_in_a_version_that_exists_as_before_its_publication(folder: Path) -> None:
    store, (old,) = store_of(folder), published_versions(store_of(folder))
    new = build(spec_of(folder, "after", **{name: inside for name, (inside, _) in EDGES.items()}))
    tag_moves.move(store, "latest", old, 2, "back")
    facts = facts_of(store, new.version)
    for strict in (False, True):
        limits = {name: edges[strict] for name, edges in EDGES.items()}
        found = evaluate_gates(facts, "latest", limits)
        assert [gate.passed for gate in found] == [not strict] * len(EDGES)
        assert strict or found == new.gates
    results = evaluate_gates(replace(facts, build=None), "latest", limits)
    unknown = {gate.name for gate in results if not gate.compared}
    assert unknown == {"max_bytes_per_token_drift", "max_length_drift"}
