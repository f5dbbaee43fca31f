"""The flow build-a-spec-file: each run reads its spec file again, and nothing else determines the build."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.sorting import FlowRunSort

from tests.builders.datasets import manifest_json, write_jsonl
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom.errors import SpecError
from tokenloom.flows.build_dataset import build_a_spec_file
from tokenloom.storage.versions.references import dataset_store
from tokenloom.storage.versions.tags import newest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]
SPEC = """\
dataset: news
store: ../store
sources:
  - {kind: jsonl, path: ../input/*.jsonl}
tokenizer: {kind: byte}
runner: {kind: process, workers: 0}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TOKENLOOM_HOME with specs/news.yaml and an input file; the current folder is another one."""
    write_jsonl(tmp_path / "home" / "input" / "a.jsonl", [f"document {i}" for i in range(50)])
    (tmp_path / "home" / "specs").mkdir()
    (tmp_path / "home" / "specs" / "news.yaml").write_text(SPEC)
    monkeypatch.setenv("TOKENLOOM_HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "home"


def test_each_run_reads_the_spec_file_and_the_input_again(home: Path) -> None:
    first = build_a_spec_file(spec_file="specs/news.yaml")
    assert (first["published"], first["rows"]["read"]) == (True, 50)
    assert Path(first["reference"].partition("@")[0]).resolve() == home / "store" / "news"
    assert build_a_spec_file(spec_file="specs/news.yaml")["published"] is False
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=2)
    assert [run.name for run in runs] == ["build-news", "build-news"]
    write_jsonl(home / "input" / "b.jsonl", ["one more"])
    assert build_a_spec_file(spec_file="specs/news.yaml")["rows"]["read"] == 51
    (home / "specs" / "news.yaml").write_text(SPEC + "seed: 1\n")
    assert build_a_spec_file(spec_file="specs/news.yaml")["published"] is True


def test_overrides_are_lines_whose_paths_start_from_tokenloom_home(home: Path) -> None:
    result = build_a_spec_file(spec_file="specs/news.yaml", overrides="\n  store=other store\n\nlimit=7\n")
    assert result["reference"].startswith(f"{home}/other store/news@")
    store = dataset_store(f"{home}/other store", "news")
    tag = newest(store, "tryout")
    assert tag is not None
    assert manifest_json(store, tag.version)["rows"]["read"] == 7


def test_limit_and_tag_override_the_file(home: Path) -> None:
    with pytest.raises(SpecError, match="'To Try' is not a valid tag"):
        build_a_spec_file(spec_file="specs/news.yaml", tag="To Try")
    result = build_a_spec_file(spec_file="specs/news.yaml", limit=7, tag="mini")
    store = dataset_store(f"{home}/store", "news")
    named = {tag: entry and entry.version for tag in ("latest", "tryout", "mini") for entry in [newest(store, tag)]}
    assert named == {"latest": None, "tryout": result["version"], "mini": result["version"]}
    assert result["rows"]["read"] == 7


def test_a_run_without_its_spec_file_fails_even_if_a_version_exists(home: Path) -> None:
    build_a_spec_file(spec_file="specs/news.yaml")
    (home / "specs" / "news.yaml").unlink()
    with pytest.raises(SpecError, match=r"home/specs/news\.yaml: no such file"):
        build_a_spec_file(spec_file="specs/news.yaml")


def test_a_relative_spec_file_needs_tokenloom_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENLOOM_HOME")
    with pytest.raises(SpecError, match=r"spec_file: 'specs/news\.yaml' is relative, which .*TOKENLOOM_HOME"):
        build_a_spec_file(spec_file="specs/news.yaml")
    assert build_a_spec_file(spec_file=f"{home}/specs/news.yaml")["published"] is True


def test_paths_of_a_spec_at_a_url_start_from_its_folder(home: Path, s3_proxy: FaultyProxy) -> None:
    upload(s3_proxy.url, home, "corpora")
    result = build_a_spec_file(spec_file=f"s3://{BUCKET}/corpora/specs/news.yaml")
    assert result["published"] is True
    assert result["reference"].startswith(f"s3://{BUCKET}/corpora/store/news@")
