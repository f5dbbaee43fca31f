"""A spill damaged between tokenize and shuffle changes no shard: it ends the build, and the next encodes it again."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, listed_files, local_store, make_spec, write_jsonl
from tests.builders.observing import at_step
from tests.counts import SUMMARY, count
from tokenloom.errors import WorkError
from tokenloom.tasks.shuffling.merge import recorded_spill


def test_flipped_bits_in_spills_change_no_shard(tmp_path: Path) -> None:
    for name in "ab":
        texts = [f"text {i} of file {name}" + " and more" * (i % 9) for i in range(40)]
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [*texts, *texts[:5]])
    source = {"kind": "jsonl", "path": str(tmp_path / "in" / "*.jsonl")}
    spec = make_spec(tmp_path / "store", [source], shard_tokens=2000)
    result = build(spec)
    expected = listed_files(spec, result.version)
    store = local_store(spec.store, spec.dataset)
    spills = sorted(store.local("work/spills").glob("*.spill"))
    whole = {path: path.read_bytes() for path in spills}
    assert len(spills) == 2
    flips = random.Random(20261121)

    def damage(path: Path) -> None:
        recorded_spill.cache_clear()  # as in a process that has read no header yet
        flip_bit(path, flips.randrange(path.stat().st_size), flips.randrange(8))

    num_flips = count(16, 200)
    for _ in range(num_flips):
        shutil.rmtree(store.local("versions"))
        damaged = flips.choice(spills)
        with at_step("shuffle", partial(damage, damaged)), pytest.raises(WorkError) as caught:
            build(spec)
        assert str(damaged) in str(caught.value)
        assert (again := build(spec)).version == result.version
        assert again.num_encoded == 1
        assert listed_files(spec, result.version) == expected
        assert {path: path.read_bytes() for path in spills} == whole
    SUMMARY.append(f"spills: {num_flips} flipped bits, no shard changed")
