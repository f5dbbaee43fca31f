"""`tokenloom init FILES`: the spec that it writes plans at once, and reads what a person would have named."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Dataset

from tokenloom.cli.main import main
from tokenloom.spec.loading import load_spec
from tokenloom.tasks.building.plan import cut_file, plan_build

_TEXTS = ["the first text", "another, a little longer", "the third: with a colon"]
_CHATS: dict[str, list[dict[str, Any]]] = {
    "messages": [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}],
    "sharegpt": [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}],
    "alpaca": [{"instruction": "a", "input": "", "output": "b", "text": "a b"}],
    "prompt_completion": [{"prompt": "a", "completion": "b"}],
}


def _lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return pa.table(columns).to_pylist()  # type: ignore[no-any-return]


def _written(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return the sources of the spec that init writes in a folder, which must plan."""
    with contextlib.chdir(folder):
        assert main(["init", *arguments]) == 0
        assert yaml.safe_load(Path("tokenloom.yaml").read_text())["tokenizer"] == {"kind": "tiktoken", "name": "gpt2"}
        plan = plan_build(load_spec("tokenloom.yaml", ["tokenizer=byte"]), None)
        assert all(cut_file(file) for file in plan.inputs if file.num_bytes)
        sources: list[dict[str, Any]] = yaml.safe_load(Path("tokenloom.yaml").read_text())["sources"]
    return sources


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3], "title": ["a", "b", "c"], "essay": _TEXTS}), path)


def _csv(path: Path) -> None:
    pyarrow.csv.write_csv(pa.table({"url": ["a", "b", "c"], "content": _TEXTS}), path)


_FILES: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "a.parquet": (_parquet, {"kind": "parquet", "text": "essay", "id": "id"}),
    "a.csv": (_csv, {"kind": "csv", "text": "content", "id": "url"}),
    "a.tsv": (lambda path: path.write_text("n\ttext\n1\ta\n"), {"kind": "csv", "delimiter": "\t", "text": "text"}),
    "nested.jsonl": (
        lambda path: path.write_text(_lines([{"n": 1, "data": {"url": "a longer one", "body": {"text": "a"}}}])),
        {"kind": "jsonl", "text": "data.body.text"},
    ),
    "a.jsonl.gz": (
        lambda path: path.write_bytes(gzip.compress(_lines(_rows(body=_TEXTS)).encode())),
        {"kind": "jsonl", "text": "body"},
    ),
    "array.json": (lambda path: path.write_text(json.dumps(_rows(story=_TEXTS))), {"kind": "jsonl", "text": "story"}),
    "strings.jsonl": (lambda path: path.write_text(_lines(_TEXTS)), {"kind": "jsonl", "text": "."}),
    "a.txt": (lambda path: path.write_text(_TEXTS[0]), {"kind": "text"}),
    "stories.txt": (
        lambda path: path.write_text("<|endoftext|>".join(_TEXTS)),
        {"kind": "text", "separator": "<|endoftext|>"},
    ),
}


@pytest.mark.parametrize("name", _FILES)
def test_init_names_the_kind_the_text_and_the_id_of_a_file(name: str, tmp_path: Path) -> None:
    write, wanted = _FILES[name]
    write(tmp_path / name)
    assert _written(tmp_path, name) == [{**wanted, "path": name}]


@pytest.mark.parametrize("name", ["with space.jsonl", "quote'\".jsonl", "a: b #c.jsonl", "日本.jsonl", "x[1]*.jsonl"])
def test_any_name_of_a_file_is_written_so_that_the_spec_reads_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(_lines(_rows(text=_TEXTS)))
    (tmp_path / "x1y.jsonl").write_text(_lines(_rows(other=[1])))
    assert len(_written(tmp_path, name)) == 1


@pytest.mark.parametrize("layout", _CHATS)
def test_init_recognizes_conversations_as_a_plan_does(layout: str, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(_lines(_CHATS[layout] * 3))
    key = {"messages": "messages", "sharegpt": "conversations"}.get(layout, ".")
    wanted = {"kind": "jsonl", "path": "chat.jsonl", "messages": key, "layout": layout}
    assert _written(tmp_path, "chat.jsonl") == [wanted]


def test_a_folder_becomes_patterns_and_files_of_other_kinds_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train-0.parquet", "train-1.parquet"):
        (tmp_path / "data").mkdir(exist_ok=True)
        _parquet(tmp_path / "data" / name)
    (tmp_path / "data" / "more").mkdir()
    (tmp_path / "data" / "more" / "b.csv").write_text("text\na\n")
    (tmp_path / "data" / "README.md").write_text("about")
    (tmp_path / "data" / "old.zip").write_bytes(b"PK\3\4")
    found = {source["path"]: source["kind"] for source in _written(tmp_path, "data")}
    assert found == {"data/*.parquet": "parquet", "data/more/b.csv": "csv"}
    assert "left out 1 file of other kinds: data/old.zip" in capsys.readouterr().out


def test_a_pattern_stays_a_pattern_and_a_saved_dataset_is_read(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(_lines(_rows(text=_TEXTS)))
    Dataset.from_dict({"text": _TEXTS}).save_to_disk(tmp_path / "saved")
    assert [source["path"] for source in _written(tmp_path, "*.jsonl")] == ["*.jsonl"]
    (tmp_path / "tokenloom.yaml").unlink()
    assert [source["path"] for source in _written(tmp_path, "a.jsonl", "b.jsonl")] == ["*.jsonl"]
    (tmp_path / "tokenloom.yaml").unlink()
    assert [source["kind"] for source in _written(tmp_path, "saved")] == ["arrow"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"n": 1}\n', "no column or key has text; they are: n"),
        ("a.jsonl", "", "no row in it"),
        ("a.jsonl", '{"prompt": "a", "chosen": "b", "rejected": "c"}\n', "preference pair"),
        ("a.bin", "", "a file of tokens"),
        ("a.jsonl", '{"text": "a"},\n{"text": "b"}\n', "line 1 at byte 0: not valid JSON: Extra data"),
    ],
)
def test_a_file_without_documents_is_refused_and_nothing_is_written(
    name: str, content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    with contextlib.chdir(tmp_path):
        assert main(["init", name]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "tokenloom.yaml").exists()


@pytest.mark.parametrize(
    "name", ["ag_news", "webtext", "tinystories", "longdocs", "multilingual", "hf_arrow", "chat/v1*"]
)
def test_init_reads_folders_of_data(name: str, tmp_path: Path, any_data: Path) -> None:
    assert _written(tmp_path, str(any_data / name))


def test_init_without_files_writes_a_starter_spec_and_never_overwrites_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(tmp_path):
        assert main(["init", "news.yaml"]) == 0
        written = Path("news.yaml").read_bytes()
        assert main(["plan", "news.yaml"]) == 1  # its input does not exist
        assert main(["init", "news.yaml"]) == 2
        assert "news.yaml: the file exists" in capsys.readouterr().err
        assert Path("news.yaml").read_bytes() == written
