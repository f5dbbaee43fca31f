"""Files of marks and exclusions that change while a build reads them: an error, and no work file of what was read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, built_alone, listed_files, make_spec, stored_texts
from tests.builders.observing import at_step
from tests.builders.refusals import assert_nothing_visible
from tests.counts import every
from tests.servers.s3_server import BUCKET, upload
from tokenloom.cli.main import main
from tokenloom.errors import InputError
from tokenloom.flows.direct import share_from_spec
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.work.fingerprints import FingerprintMemory
from tokenloom.tasks.building.inputs import input_file
from tokenloom.tasks.building.marks.files import comparing
from tokenloom.tasks.running.steps import Share
from tokenloom.tasks.sources.listing import found_file

_ROWS = 40
_Numbers = set[int]  # the rows that a file of marks names


def _write_contents(path: Path, numbers: _Numbers) -> None:
    path.write_text("".join(json.dumps(f"text {n}") + "\n" for n in sorted(numbers)))


def _write_ids(path: Path, numbers: _Numbers) -> None:
    path.write_text("".join(f"id{n}\n" for n in sorted(numbers)))


def _write_table(path: Path, numbers: _Numbers) -> None:
    found = {"id": [f"id{n}" for n in range(_ROWS)], "bad": [n in numbers for n in range(_ROWS)]}
    pq.write_table(pa.table(found), path)


def _write_positions(path: Path, numbers: _Numbers) -> None:
    path.write_bytes(np.array(sorted(numbers), "<u4").tobytes())


def _write_aligned(path: Path, numbers: _Numbers) -> None:
    pq.write_table(pa.table({"bad": [n in numbers for n in range(_ROWS)]}), path, row_group_size=7)


def _write_dolma(path: Path, numbers: _Numbers) -> None:
    lines = [{"id": f"id{n}", "attributes": {"bad": [[0, 1, 1]] if n in numbers else []}} for n in range(_ROWS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@dataclass(frozen=True)
class Form:
    """A file of marks or exclusions: its name, how it is written, and the rules that read it; "PATH" is its path."""

    name: str
    write: Callable[[Path, _Numbers], None]
    rules: dict[str, Any]

    def spec(self, folder: Path, root: str = "") -> BuildSpec:
        """Return a spec of rows with ids, the numbers of which are their texts; marks are below a folder or URL."""
        (folder / "marks").mkdir(exist_ok=True)
        rows = {"text": [f"text {n}" for n in range(_ROWS)], "id": [f"id{n}" for n in range(_ROWS)]}
        pq.write_table(pa.table(rows), folder / "a.parquet", row_group_size=9)
        rules = json.loads(json.dumps(self.rules).replace("PATH", f"{root or folder}/{self.name}"))
        source = {"kind": "parquet", "path": str(folder / "a.parquet"), "id": "id"}
        return make_spec(folder / "store", [source], splits={"train": 1.0}, documents=rules)


def _marks(key: str, **fields: str) -> list[dict[str, str]]:
    return [{"path": "PATH", "key": key, **fields}]


_REPEAT = {"by": "bad", "times": {"true": 0, "false": 2}}
FORMS = {
    "exclusions": Form("gone.txt", _write_contents, {"exclude": "PATH"}),
    "ids": Form("ids.txt", _write_ids, {"marks": _marks("id", **{"as": "remove"})}),
    "contents": Form("gone.txt", _write_contents, {"marks": _marks("content", **{"as": "remove"})}),
    "table": Form("t.parquet", _write_table, {"marks": _marks("id"), "keep": "not bad"}),
    "positions": Form("000000.remove", _write_positions, {"marks": _marks("row", **{"as": "remove"})}),
    "rows": Form("marks/a.parquet", _write_aligned, {"marks": _marks("row"), "keep": "not bad"}),
    "dolma": Form("a.jsonl", _write_dolma, {"marks": _marks("id"), "keep": "bad < 1"}),
    "repeat": Form("marks/a.parquet", _write_aligned, {"marks": _marks("row"), "repeat": _REPEAT}),
}
_GOOD, _OTHER = {1, 5, 20}, {2, 5, 20, 30}


def _refused_at(moment: str, path: Path, form: Form, run: Callable[[], object]) -> None:
    """Assert that a run is refused as its file of marks changes at a moment, and put the file back."""
    whole = path.read_bytes()
    with at_step(moment, lambda: form.write(path, _OTHER)), pytest.raises(InputError, match="changed while") as caught:
        run()
    assert path.name in str(caught.value) or moment != "mark"
    path.write_bytes(whole)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", FORMS)
def test_marks_that_change_as_they_are_read_leave_no_work_behind(
    name: str, num_workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form = FORMS[name]
    spec, path = form.spec(tmp_path), tmp_path / form.name
    form.write(path, _GOOD)
    _refused_at("mark", path, form, lambda: build(spec, num_workers))
    assert_nothing_visible(spec)
    assert not _marked_records(tmp_path)
    result = build(spec, num_workers)
    copies = 2 if name == "repeat" else 1
    assert stored_texts(spec, result.version) == sorted(
        f"text {n}" for n in {*range(_ROWS)} - _GOOD for _ in range(copies)
    )
    assert listed_files(spec, result.version) == built_alone(spec, tmp_path)
    assert main(["verify", result.reference, "--deep"]) == 0
    assert "nothing is damaged" in capsys.readouterr().out


def _marked_records(folder: Path) -> list[Path]:
    """Return the records of marks in the store below a folder."""
    return [path for path in (folder / "store").rglob("work/spills/*.json") if b'"counts"' in path.read_bytes()]


@pytest.mark.usefixtures("s3_proxy")
@pytest.mark.parametrize("name", FORMS)
def test_marks_of_a_store_that_change_as_they_are_read_leave_no_work_behind(
    name: str, tmp_path: Path, s3_url: str
) -> None:
    form, key = FORMS[name], uuid.uuid4().hex
    path = tmp_path / form.name
    spec = form.spec(tmp_path, f"s3://{BUCKET}/{key}")
    form.write(path, _GOOD)
    upload(s3_url, tmp_path, key)

    def change() -> None:
        form.write(path, _OTHER)
        upload(s3_url, tmp_path, key)

    with at_step("mark", change), pytest.raises(InputError, match="changed while"):
        build(spec)
    assert not _marked_records(tmp_path)
    form.write(path, _GOOD)
    upload(s3_url, tmp_path, key)
    assert listed_files(spec, build(spec).version) == built_alone(spec, tmp_path)


@pytest.mark.parametrize("name", every(3, list(FORMS)))
@pytest.mark.parametrize("moment", ["assign", "validate"])
def test_marks_that_change_later_publish_nothing(name: str, moment: str, tmp_path: Path) -> None:
    form = FORMS[name]
    spec, path = form.spec(tmp_path), tmp_path / form.name
    form.write(path, _GOOD)
    _refused_at(moment, path, form, lambda: build(spec))
    assert_nothing_visible(spec)
    assert listed_files(spec, build(spec).version) == built_alone(spec, tmp_path)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("moment", ["mark", "shuffle", "validate"])
def test_an_input_that_is_read_again_for_the_numbers_of_its_rows_is_compared_again(
    moment: str, num_workers: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "" if n % 4 == 0 else f"text {n}"}) + "\n" for n in range(_ROWS)]
    path.write_text("".join(lines))
    _write_aligned(tmp_path / "a.parquet", _GOOD)
    rules = {"marks": [{"path": str(tmp_path / "a.parquet"), "key": "row"}], "keep": "not bad"}
    source = {"kind": "jsonl", "path": str(path)}
    spec = make_spec(tmp_path / "store", [source], splits={"train": 1.0}, documents=rules)
    other = "".join([lines[0], *lines])  # every document has another number
    with at_step(moment, lambda: path.write_text(other)), pytest.raises(InputError, match=r"a\.jsonl.*changed while"):
        build(spec, num_workers)
    assert moment != "mark" or not _marked_records(tmp_path)
    path.write_text("".join(lines))
    assert listed_files(spec, build(spec, num_workers).version) == built_alone(spec, tmp_path)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("what", ["marks", "exclusions", "input"])
def test_a_share_ends_with_an_error_when_a_file_that_it_read_has_changed(
    what: str, number: int, tmp_path: Path
) -> None:
    form = FORMS["exclusions" if what == "exclusions" else "rows"]
    spec, path = form.spec(tmp_path).with_workers(0), tmp_path / form.name
    form.write(path, _GOOD)
    changed = tmp_path / "a.parquet" if what == "input" else path
    whole, other = changed.read_bytes(), pa.table({"text": ["another"], "id": ["id0"]})

    def change() -> None:
        if what == "input":
            pq.write_table(other, changed)
        else:
            form.write(path, _OTHER)

    moment = "shuffle" if number == 1 else "tokenize"  # of two shares, one has nothing to encode, and ends there
    with at_step(moment, change), pytest.raises(InputError, match="changed while"):
        share_from_spec(spec, Share(0, number))
    changed.write_bytes(whole)
    assert share_from_spec(spec, Share(0, 1))["left"] == {}
    assert listed_files(spec, build(spec).version) == built_alone(spec, tmp_path)


def test_another_file_in_the_place_of_a_marks_file_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    for name, numbers in (("old", {1, 2}), ("new", {3})):
        (tmp_path / name).mkdir()
        _write_table(tmp_path / name / "marks.parquet", numbers)
    link = tmp_path / "link"
    link.symlink_to("old")
    file = found_file("marks.parquet", str(link / "marks.parquet"), str(link / "marks.parquet"))
    marks = input_file(file, "", {}, FingerprintMemory(LocalStore(tmp_path / "store")))
    link.unlink()
    link.symlink_to("new")
    with pytest.raises(InputError, match=r"marks\.parquet: it changed while it was read"), comparing([marks]):
        link.unlink()  # put back before the last look, its stamp is the old one
        link.symlink_to("old")


def test_a_table_by_path_and_row_that_could_mean_two_inputs_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text(json.dumps({"text": f"text of {name}"}) + "\n")
    pq.write_table(pa.table({"path": ["a.jsonl"], "row": [0], "bad": [True]}), tmp_path / "m.parquet")
    marks = {"path": str(tmp_path / "m.parquet"), "key": "row", "missing": "keep"}
    sources = [{"kind": "jsonl", "path": str(tmp_path / n / "a.jsonl"), "name": n} for n in ("one", "two")]
    spec = make_spec(tmp_path / "store", sources, documents={"marks": [marks], "keep": "not bad"})
    with pytest.raises(InputError, match=r"m.parquet: two inputs have the path a.jsonl, .* name one in `source:`"):
        build(spec)
    clear = make_spec(tmp_path / "store", sources, documents={"marks": [marks | {"source": "two"}], "keep": "not bad"})
    assert stored_texts(clear, build(clear).version) == ["text of one"]
