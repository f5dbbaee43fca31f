"""The wording of counts, times and tokenizers in messages and tables."""

from __future__ import annotations

import pytest

from tokenloom.wording import about, clock, counted, counted_rows, duration, first_of, percent


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (counted(1, "file"), "1 file"),
        (counted(0, "file"), "0 files"),
        (counted(1234567, "document"), "1,234,567 documents"),
        (counted(1, "batch"), "1 batch"),
        (counted(2, "batch"), "2 batches"),
        (counted(2, "process"), "2 processes"),
        (counted_rows({"read": 1, "filtered": 0, "duplicates": 1}), "1 read, 0 filtered, 1 duplicate"),
        (counted_rows({"duplicates": 1234}), "1,234 duplicates"),
    ],
)
def test_a_count_agrees_with_its_noun(shown: str, words: str) -> None:
    assert shown == words


def test_a_measured_time_is_short_an_estimated_one_rounded_and_a_running_one_a_clock() -> None:
    measured = {0.04: "0.0 s", 12.34: "12.3 s", 99.94: "99.9 s", 99.96: "1 min 40 s", 3600: "1 h 0 min"}
    assert {seconds: duration(seconds) for seconds in measured} == measured
    estimated = {0: "about 5 s", 42: "about 42 s", 170: "about 3 min", 4804: "about 80 min", 10**4: "about 3 h"}
    assert {seconds: about(seconds) for seconds in estimated} == estimated
    assert [clock(seconds) for seconds in (7, 754, 3723)] == ["0:07", "12:34", "1:02:03"]


def test_only_complete_work_is_at_100_percent() -> None:
    assert [percent(share) for share in (0, 0.999, 1)] == ["0%", "99%", "100%"]


def test_a_long_list_of_names_ends_with_a_count() -> None:
    names = [f"n{i}" for i in range(1011)]
    assert first_of(names) == "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 1,001 more"
    assert [first_of(names[:count]) for count in (0, 2)] == ["none", "n0, n1"]
