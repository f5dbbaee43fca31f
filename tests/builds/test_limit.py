"""Try-outs: builds of the first documents of each source, which never replace real versions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import (
    build,
    listed_files,
    make_spec,
    manifest_json,
    source,
    stored_texts,
    write_jsonl,
    write_parquet,
)
from tests.counts import count
from tokenloom.cli.main import main
from tokenloom.errors import InputError, SpecError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.references import dataset_store

TEXTS = [f"document {i}: " + "word " * (i % 37) for i in range(400)]


def tagged(spec: BuildSpec) -> dict[str, str]:
    """Return {tag: version} of all tags of a dataset."""
    store = dataset_store(spec.store, spec.dataset)
    return {tag: entry.version for tag in store.names("tags") if (entry := tags.newest(store, tag))}


def small_files(folder: Path, texts: Sequence[str | None], file_rows: int, group_rows: int = 3) -> Path:
    """Write texts into parquet files of some rows each; return their glob."""
    for i, start in enumerate(range(0, len(texts), file_rows)):
        write_parquet(folder / f"{i:04d}.parquet", texts[start : start + file_rows], group_rows=group_rows)
    return folder / "*.parquet"


def two_sources(folder: Path) -> list[dict[str, Any]]:
    """Write 300 texts as many small parquet files and 100 as JSON lines."""
    return [source(small_files(folder / "a", TEXTS[:300], 17)), source(write_jsonl(folder / "b.jsonl", TEXTS[300:]))]


_WORDS = st.sampled_from(["", "a", "b", "c", "dd", "é", "some text", "漢字"])


@settings(max_examples=count(8, 300), deadline=None)
@given(
    texts=st.lists(st.tuples(st.none() | _WORDS, st.integers(0, 3)), min_size=1, max_size=40),
    limit=st.integers(1, 12),
    file_rows=st.integers(1, 15),
    group_rows=st.integers(1, 5),
)
def test_the_limit_counts_documents_not_rows(
    texts: list[tuple[str | None, int]], limit: int, file_rows: int, group_rows: int
) -> None:
    texts = [*texts, ("the last one", 2)]
    kept = [text for text, label in texts if text and label >= 2][:limit]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 40)
        lines = Path(folder, "a.jsonl")
        lines.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in texts))
        long_enough = [text if label >= 2 else "" for text, label in texts]
        path = small_files(Path(folder, "many"), long_enough, file_rows, group_rows)
        for one in (source(lines, filter="label >= 2"), source(path)):
            spec = make_spec(Path(folder, one["kind"]), [one], limit=limit, documents={"deduplicate": False})
            result = build(spec)
            assert stored_texts(spec, result.version) == sorted(kept)
            assert result.rows["kept"] == len(kept)
            assert result.rows["read"] == result.rows["kept"] + result.rows["filtered"] <= len(texts)


def test_rows_before_the_last_document_and_duplicates_are_counted(tmp_path: Path) -> None:
    texts: list[str | None] = []
    for i in range(20):
        texts += [f"text {i // 2}", "", None]
    spec = make_spec(tmp_path / "store", [source(small_files(tmp_path, texts, 1, 1))], limit=9)
    result = build(spec)  # each row is a file, and the 25th contains the ninth document
    assert result.rows == {"read": 25, "kept": 5, "duplicates": 4, "filtered": 16, "excluded": 0, "quarantined": 0}


def test_a_tryout_moves_its_own_tag_but_never_latest_even_if_it_has_all_documents(tmp_path: Path) -> None:
    sources = two_sources(tmp_path)
    small, all_of_it, full = (make_spec(tmp_path / "store", sources, limit=limit) for limit in (3, 10_000, None))
    first, whole, second = build(small), build(full), build(all_of_it)
    assert [(result.tag, result.tag_moved) for result in (first, whole, second)] == [
        ("tryout", True),
        ("latest", True),
        ("tryout", True),
    ]
    assert tagged(small) == {"tryout": second.version, "latest": whole.version}
    assert build(small).published is False
    assert tagged(small)["latest"] == whole.version
    assert len({first.version, second.version, whole.version}) == 3
    store = dataset_store(full.store, full.dataset)
    limits = [manifest_json(store, result.version)["spec"].get("limit") for result in (first, second, whole)]
    assert limits == [3, 10_000, None]
    assert listed_files(all_of_it, second.version, ".tok") == listed_files(full, whole.version, ".tok")


def test_tryouts_and_full_builds_do_not_affect_each_other(tmp_path: Path) -> None:
    sources = [*two_sources(tmp_path), source(tmp_path / "b.jsonl", name="again")]
    fresh = {
        limit: listed_files(spec, build(spec, num_workers).version)
        for limit, num_workers in ((3, 0), (60, 2), (None, 0))
        for spec in [make_spec(tmp_path / f"fresh-{limit}", sources, limit=limit)]
    }
    for order in ((3, 60, None), (None, 60, 3)):
        for limit in order:
            spec = make_spec(tmp_path / f"store-{order[0]}", sources, limit=limit)
            assert listed_files(spec, build(spec).version) == fresh[limit]


def test_a_tryout_stops_reading_at_its_limit(tmp_path: Path) -> None:
    for i in range(5):
        write_jsonl(tmp_path / f"{i}.jsonl", TEXTS[20 * i : 20 * i + 20])
    (tmp_path / "5.jsonl").write_text("no JSON\n")
    sources = [{"kind": "jsonl", "path": str(tmp_path / "*.jsonl")}]
    result = build(make_spec(tmp_path / "store", sources, limit=100))
    assert (result.num_encoded, result.rows["read"]) == (5, 100)
    with pytest.raises(InputError, match="not valid JSON"):
        build(make_spec(tmp_path / "store", sources, limit=101))


def test_the_command_line_accepts_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_sources(tmp_path)
    path = tmp_path / "spec.yaml"
    path.write_text(
        "dataset: data\nstore: ./store\nsources:\n"
        "  - {kind: parquet, path: a/*.parquet}\n  - {kind: jsonl, path: b.jsonl}\ntokenizer: {kind: byte}\n"
    )
    arguments = ["build", str(path), "--limit", "3", "--direct", "--workers", "0"]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr().out
    value = json.loads(said)
    assert said.count("\n") == 1
    assert (value["tag"], value["tag_moved"], value["rows"]["kept"]) == ("tryout", True, 6)
    spec = load_spec(str(path), ["limit=3"])
    assert stored_texts(spec, value["version"]) == sorted([*TEXTS[:3], *TEXTS[300:303]])
    assert tagged(spec) == {"tryout": value["version"]}
    assert main(arguments) == 0
    assert "never latest" in capsys.readouterr().out
    assert main(["plan", str(path), "--limit", "3", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["version"], planned["published"]) == (value["version"], True)


def test_a_limit_that_is_not_a_positive_integer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(
        "dataset: data\nstore: ./s\nsources: [{kind: jsonl, path: a.jsonl}]\ntokenizer: {kind: byte}\n"
    )
    for wrong in ("0", "-1", "many"):
        assert main(["build", str(tmp_path / "spec.yaml"), "--limit", wrong]) == 2
    with pytest.raises(SpecError, match="limit"):
        load_spec(str(tmp_path / "spec.yaml"), ["limit=0"])
