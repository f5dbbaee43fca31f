"""Gates: exact at their limits, and honest about what could not be compared."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.builders.manifests import empty_manifest
from tokenloom.spec.blocks import Checks
from tokenloom.storage.formats.manifest import RowCounts, SplitEntry, read_manifest
from tokenloom.storage.formats.records import sign
from tokenloom.storage.formats.statistics import DocumentStatistics, EncodedCounts
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions.build_record import BuildRecord, GateResult
from tokenloom.tasks.building.gates import gate_results, length_distance
from tokenloom.tasks.building.version_facts import VersionFacts

BUILD = BuildRecord(
    spec={},
    inputs=[],
    seconds={},
    measured={},
    host="",
    python="",
    libraries={},
    encoders={},
    statistics={"train": DocumentStatistics([0] * 10 + [100])},
    encoded={"books": EncodedCounts(100, 1000, 900)},
    gates=[],
    at="",
    by="",
)
ROWS = RowCounts(100, 0, 0, 0, 0, 100)
COUNTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any)


def version(
    name: str = "1" * 16,
    tokens: int = 1000,
    documents: int = 100,
    rows: RowCounts = ROWS,
    build: BuildRecord | None = BUILD,
) -> VersionFacts:
    """Return the facts of a version with these counts and the lengths and text of BUILD."""
    empty = read_manifest(sign(empty_manifest("books", name)), "manifest.json")
    splits = {"train": SplitEntry(tokens, documents, 0, [])}
    return VersionFacts(LocalStore("nowhere"), replace(empty, splits=splits, rows=rows), build)


OLD, NEW = version("0" * 16), version()


def result(name: str, limit: float, found: VersionFacts, reference: VersionFacts | str = OLD) -> GateResult:
    (gate,) = gate_results({name: limit}, found, reference)
    return gate


def test_every_check_of_the_spec_has_a_gate_in_its_order() -> None:
    limits = dict.fromkeys(Checks.model_fields, 1.0)
    assert [gate.name for gate in gate_results(limits, NEW, OLD)] == list(Checks.model_fields)


@pytest.mark.parametrize("name", [name for name in Checks.model_fields if name.endswith("drift")])
def test_two_versions_with_the_same_counts_have_no_drift(name: str) -> None:
    assert result(name, 0.0, NEW).passed


@given(old=st.integers(1, 10**15), new=st.integers(0, 10**15), limit=st.floats(0, 10, allow_nan=False))
def test_a_drift_is_compared_exactly_and_shown_on_the_right_side(old: int, new: int, limit: float) -> None:
    gate = result("max_token_drift", limit, version(tokens=new), version(tokens=old))
    exact = Fraction(repr(limit))
    assert gate.passed == (abs(new - old) <= exact * old)
    assert (Fraction(gate.found.partition(" (")[0]) <= exact) == gate.passed


@given(read=st.integers(1, 10**12), share=st.floats(0, 1), num_decimals=st.integers(1, 6))
def test_a_share_at_the_limit_passes_and_one_row_more_fails(read: int, share: float, num_decimals: int) -> None:
    limit = round(share, num_decimals)
    most = int(Fraction(repr(limit)) * read)  # rounded down
    assume(most < read)
    for num_rows, passed in ((most, True), (most + 1, False)):
        found = version(rows=RowCounts(read, 0, 0, 0, num_rows, read - num_rows))
        assert result("max_duplicate_share", limit, found).passed == passed


@given(COUNTS, COUNTS, st.integers(1, 1000))
def test_the_distance_of_histograms_is_a_distance(old: list[int], new: list[int], factor: int) -> None:
    distance = length_distance(old, new)
    assert 0 <= distance <= 1
    assert distance == length_distance(new, old)
    assert length_distance(old, [factor * count for count in old]) == 0
    assert length_distance([*old, *[0] * len(new)], [*[0] * len(old), *new]) == 1
