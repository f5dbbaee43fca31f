"""The same documents and spec give the same bytes, whatever process encodes them and whatever files hold them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_parquet
from tests.counts import FULL, data_folder, every, full_only
from tests.tasks import source_conformance as conformance
from tests.tasks import test_source_kinds as kinds
from tokenloom.flows.build_steps import cut_inputs
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building.plan import BuildPlan, plan_build
from tokenloom.tasks.running.steps import open_workers

pytestmark = pytest.mark.timeout(400)


_HARD = [
    *("nul \0 inside", "\0", "one\r\ntwo\nthree\rfour", "\r"),
    "emoji \U0001f469\u200d\U0001f680 and e\u0301, \u2028 too",
    *("<|endoftext|>", "a<|endoftext|>b", 'quotes " and , commas; \\backslash \\n', " spaces around ", "\ufeffmark"),
    *("NA", "null", "2020-01-01", "1.50", "[]", "", "\U0010ffff\ue000", "long " * 40_000),
]


def _documents() -> list[conformance.Row]:
    """Return rows of texts, many of them twice and far apart: real news if available or made-up words, and _HARD."""
    generator, texts = random.Random(5), list[str]()
    data = data_folder("TOKENLOOM_TEST_DATA")
    for path in sorted((data / "ag_news").glob("*.parquet"))[:2] if data else ():
        texts += pq.read_table(path, columns=["text"]).column("text").to_pylist()[:400]
    words = [f"{generator.getrandbits(24):x}" for _ in range(3000)]
    texts = texts or [" ".join(generator.choices(words, k=generator.randrange(60))) for _ in range(800)]
    texts += _HARD + generator.sample(texts, 200)
    generator.shuffle(texts)
    return conformance.make_rows(texts + _HARD)


class _JsonLinesInFrames(kinds.TestJsonLinesZstd):
    """Several frames in one .zst, as parallel compressors write them."""

    compress = staticmethod(
        lambda data: b"".join(
            pa.Codec("zstd").compress(data[i : i + 50_000], asbytes=True) for i in range(0, len(data), 50_000)
        )
    )


_FORMS: dict[str, conformance.SourceConformance] = {
    "parquet": kinds.TestParquet(),
    "json lines": kinds.TestJsonLines(),
    "json lines, gz": kinds.TestJsonLinesGzip(),
    "json lines, bz2": kinds.TestJsonLinesBzip2(),
    "json lines, zst": kinds.TestJsonLinesZstd(),
    "json lines, zst in frames": _JsonLinesInFrames(),
    "json array": kinds.TestJsonArray(),
    "csv": kinds.TestCsv(),
    "arrow stream": kinds.TestArrowStream(),
    "arrow file": kinds.TestArrowFile(),
    "arrow folder": kinds.TestArrowFolder(),
    "array records": kinds.TestArrayRecord(),
    "huggingface folder": kinds.TestHuggingFaceFolder(),
    "array records of json": kinds.TestArrayRecordOfJson(),
}


def _source(form: conformance.SourceConformance, path: Path) -> dict[str, Any]:
    """Return the source of a spec for the files that a form wrote."""
    where = form.options_for(path) or {"path": str(path)}
    return {"kind": form.kind, **where, **({"text": "text"} if form.has_columns else {})}


def _written(
    form: conformance.SourceConformance, folder: Path, rows: Sequence[conformance.Row], num_files: int
) -> list[dict[str, Any]]:
    """Write rows into files, one source each."""
    sources = []
    for i in range(num_files):
        part = folder / str(i)
        part.mkdir()
        start, end = i * len(rows) // num_files, (i + 1) * len(rows) // num_files
        sources.append(_source(form, form.write(part, rows[start:end])))
    return sources


class _Same:
    """The documents, and the shards that they give from one parquet file."""

    def __init__(self, folder: Path, tokenizer: dict[str, Any]) -> None:
        self.rows = _documents()
        self._fields = {"tokenizer": tokenizer, "shard_tokens": 80_000}
        path = write_parquet(folder / "all.parquet", [row["text"] for row in self.rows])
        self.hashes = self.shards(folder, [{"kind": "parquet", "path": str(path), "name": "reference"}])
        assert len(self.hashes) > 5

    def shards(self, folder: Path, sources: Sequence[dict[str, Any]], **fields: Any) -> dict[str, str]:
        """Build; return {name: SHA-256} of only the shards, because document tables name sources, files and rows."""
        spec = self.spec(folder, sources, **fields)
        return listed_files(spec, build(spec).version, ".tok")

    def spec(self, folder: Path, sources: Sequence[dict[str, Any]], **fields: Any) -> BuildSpec:
        """Return the spec; `fields` may have any value, also one that no file of a spec may have."""
        return make_spec(folder / "store", sources, **self._fields).model_copy(update=fields)


@pytest.fixture(scope="module", params=["byte", pytest.param("gpt2", marks=full_only)])
def same(
    request: pytest.FixtureRequest,
    vocabulary: Callable[[str], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> _Same:
    tokenizer = {"kind": "byte"} if request.param == "byte" else vocabulary(request.param)
    return _Same(tmp_path_factory.mktemp("forms"), tokenizer)


@pytest.mark.parametrize("num_workers", [2, pytest.param(1, marks=full_only), pytest.param(4, marks=full_only)])
def test_the_number_of_workers_changes_no_bytes(same: _Same, tmp_path: Path, num_workers: int) -> None:
    sources = _written(_FORMS["parquet"], tmp_path, same.rows, 3)
    specs = [make_spec(tmp_path / str(n), sources, shard_tokens=80_000) for n in (0, num_workers)]
    alone, together = (
        listed_files(spec, build(spec, n).version) for spec, n in zip(specs, (0, num_workers), strict=True)
    )
    assert alone == together
    assert {name.rpartition(".")[2] for name in alone} == {"tok", "docs", "blocks", "json"}
    assert sum(name.startswith("train/") and name.endswith(".tok") for name in alone) > 2


@pytest.mark.parametrize("num_files", [1, 3, 7] if FULL else [3])
@pytest.mark.parametrize("form", every(2, _FORMS))
def test_kind_and_name_of_a_source_change_no_shard_bytes(
    same: _Same, tmp_path: Path, form: str, num_files: int
) -> None:
    assert same.shards(tmp_path, _written(_FORMS[form], tmp_path, same.rows, num_files)) == same.hashes


def test_mixing_kinds_of_sources_changes_no_shard_bytes(same: _Same, tmp_path: Path) -> None:
    sources, share = [], len(same.rows) // len(_FORMS) + 1
    for i, form in enumerate(_FORMS.values()):
        (tmp_path / str(i)).mkdir()
        sources += _written(form, tmp_path / str(i), same.rows[i * share : (i + 1) * share], 1)
    assert same.shards(tmp_path, sources[::-1]) == same.hashes


@pytest.mark.parametrize("group_rows", [3, 100, 10**6])
def test_row_groups_and_files_of_a_glob_change_no_shard_bytes(same: _Same, tmp_path: Path, group_rows: int) -> None:
    texts = [row["text"] for row in same.rows]
    cuts = [0, 0, 1, 400, len(texts)]  # one file is empty, one has a single row
    for i, (start, end) in enumerate(pairwise(cuts)):
        write_parquet(tmp_path / f"{i}.parquet", texts[start:end], group_rows=group_rows)
    assert same.shards(tmp_path, [{"kind": "parquet", "path": str(tmp_path / "*.parquet")}]) == same.hashes


def _cut(spec: BuildSpec) -> BuildPlan:
    """Return the plan of a build with its partitions."""
    with open_workers(0) as runner:
        return cut_inputs(plan_build(spec, None), runner)


@pytest.mark.parametrize("form", every(2, [name for name, form in _FORMS.items() if form.is_cut]))
def test_partition_bytes_name_spills_and_change_no_shard_bytes(same: _Same, tmp_path: Path, form: str) -> None:
    sources = _written(_FORMS[form], tmp_path, same.rows, 1)
    default = _cut(same.spec(tmp_path, sources))
    for partition_bytes in (50_000, random.Random(form).randrange(10_000, 10**5)):
        folder = tmp_path / str(partition_bytes)
        plan = _cut(same.spec(folder, sources, partition_bytes=partition_bytes))
        assert plan.build.version == default.build.version
        assert not {part.spill_name for part in plan.partitions} & {part.spill_name for part in default.partitions}
        assert len(plan.partitions) > len(default.partitions)
        assert same.shards(folder, sources, partition_bytes=partition_bytes) == same.hashes
