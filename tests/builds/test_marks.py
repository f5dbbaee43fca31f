"""Marks decide which documents a version has, and how often, without encoding again."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from pydantic import ValidationError

from tests.builders.datasets import build, listed_files, make_spec, stored_documents, stored_texts, write_jsonl
from tests.builders.observing import at_step
from tests.builders.refusals import assert_refused
from tests.counts import count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom.cli.main import main
from tokenloom.errors import InputError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.keys import Purpose, mix64, split_indices
from tokenloom.tasks.running import progress

SHARES = [("train", 0.7), ("validation", 0.3)]
KEEPS = ["quality >= 2", "not bad", "quality >= 1 and not (bad or topic == 'b')", "topic in ['a', 'c'] or bad", None]


class Case:
    """Random rows in files of two kinds, random marks of them, and what a version must hold by plain Python."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.folder, self.rows = folder, list[dict[str, Any]]()
        texts = [f"text {i} " + "x" * rng.randrange(20) for i in range(60)]
        for name, kind, size in (("a", "parquet", 40), ("b", "jsonl", 50), ("c", "parquet", 7)):
            for row in range(size):
                text = rng.choice([*texts, "", None])
                marks = {"quality": rng.randrange(6), "bad": rng.random() < 0.3, "topic": rng.choice("abc")}
                self.rows.append({"file": name, "kind": kind, "n": row, "text": text, "id": f"{name}{row}", **marks})
        self.deduplicates, self.keep = rng.random() < 0.7, rng.choice(KEEPS)
        self.times = rng.choice([None, {1: 2.5, 2: 0.5, 3: 3, 5: 0}, {0: 2, 4: 7}])
        self.splits = rng.choice([["train"], ["train", "validation"]])
        self.listed = set(rng.sample(texts, 5)) if rng.random() < 0.5 else set()
        self.key = rng.choice(["row", "row", "id", "path"])
        self._write()

    def _write(self) -> None:
        for name in "abc":
            rows = [row for row in self.rows if row["file"] == name]
            path = self.folder / "in" / f"{name}.{rows[0]['kind']}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".parquet":
                table = pa.table({key: [row[key] for row in rows] for key in ("text", "id")})
                pq.write_table(table, path, row_group_size=9)
            else:
                path.write_text("".join(json.dumps({k: row[k] for k in ("text", "id")}) + "\n" for row in rows))
        (self.folder / "marks").mkdir()
        columns = ("quality", "bad", "topic") + (("id",) if self.key in ("row", "id") else ())
        if self.key == "row":
            for name in "abc":
                rows = [row for row in self.rows if row["file"] == name]
                table = pa.table({key: [row[key] for row in rows] for key in columns})
                pq.write_table(table, self.folder / "marks" / f"{name}.parquet", row_group_size=11)
        else:
            rows = self.rng.sample(self.rows, len(self.rows))
            found = {key: [row[key] for row in rows] for key in columns}
            if self.key == "path":
                offsets = self._numbers()
                found |= {"path": [f"{row['file']}.{row['kind']}" for row in rows]}
                found |= {"row": [offsets[row["file"], row["n"]] for row in rows]}
            pq.write_table(pa.table(found), self.folder / "marks" / "all.parquet")
        (self.folder / "removed.txt").write_text("\n".join(json.dumps(text) for text in sorted(self.listed)))

    def _numbers(self) -> dict[tuple[str, int], int]:
        """The number of each row, as the document table has it: in JSON lines, the byte."""
        numbers, start = {}, 0
        for row in self.rows:
            numbers[row["file"], row["n"]] = start if row["kind"] == "jsonl" else row["n"]
            start += len(json.dumps({k: row[k] for k in ("text", "id")})) + 1 if row["kind"] == "jsonl" else 0
        return numbers

    def spec(self, store: str = "store", **documents: Any) -> BuildSpec:
        key = "row" if self.key == "path" else self.key
        marks: list[dict[str, Any]] = [{"path": str(self.folder / "marks/*.parquet"), "key": key}]
        if self.listed:
            marks.append({"path": str(self.folder / "removed.txt"), "key": "content", "as": "remove"})
        rules: dict[str, Any] = {"marks": marks, "keep": self.keep, "deduplicate": self.deduplicates}
        if self.times:
            rules["repeat"] = {"by": "quality", "times": self.times, "splits": self.splits}
        sources = [
            {"kind": kind, "path": str(self.folder / f"in/*.{kind}"), "id": "id"} for kind in ("parquet", "jsonl")
        ]
        shares = dict(SHARES)
        return make_spec(self.folder / store, sources, splits=shares, shard_tokens=700, documents=rules | documents)

    def copies(self, row: dict[str, Any], seed: int) -> int:
        """How many copies a version has of a row with a text."""
        quality, bad, topic = row["quality"], row["bad"], row["topic"]
        kept = {
            "quality >= 2": quality >= 2,
            "not bad": not bad,
            "quality >= 1 and not (bad or topic == 'b')": quality >= 1 and not (bad or topic == "b"),
            "topic in ['a', 'c'] or bad": topic in "ac" or bad,
            None: True,
        }[self.keep]
        if not kept or row["text"] in self.listed:
            return 0
        content = np.frombuffer(xxhash.xxh3_128_digest(row["text"].encode()), ">u8").astype(np.uint64)[np.newaxis]
        times = (self.times or {}).get(quality, 1.0)
        if SHARES[split_indices(content, SHARES)[0]][0] not in self.splits:
            return 1
        draw = int(mix64(Purpose.REPEAT, seed, (content[:, 0], content[:, 1]))[0]) / 2**64
        return int(times) + (draw < times % 1)

    def expected(self) -> Counter[str]:
        wanted: Counter[str] = Counter()
        for row in self.rows:
            if row["text"]:
                copies = self.copies(row, 0)
                before = wanted[row["text"]]
                wanted[row["text"]] = max(before, copies) if self.deduplicates else before + copies
        return +wanted


@pytest.mark.parametrize("seed", range(count(20, 200)))
def test_a_version_holds_what_marks_say(seed: int, tmp_path: Path) -> None:
    case = Case(tmp_path, seed)
    plain = build(
        make_spec(
            tmp_path / "store",
            [dict(s) for s in case.spec().model_dump(mode="json")["sources"]],
            splits=dict(SHARES),
            shard_tokens=700,
            documents={"deduplicate": case.deduplicates},
        )
    )
    spec = case.spec()
    result = build(spec)
    assert result.num_encoded == 0
    assert result.version != plain.version
    found = Counter(document["ids"].tobytes().decode() for document in stored_documents(spec, result.version))
    assert found == case.expected()
    rows = dict(result.rows)
    assert sum(found.values()) == rows["kept"] + rows.pop("copies", 0)
    assert rows.pop("read") == sum(rows.values())
    fresh = case.spec("fresh")
    assert listed_files(fresh, build(fresh).version) == listed_files(spec, result.version)


def one_file(folder: Path, marks: pa.Table, rows: int = 6, **documents: Any) -> BuildSpec:
    """Write one file of rows, and one of marks beside it; return the spec that joins them."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": [f"text {i}" for i in range(rows)], "id": [f"id{i}" for i in range(rows)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=4)
    (folder / "marks").mkdir(exist_ok=True)
    pq.write_table(marks, folder / "marks" / "a.parquet")
    rules = {"marks": [{"path": str(folder / "marks/*.parquet"), "key": "row"}], "keep": "quality >= 1"}
    return make_spec(
        folder / "store",
        [{"kind": "parquet", "path": str(folder / "a.parquet"), "id": "id"}],
        documents=rules | documents,
    )


GOOD = pa.table({"quality": [0, 1, 2, 3, 4, 5], "id": [f"id{i}" for i in range(6)]})


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("marks", "documents", "said"),
    [
        (GOOD.slice(0, 5), {}, "marks/a.parquet: 5 rows for the 6 of its input"),
        (pa.concat_tables([GOOD, GOOD.slice(0, 1)]), {}, "marks/a.parquet: 7 rows for the 6 of its input"),
        (GOOD.take([0, 2, 1, 3, 4, 5]), {}, "a.parquet, row 1: its id is 'id1', and the marks have 'id2'"),
        (GOOD.set_column(0, "quality", pa.array([0, 1, None, 3, 4, 5])), {}, "row 2: its mark 'quality' is null"),
        (GOOD.set_column(0, "quality", pa.array([0, 1, 2, 3, np.nan, 5])), {}, "row 4: its mark 'quality' is null"),
        (GOOD, {"keep": "qualty >= 1"}, "no mark 'qualty'; check it; its marks are: quality"),
        (GOOD, {"keep": "quality == 'x'"}, "can't compare"),
        (GOOD, {"keep": "not quality"}, "mark quality is int64, not boolean; correct to: quality > 0"),
        (
            GOOD,
            {"keep": None, "repeat": {"by": "score", "times": {1: 2}}},
            "no mark 'score'; check it; its marks are: quality",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_marks_that_do_not_fit_end_the_build_with_file_row_and_rule(
    marks: pa.Table, documents: dict[str, Any], said: str, on_error: str, tmp_path: Path
) -> None:
    message = assert_refused(one_file(tmp_path, marks, on_error=on_error, **documents), said)
    assert str(tmp_path) in message or "source parquet-0" in message


def test_marks_by_id_and_content_say_what_is_missing_unknown_or_contradictory(tmp_path: Path) -> None:
    spec = one_file(tmp_path, GOOD.slice(1))
    by_id = [{"path": str(tmp_path / "marks/*.parquet"), "key": "id"}]
    documents = spec.documents.model_dump(mode="json")

    def with_marks(marks: list[dict[str, Any]], store: str = spec.store) -> BuildSpec:
        rules = documents | {"marks": marks}
        return spec.model_copy(update={"store": store, "documents": type(spec.documents).model_validate(rules)})

    assert_refused(with_marks(by_id), "row 0: no mark in a.parquet; check that file, or set `missing: keep`")
    for missing, kept in (("keep", 6), ("drop", 5)):
        assert build(with_marks([by_id[0] | {"missing": missing}], str(tmp_path / missing))).rows["kept"] == kept
    twice = pa.concat_tables([GOOD, GOOD.slice(0, 1).set_column(0, "quality", pa.array([9]))])
    pq.write_table(twice, tmp_path / "marks" / "a.parquet")
    assert_refused(with_marks(by_id), "a key has two different marks")
    pq.write_table(GOOD, tmp_path / "marks" / "a.parquet")
    assert_refused(with_marks(by_id * 2), "another file has the mark 'quality' too")
    (tmp_path / "marks" / "a.parquet").unlink()
    assert_refused(with_marks(by_id), "no file matches")


def test_positions_of_datatrove_belong_to_the_input_with_the_number_of_its_task(tmp_path: Path) -> None:
    rows = {"x.1": ["a", "b", "c"], "x.2": ["d", "e"], "y": ["f", "g"]}
    (tmp_path / "remove").mkdir()
    for name, texts in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def held(removed: dict[str, list[int]]) -> BuildSpec:
        for path in (tmp_path / "remove").iterdir():
            path.unlink()
        for name, positions in removed.items():
            (tmp_path / f"remove/{name}.remove").write_bytes(np.array(positions, "<u4").tobytes())
        marks = [{"path": str(tmp_path / "remove/*"), "key": "row", "as": "remove"}]
        source = {"kind": "jsonl", "path": str(tmp_path / "*.jsonl")}
        return make_spec(tmp_path / "store", [source], documents={"marks": marks})

    assert_refused(held({"000003": [0]}), "000003.remove: no task 0 to 2; recreate it")
    assert_refused(held({"000001": [2]}), "000001.remove: 3 rows for the 2 of its input")
    y = (tmp_path / "y.jsonl").read_text()
    (tmp_path / "y.jsonl").write_text('{"text": ""}\n' + y)
    assert_refused(
        held({"000002": [0]}),
        "y.jsonl: 1 row without a document, which datatrove doesn't count in 000002.remove",
    )
    (tmp_path / "y.jsonl").write_text(y)
    spec = held({"000000": [0, 2], "000002": [1]})
    found = [document["ids"].tobytes() for document in stored_documents(spec, build(spec).version)]
    assert sorted(found) == [b"b", b"d", b"e", b"f"]


def test_ids_are_read_from_json_lines_and_from_the_only_column_of_a_table(tmp_path: Path) -> None:
    spec = one_file(tmp_path, GOOD)
    found: tuple[dict[str, Any], ...] = (
        {"seen": [[0, 6, 1]]},
        {},
        {"seen": []},
        {"seen": [[0, 3, 0.5], [3, 6, 1]]},
        {},
        {"seen": [[0, 6, 1.0]]},
    )
    lines = [json.dumps({"id": f"id{i}", "attributes": spans}) + "\n" for i, spans in enumerate(found)]
    (tmp_path / "1.jsonl").write_text(lines[1])
    (tmp_path / "2.jsonl").write_text("".join(lines[2:]) + lines[0])
    pq.write_table(pa.table({"_curator_dedup_id": ["id4"]}), tmp_path / "ids.parquet")

    def with_marks(path: str, keep: str | None, **fields: str) -> BuildSpec:
        marks = [{"path": str(tmp_path / path), "key": "id", **fields}]
        rules = spec.documents.model_dump(mode="json") | {"marks": marks, "keep": keep}
        return spec.model_copy(update={"documents": type(spec.documents).model_validate(rules)})

    (tmp_path / "bad.jsonl").write_text('{"id": "id0", "attributes": {"seen": 1}}\n')
    assert_refused(with_marks("bad.jsonl", "seen"), "bad.jsonl, line 1: no id or attributes")
    remove = {"as": "remove"}
    assert build(with_marks("[12].jsonl", "seen < 1")).rows["kept"] == 4
    assert build(with_marks("[12].jsonl", "seen < 0.5")).rows["kept"] == 3
    assert build(with_marks("2.jsonl", None, **remove)).rows["kept"] == 1
    assert build(with_marks("ids.parquet", None, **remove)).rows["kept"] == 5


@pytest.mark.parametrize(
    ("values", "times"),
    [
        (pa.array([4.0, 1, 1, 1, 1, 1]), {4: 3}),
        (pa.array([0.9, 1, 1, 1, 1, 1], pa.float32()), {0.9: 3}),
        (pa.array([True, False, False, False, False, False]), {"true": 3}),
        (pa.array(["4", *"bcdef"]), {4: 3}),
        (pa.array(["4", *"bcdef"], pa.string_view()), {4: 3}),
        (pa.array(["4", *"bcdef"]).dictionary_encode(), {4: 3}),
    ],
    ids=["4.0", "float32", "boolean", "text", "view", "dictionary"],
)
def test_times_name_values_as_a_filter_does(values: pa.Array, times: dict[Any, float], tmp_path: Path) -> None:
    repeat = {"by": "quality", "times": times, "splits": ["train", "validation", "test"]}
    spec = one_file(tmp_path, pa.table({"quality": values}), keep=None, repeat=repeat)
    assert build(spec).rows["copies"] == 2


def test_files_with_the_same_rows_have_marks_of_their_own(tmp_path: Path) -> None:
    marks = pa.table({"path": ["b.parquet", "c.parquet"], "row": [0, 0], "quality": [0, 1]})
    spec = one_file(tmp_path, marks, rows=1, deduplicate=False)
    for name in "bc":
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    sources = [source.model_copy(update={"path": str(tmp_path / "in/*.parquet")}) for source in spec.sources]
    rows = build(spec.model_copy(update={"sources": sources})).rows
    assert (rows["kept"], rows["marked"]) == (1, 1)


@pytest.mark.parametrize("suffix", ["copies", "spill"])
def test_marks_in_work_that_lost_a_file_are_made_again(suffix: str, tmp_path: Path) -> None:
    repeat = {"by": "quality", "times": {5: 3}, "splits": ["train", "validation", "test"]}
    spec = one_file(tmp_path, GOOD, repeat=repeat)
    build(spec)
    [copies] = (tmp_path / "store").rglob("*.copies")
    copies.with_suffix(f".{suffix}").unlink()
    assert build(spec.model_copy(update={"shard_tokens": 10**6})).rows["copies"] == 2


def test_a_file_of_marks_that_changes_during_the_build_publishes_nothing(tmp_path: Path) -> None:
    spec = one_file(tmp_path, GOOD)
    with at_step("shuffle", lambda: pq.write_table(GOOD.slice(0, 3), tmp_path / "marks" / "a.parquet")):
        assert_refused(spec, "a file of marks or exclusions changed while the build ran")


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ({"keep": "quality"}, "keep and repeat need `marks`"),
        ({"marks": [{"path": "a.txt", "key": "content"}]}, "a list of keys: give `as: remove`"),
        ({"marks": [{"path": "a.jsonl.gz", "key": "content"}]}, "a list of keys: give `as: remove`"),
        ({"marks": [{"path": "a.parquet", "key": "hash"}]}, "'row', 'id' or 'content'"),
        ({"repeat": {"by": "q", "times": {1: 256}}}, "less than or equal to 255"),
        ({"repeat": {"by": "q", "times": {1: -1}}}, "greater than or equal to 0"),
        ({"repeat": {"by": "q", "times": {1: 2}, "splits": ["dev"]}}, "there is no 'dev'"),
        ({"marks": [{"path": "a.parquet", "key": "id", "source": "web"}]}, "there is no 'web'; there are: jsonl-0"),
        ({"keep": "quality >"}, "not a comparison"),
    ],
)
def test_a_spec_with_wrong_marks_is_refused(documents: dict[str, Any], said: str) -> None:
    rules = {"marks": [{"path": "m.parquet", "key": "row"}]} if "repeat" in documents or said.startswith("not") else {}
    with pytest.raises(ValidationError, match=re.escape(said)):
        make_spec("/store", [{"kind": "jsonl", "path": "/a.jsonl"}], documents=rules | documents)


@pytest.mark.parametrize(("num_workers", "partition_bytes"), [(2, None), (0, 300), (0, 90)])
def test_workers_and_cuts_change_no_byte(
    num_workers: int, partition_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, 3)
    spec = case.spec()
    wanted = listed_files(spec, build(spec).version)
    if partition_bytes:
        monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", partition_bytes)
    again = case.spec("again")
    assert listed_files(again, build(again, num_workers).version) == wanted


def test_where_trace_inspect_and_verify_know_marks_and_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"by": "quality", "times": {5: 3, 0: 2, 1: 0}, "splits": ["train", "test", "validation"]}
    reference = build(one_file(tmp_path, GOOD, repeat=times)).reference

    def said(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code
        return capsys.readouterr().out

    found = said("where", reference, "--path", "a.parquet", "--row", "5")
    assert [f"copy {n}" in found for n in (1, 2, 3)] == [True, True, False]
    assert found.count("quality = 5") == 3
    dropped = said("where", reference, "--path", "a.parquet", "--row", "0", code=3)
    assert "marked: its marks leave it out (keep), quality = 0" in dropped
    assert "(repeat), quality = 1" in said("where", reference, "--path", "a.parquet", "--row", "1", code=3)
    (tmp_path / "text").write_text("text 0\n")
    assert said("where", reference, "--text", str(tmp_path / "text"), code=3) == dropped
    traced = json.loads(said("trace", reference, "--sample", "0", "--seq-len", "8", "--json"))
    documents = traced["samples"][0]["documents"]
    assert {document["copy"] for document in documents} <= {0, 1, 2}
    assert all(document["marks"] == {"quality": int(document["id"][2:])} for document in documents)
    assert "documents left out: keep 1, repeat 1; 2 further copies" in said("inspect", reference)
    assert "nothing is damaged" in said("verify", reference, "--deep")


def test_keys_that_no_document_has_are_said_and_other_sources_need_no_marks(tmp_path: Path) -> None:
    spec = one_file(tmp_path, GOOD)
    (tmp_path / "gone.txt").write_text("id0\nid7\nid8\n")
    (tmp_path / "other.txt").write_text('"other text"\n')
    write_jsonl(tmp_path / "b.jsonl", ["other text"])
    marks = [
        {"path": str(tmp_path / "marks/*.parquet"), "key": "id", "source": "parquet-0"},
        {"path": str(tmp_path / "gone.txt"), "key": "id", "as": "remove", "source": "parquet-0"},
        {"path": str(tmp_path / "other.txt"), "key": "content", "as": "other"},
    ]
    sources = [spec.sources[0].model_dump(mode="json"), {"kind": "jsonl", "path": str(tmp_path / "b.jsonl")}]
    documents = {"marks": marks, "keep": "quality >= 1 and not other"}
    seen: list[str] = []
    with progress.listening(lambda event: seen.append(event.text) if isinstance(event, progress.Message) else None):
        result = build(make_spec(tmp_path / "store", sources, documents=documents))
    assert result.rows["kept"] == 6
    assert seen == ["gone.txt: at least 2 keys of id that no document has"]


def marked(folder: Path, marks: Sequence[dict[str, Any]], keep: str | None = None) -> BuildSpec:
    """Return a spec of six rows, the last two without an id, with files of marks in the folder."""
    ids = ["id0", "id1", "id2", "id3", None, ""]
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(6)], "id": ids}), folder / "a.parquet")
    (folder / "x.txt").write_text("id0\nid1\n")
    (folder / "y.txt").write_text("id2\n")
    pq.write_table(pa.table({"id": ["id0", "id1", ""], "quality": [5, 1, 9]}), folder / "q.parquet")
    pq.write_table(pa.table({"id": ["id3"], "other": [1]}), folder / "o.parquet")
    texts = ['"text 0"', "text 1", xxhash.xxh3_128_hexdigest(b"text 2")]
    pq.write_table(pa.table({"content": texts}), folder / "c.parquet")
    rules = {"marks": [one | {"path": str(folder / one["path"])} for one in marks], "keep": keep}
    source = {"kind": "parquet", "path": str(folder / "a.parquet"), "id": "id"}
    return make_spec(folder / "store", [source], documents=rules)


BAD = {"path": "x.txt", "key": "id", "as": "bad"}
QUALITY = {"path": "q.parquet", "key": "id", "missing": "keep"}


@pytest.mark.parametrize(
    ("marks", "keep", "kept"),
    [
        ([BAD | {"missing": "drop"}], None, {0, 1}),
        ([BAD], "not bad", {2, 3, 4, 5}),
        ([QUALITY], "quality >= 3", {0, 2, 3, 4, 5}),  # an id of no characters is none, so 9 is of no document
        ([QUALITY, {"path": "o.parquet", "key": "id", "missing": "keep"}], "quality >= 3", {0, 2, 3, 4, 5}),
        ([{"path": "c.parquet", "key": "content", "as": "remove"}], None, {0, 3, 4, 5}),
    ],
)
def test_a_mark_decides_the_documents_that_have_it(
    marks: list[dict[str, Any]], keep: str | None, kept: set[int], tmp_path: Path
) -> None:
    spec = marked(tmp_path, marks, keep)
    assert stored_texts(spec, build(spec).version) == [f"text {i}" for i in sorted(kept)]


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ([BAD, BAD | {"path": "y.txt"}], "y.txt: another file has the mark 'bad' too"),
        ([QUALITY, {"path": "y.txt", "key": "id", "as": "quality"}], "y.txt: another file has the mark 'quality' too"),
        ([BAD | {"missing": "fail"}], "row 2: no mark in x.txt"),
        (
            [BAD | {"key": "row"}],
            "x.txt: no file of marks for the input a.parquet; check the path, or name `source:`; lists of keys are",
        ),
    ],
)
def test_marks_that_contradict_each_other_end_the_build(marks: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        build(marked(tmp_path, marks))


def test_a_file_of_marks_is_that_of_one_input(tmp_path: Path) -> None:
    spec = one_file(tmp_path, GOOD)
    pq.write_table(GOOD, tmp_path / "marks" / "b.parquet")
    assert_refused(spec, "b.parquet: no input has the name of this file of marks")
    (tmp_path / "marks" / "b.parquet").unlink()
    for name in ("a.1", "a.2"):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {i}" for i in range(6)])
    source = {"kind": "jsonl", "path": str(tmp_path / "a.*.jsonl")}
    two = make_spec(tmp_path / "store", [source], documents=spec.documents.model_dump(mode="json"))
    assert_refused(two, "a.parquet: the marks of ")


def test_marks_at_urls_are_those_of_files(tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "exclude.txt").write_text('"text 5"\n')
    (tmp_path / "in" / "gone.txt").write_text("id3\n")
    lines = [{"id": f"id{i}", "attributes": {"seen": [[0, 1, i / 8]] if i else []}} for i in range(6)]
    (tmp_path / "in" / "dolma.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "in" / "000000.remove").write_bytes(np.array([4], "<u4").tobytes())
    one_file(tmp_path / "in", GOOD)
    key = uuid.uuid4().hex
    upload(s3_url, tmp_path / "in", key)

    def held(root: str) -> tuple[dict[str, Any], list[str]]:
        marks = [
            {"path": f"{root}/marks/*.parquet", "key": "row"},
            {"path": f"{root}/gone.txt", "key": "id", "as": "remove"},
            {"path": f"{root}/dolma.jsonl", "key": "id"},
            {"path": f"{root}/*.remove", "key": "row", "as": "remove"},
        ]
        repeat = {"by": "quality", "times": {2: 3}}
        rules = {"marks": marks, "exclude": f"{root}/exclude.txt", "keep": "seen >= 0.125", "repeat": repeat}
        source = {"kind": "parquet", "path": f"{root}/a.parquet", "id": "id"}
        spec = make_spec(tmp_path / f"store-{len(root)}", [source], splits={"train": 1.0}, documents=rules)
        result = build(spec)
        return dict(result.rows), stored_texts(spec, result.version)

    rows, texts = held(f"s3://{BUCKET}/{key}")
    assert (rows, texts) == held(str(tmp_path / "in"))
    assert texts == ["text 1", "text 2", "text 2", "text 2"]
