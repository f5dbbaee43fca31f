"""Marks, lists and templates from outside are read by workers alone, within a limit, whatever they claim to hold."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.chats import CHATML, chat_spec, conversation
from tests.builders.datasets import build, listed_files, make_spec
from tests.builds.test_changing_marks import FORMS
from tokenloom.chat.template import Sandbox
from tokenloom.errors import InputError
from tokenloom.flows.direct import plan_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building.marks import files, tables

_ROOT = Path(__file__).parents[2]
_MEMORY = 2**27  # the least that a spec may give
_BUILD = """
import re, resource, sys
from pathlib import Path
from tokenloom.flows.direct import build_directly
from tokenloom.spec.loading import load_spec
try:
    build_directly(load_spec(sys.argv[1]), 1)
except Exception as error:
    print(type(error).__name__, error)
own = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]  # rusage has that of the parent, too
print(1024 * int(own), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def _marked(folder: Path, marks: dict[str, str], num_rows: int = 20, **documents: Any) -> BuildSpec:
    """Return a spec of rows with ids, and marks of them, for workers with little memory."""
    rows = {"text": [f"text {n}" for n in range(num_rows)], "id": [f"id{n}" for n in range(num_rows)]}
    pq.write_table(pa.table(rows), folder / "a.parquet")
    source = {"kind": "parquet", "path": str(folder / "a.parquet"), "id": "id"}
    entry = marks | {"path": str(folder / marks["path"])}
    runner = {"kind": "process", "memory": _MEMORY}
    return make_spec(folder / "store", [source], documents={"marks": [entry], **documents}, runner=runner)


def _write_repeated(path: Path, text: str, num_rows: int, num_groups: int = 1, **columns: pa.Array) -> None:
    """Write row groups in which a column refers to one text in each row."""
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), num_rows), [text])
    table = pa.table({"id": column, **columns})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(num_groups):
            writer.write_table(table, row_group_size=num_rows)


def _run(spec: BuildSpec, folder: Path) -> tuple[str, int, int]:
    """Build with a worker in a process of its own; return what it says, and the memory of it and of its children."""
    (folder / "spec.yaml").write_text(json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_none=True)))
    command = [sys.executable, "-c", _BUILD, str(folder / "spec.yaml")]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    said, _, peaks = done.stdout.strip().rpartition("\n")
    own, of_children = map(int, peaks.split())
    return said, own, of_children


@pytest.mark.slow
@pytest.mark.parametrize("key", ["row", "id", "content"])
def test_a_small_file_of_marks_that_claims_long_texts_is_refused_by_its_name(key: str, tmp_path: Path) -> None:
    name = "content" if key == "content" else "id"
    path = tmp_path / "marks" / "a.parquet"
    path.parent.mkdir()
    _write_repeated(path, "x" * 20_000_000, 2000, 1)
    if key == "content":
        pq.write_table(pq.read_table(path, read_dictionary=["id"]).rename_columns([name]), path, compression="zstd")
    assert path.stat().st_size < 20_000
    fields = {} if key == "row" else {"as": "remove"}
    spec = _marked(tmp_path, {"path": "marks/a.parquet", "key": key, **fields}, 2000)
    said, own, of_workers = _run(spec, tmp_path)
    assert said.startswith(f"InputError {path}: reading it needs more than"), said
    assert "raise runner.memory" in said
    assert own < 500_000_000
    assert of_workers < 1_700_000_000  # its limit, and the libraries that it shares


@pytest.mark.slow
def test_a_template_is_compiled_within_the_limit_of_a_worker(tmp_path: Path) -> None:
    spec = chat_spec(tmp_path, [conversation("a", "b")], CHATML + "{% if false %}{{ 'a' * 3000000000 }}{% endif %}")
    said, own, of_workers = _run(spec, tmp_path)
    assert said == ""  # Jinja leaves what it can't calculate as it compiles until it renders: here, never
    assert own < 500_000_000
    assert of_workers < 1_700_000_000


def _write_rows(path: Path) -> None:
    _write_repeated(path, "one id", 1_000_000, 3)


def _write_lines(path: Path) -> None:
    path.write_text("".join(f"{n:07}\n" for n in range(3_000_000)))


def _write_objects(path: Path) -> None:
    path.write_text('{"id": "one id"}\n' * 3_000_000)


def _write_compressed(path: Path) -> None:
    path.write_bytes(gzip.compress(b"one id\n" * 3_000_000, compresslevel=1))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("m.parquet", _write_rows),
        ("m.txt", _write_lines),
        ("m.jsonl", _write_objects),
        ("m.txt.gz", _write_compressed),
    ],
)
def test_more_keys_than_a_worker_holds_are_refused_by_plan_with_their_number(
    name: str, write: Any, num_workers: int, tmp_path: Path
) -> None:
    write(tmp_path / name)
    spec = _marked(tmp_path, {"path": name, "key": "id", "as": "remove"})
    with pytest.raises(InputError) as caught:
        plan_directly(spec, num_workers)
    place, said = str(caught.value).split(": ")
    keys, num_bytes = (int(found.replace(",", "")) for found in re.findall(r"([\d,]{6,}) ", said))
    assert place == str(tmp_path / name)
    assert keys == 3_000_000
    assert num_bytes == 64 * keys
    assert said.endswith("bytes in each worker, which has 134,217,728; raise runner.memory, or give marks by row")
    roomy = spec.model_copy(update={"runner": spec.runner.model_copy(update={"memory": 200_000_000})})
    assert plan_directly(roomy, num_workers)[0].build.marks is not None


def test_excluded_contents_beyond_the_memory_of_a_worker_are_refused_by_plan(tmp_path: Path) -> None:
    path = tmp_path / "gone.txt"
    path.write_text("".join(f"{n:032x}\n" for n in range(2_200_000)))
    spec = _marked(tmp_path, {"path": "gone.txt", "key": "content", "as": "remove"})
    documents = spec.documents.model_copy(update={"marks": [], "exclude": str(path)})
    with pytest.raises(InputError, match=r"gone\.txt: 2,200,000 keys need .* bytes"):
        plan_directly(spec.model_copy(update={"documents": documents}), 0)


@pytest.mark.parametrize("name", FORMS)
def test_a_build_with_workers_parses_no_file_of_marks_itself(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMS[name]
    spec = form.spec(tmp_path)
    form.write(tmp_path / form.name, {1, 5})
    alone = spec.model_copy(update={"store": str(tmp_path / "alone")})
    expected = listed_files(alone, build(alone).version)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the process of the build reads a file from outside")

    for module, function in (
        (files, "open_table"),
        (tables, "open_table"),
        (files, "read_list"),
        (tables, "read_list"),
    ):
        monkeypatch.setattr(module, function, refuse)
    for function in ("open_decompressed", "open_input", "load_table"):
        monkeypatch.setattr(tables, function, refuse)
    plan, _, _ = plan_directly(spec, 1)
    assert plan.kept == ((38, 40) if name in ("table", "rows") else None)
    assert listed_files(spec, build(spec, 2).version) == expected


def test_a_build_with_workers_compiles_no_template_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = chat_spec(tmp_path, [conversation("a", "b")])
    monkeypatch.setattr(Sandbox, "compiled", None)
    assert build(spec, 1).published
