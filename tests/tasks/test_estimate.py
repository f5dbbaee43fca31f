"""Estimates are close to the build; a plan that does not fit is refused, and a build warns."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.builders.refusals import NEXT_STEP
from tests.tasks import test_source_kinds as kinds
from tests.tasks.source_conformance import SourceConformance, make_rows
from tokenloom.cli.main import main
from tokenloom.flows.direct import plan_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.local import LocalStore
from tokenloom.tasks.building.plan import BuildPlan
from tokenloom.tasks.building.publish import BuildResult
from tokenloom.tasks.preview import Estimate, estimate_build
from tokenloom.wording import shown_bytes

_WORDS = [f"word{i}" for i in range(2000)]


def _planned(spec: BuildSpec) -> tuple[BuildPlan, Estimate]:
    planned, estimate, _ = plan_directly(spec, 0)
    assert estimate is not None
    return planned, estimate


def make_texts(num_bytes: int, longest: int = 400) -> list[str]:
    """Return distinct texts of 5 to `longest` words, about `num_bytes` in all."""
    rng = random.Random(num_bytes)
    texts: list[str] = []
    while num_bytes > 0:
        start = rng.randrange(len(_WORDS) - longest)
        texts.append(f"{len(texts)}: é " + " ".join(_WORDS[start : start + rng.randrange(5, longest)]))
        num_bytes -= len(texts[-1])
    return texts


KINDS: dict[str, SourceConformance] = {
    "parquet": kinds.TestParquet(),
    "lines": kinds.TestJsonLines(),
    "gzip": kinds.TestJsonLinesGzip(),
    "array": kinds.TestJsonArray(),
    "csv": kinds.TestCsv(),
    "text": kinds.TestTextWithSeparator(),
}


def source_of(kind: str, folder: Path, texts: list[str]) -> dict[str, Any]:
    """Write texts as a kind of source does, with other columns where it has some; return the source."""
    form = KINDS[kind]
    return {"kind": form.kind, "path": str(form.write(folder, make_rows(texts))), **form.options}


@pytest.fixture(scope="module")
def many_texts() -> list[str]:
    """More text than a sample reads."""
    return make_texts(24_000_000)


def assert_near(found: float, wanted: float, share: float) -> None:
    """Return by how much an estimate is off, if by more than `share`."""
    assert abs(found / wanted - 1) <= share, f"{found:,} is {found / wanted:.3f} of {wanted:,}"


def totals(result: BuildResult) -> tuple[int, int, int]:
    """Return (tokens, documents, shards) of a build."""
    tokens, documents, shards = (
        sum(split[name] for split in result.splits.values()) for name in ("tokens", "documents", "shards")
    )
    return tokens, documents, shards


def written_bytes(spec: BuildSpec, folder: str) -> int:
    """Return the bytes of all files in a folder of the dataset."""
    files = Path(spec.store, spec.dataset, folder).rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def estimate_of(spec: BuildSpec) -> Estimate:
    """Return the estimate of a plan."""
    return _planned(spec)[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_bytes", [300_000, 24_000_000])
def test_estimated_tokens_and_documents_are_near_those_of_the_build(
    kind: str, num_bytes: int, many_texts: list[str], tmp_path: Path
) -> None:
    texts = many_texts if num_bytes == 24_000_000 else make_texts(num_bytes)
    text_bytes = sum(len(text.encode()) for text in texts)
    estimate = estimate_of(make_spec(tmp_path / "store", [source_of(kind, tmp_path, texts)]))
    if num_bytes == 24_000_000:
        assert kind == "array" or estimate.sampled_bytes < 0.9 * text_bytes  # the rest is extrapolated
        assert_near(estimate.num_tokens, text_bytes + len(texts), 0.1)
        assert_near(estimate.num_documents, len(texts), 0.1)
    else:
        assert (estimate.sampled_bytes, estimate.num_documents) == (text_bytes, len(texts))
        assert estimate.num_tokens == text_bytes + len(texts)


@pytest.fixture(scope="module")
def mixed(many_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> BuildSpec:
    """A spec of all kinds, one of them larger than a sample."""
    folder = tmp_path_factory.mktemp("mixed")
    sources = []
    for i, kind in enumerate(KINDS):
        (folder / kind).mkdir()
        texts = many_texts if kind == "lines" else make_texts(500_000 * (i + 1) + 17, 100 * (i + 1))
        sources.append(source_of(kind, folder / kind, [f"{kind} {text}" for text in texts]))
    return make_spec(folder / "store", sources, shard_tokens=3_500_000)


def test_estimated_disk_and_shards_are_near_and_exact_once_all_is_encoded(mixed: BuildSpec) -> None:
    planned, estimate = _planned(mixed)
    assert not planned.published
    tokens, documents, shards = totals(build(mixed))
    assert_near(estimate.num_tokens, tokens, 0.1)
    assert_near(estimate.num_documents, documents, 0.1)
    spills, versions = written_bytes(mixed, "work/spills"), written_bytes(mixed, "versions")
    assert_near(estimate.spill_bytes, spills, 0.15)
    assert_near(estimate.shard_bytes, versions, 0.15)
    assert_near(estimate.disk_bytes, spills + versions, 0.15)
    assert shards > 10
    assert estimate.num_shards == shards
    assert estimate.seconds > 0

    planned, estimate = _planned(mixed)
    assert (estimate.num_tokens, estimate.num_documents, estimate.num_shards) == (tokens, documents, shards)
    assert (estimate.disk_bytes, estimate.seconds, estimate.sampled_bytes) == (0, 0, 0)
    again = estimate_build(dataclasses.replace(planned, published=False), [], 1)
    assert_near(again.shard_bytes, versions, 0.01)
    assert again.spill_bytes == 0


def test_only_partitions_that_are_not_encoded_are_probed(tmp_path: Path) -> None:
    for i in range(3):
        write_jsonl(tmp_path / f"{i}.jsonl", make_texts(200_000 + i))
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "*.jsonl")}])
    build(spec)
    new = make_texts(100_000)
    write_jsonl(tmp_path / "3.jsonl", [f"new {text}" for text in new])
    estimate = estimate_of(spec)
    before = written_bytes(spec, "work/spills"), written_bytes(spec, "versions")
    assert estimate.sampled_bytes == sum(len(f"new {text}".encode()) for text in new)
    tokens, documents, _ = totals(build(spec))
    assert (estimate.num_documents, estimate.num_tokens) == (documents, tokens)
    assert_near(estimate.spill_bytes, written_bytes(spec, "work/spills") - before[0], 0.15)
    assert_near(estimate.shard_bytes, written_bytes(spec, "versions") - before[1], 0.15)


# A disk that is too small


@pytest.fixture
def project(tmp_path: Path) -> BuildSpec:
    """A spec, also as a file, and a small input."""
    write_jsonl(tmp_path / "a.jsonl", make_texts(300_000))
    (tmp_path / "spec.yaml").write_text(
        "dataset: data\nstore: ./store\nsources: [{kind: jsonl, path: a.jsonl}]\ntokenizer: {kind: byte}\n"
    )
    return make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(tmp_path / "a.jsonl"), "name": "jsonl-0"}])


def leave_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    """Set the free space that every store's file system reports."""
    monkeypatch.setattr(LocalStore, "free_bytes", lambda self: num_bytes)


def test_a_plan_refuses_what_the_disk_cant_hold(
    project: BuildSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need = estimate_of(project).disk_bytes
    leave_free(monkeypatch, need - 1)
    assert main(["plan", str(tmp_path / "spec.yaml")]) == 1
    said = capsys.readouterr().err
    assert shown_bytes(need) in said
    assert "free" in said
    assert NEXT_STEP.search(said)


@pytest.mark.parametrize(("free", "is_warned"), [(None, False), (10**12, False), (20_000, True)])
def test_a_build_warns_of_too_little_space_without_reading_more(
    free: int | None,
    is_warned: bool,
    project: BuildSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leave_free(monkeypatch, free)
    assert main(["build", str(tmp_path / "spec.yaml"), "--direct", "--workers", "0"]) == 0
    assert ("free, and the spills and shards of so much text usually take" in capsys.readouterr().err) == is_warned
