"""The arithmetic of sizes: runs, pieces and tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tokenloom.tasks import sizes


@pytest.mark.parametrize("fan_in", [2, 4, 1024])
def test_runs_have_all_spills_once_and_in_order_and_no_more_than_may_be_read(
    monkeypatch: pytest.MonkeyPatch, fan_in: int
) -> None:
    monkeypatch.setattr(sizes, "MAX_FAN_IN", fan_in)
    assert sizes.runs_of(fan_in) == []
    for num_spills in [*range(fan_in + 1, 3 * fan_in**2 // 2 + 2, 1 + fan_in**2 // 300), sizes.MAX_SPILLS]:
        runs = sizes.runs_of(num_spills)
        assert (runs[0][0], runs[-1][1]) == (0, num_spills)
        assert all(end == start for (_, end), (start, _) in pairwise(runs))
        assert all(0 < end - first <= fan_in for first, end in runs)
        if num_spills <= fan_in**2:
            assert len(runs) <= fan_in


@pytest.mark.parametrize("text_bytes", [10**9, 10**11, 10**12, 10**13])
@pytest.mark.parametrize("token_bytes", [2, 4])
def test_ten_terabytes_are_read_in_few_and_large_parts(text_bytes: int, token_bytes: int) -> None:
    """Of 64 MB spills of 4.4 bytes a token, with documents of 700 tokens; two reads of each file for a piece."""
    num_spills, num_tokens = -(-text_bytes // 64_000_000), text_bytes * 10 // 44
    num_bytes, num_documents = num_tokens * token_bytes + 48 * num_tokens // 700, num_tokens // 700
    runs = sizes.runs_of(num_spills)
    num_reads, num_files = 0, len(runs) or num_spills
    for first, end in runs:
        share = num_spills // (end - first)
        num_reads += (end - first) * sizes.num_pieces(num_bytes // share, num_documents // share, end - first, False)
    num_reads += num_files * sizes.num_pieces(num_bytes, num_documents, num_files, False)
    assert 2 * num_reads <= 4 * 10**7
    moved = num_bytes * (2 if runs else 1)
    assert moved / (2 * num_reads) >= 2**17
