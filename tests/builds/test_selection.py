"""Which rows become documents: filters, lengths, transforms, exclusion; and the ids they carry."""

from __future__ import annotations

import json
import random
import re
import string
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import (
    build,
    lines_spec,
    listed_files,
    local_store,
    make_spec,
    manifest_json,
    open_documents,
    source,
    stored_documents,
    stored_texts,
    write_jsonl,
    write_parquet,
)
from tests.builders.observing import counted_reads
from tests.builders.refusals import NEXT_STEP, assert_nothing_visible, assert_refused
from tests.builders.row_files import Row, write_rows
from tests.counts import count
from tokenloom.cli.main import main
from tokenloom.errors import CheckError, InputError, SpecError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.document_table import SCHEMA, table_schema
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks import sizes
from tokenloom.tasks.building.publish import BuildResult


def make_rows(num_rows: int = 300) -> list[Row]:
    """Return rows with some nulls, scores ascending."""
    return [
        {
            "text": None if i % 29 == 28 else f"text {i} é漢 " + "ab" * (i % 17),
            "score": None if i % 11 == 10 else i / num_rows,
        }
        for i in range(num_rows)
    ]


def build_json(spec: BuildSpec, result: BuildResult) -> dict[str, Any]:
    """Return the version's build.json."""
    value = json.loads(local_store(spec.store, spec.dataset).read(version_path(result.version, "build.json")))
    assert isinstance(value, dict)
    return value


# Filters


def test_a_filter_on_a_sorted_column_reads_only_matching_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = random.Random(1)
    rows: list[Row] = [{"text": f"{i} " + letters.randbytes(400).hex(), "score": i / 10_000} for i in range(10_000)]
    path = write_rows(tmp_path / "a.parquet", rows, group_rows=500)
    groups: set[int] = set()
    iter_batches = pq.ParquetFile.iter_batches

    def spying(self: pq.ParquetFile, *arguments: Any, **options: Any) -> Any:
        groups.update(options["row_groups"])
        return iter_batches(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spying)
    sizes = counted_reads(monkeypatch)
    spec = make_spec(tmp_path / "store", [source(path, filter="score >= 0.8")])
    result = build(spec)
    assert stored_texts(spec, result.version) == sorted(row["text"] for row in rows if row["score"] >= 0.8)
    assert result.rows | {"read": 10_000, "kept": 2_000, "filtered": 8_000} == result.rows
    assert groups == {16, 17, 18, 19}
    assert 0 < sum(sizes) < 0.6 * path.stat().st_size  # for the spills, and again for the check
    assert build_json(spec, result)["measured"]["rows_not_read"] == 8_000
    assert main(["inspect", result.reference]) == 0
    assert "8,000 of those filtered were not read" in capsys.readouterr().out
    spec = make_spec(tmp_path / "none", [source(path, filter="score > 1 and text > 'x'")])
    pruned = "10,000 by their paths or the statistics of their row groups, without being read"
    assert_refused(spec, f"10,000 rows read, 10,000 of them left out by a filter ({pruned})")


def test_row_groups_with_nulls_dictionaries_or_structs_are_skipped(tmp_path: Path) -> None:
    rows = make_rows()
    table = pa.Table.from_pylist([row | {"part": f"{i // 30}" if i % 4 else None} for i, row in enumerate(rows)])
    table = table.set_column(2, "part", table["part"].combine_chunks().dictionary_encode())
    table = table.append_column("meta", pa.array([{"n": i} for i in range(len(rows))]))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    for text, num_not_read in (("score >= 0.5", 150), ('part == "3"', 270), ("meta.n >= 250", 250)):
        spec = make_spec(tmp_path / text[:5], [source(tmp_path / "a.parquet", filter=text)])
        assert build_json(spec, build(spec))["measured"]["rows_not_read"] == num_not_read


@pytest.mark.parametrize(
    ("column", "text", "kind"),
    [
        (pa.array([1, 2]), 'c == "1"', "int64"),
        (pa.array(["a", "b"]), "c >= 1", "string"),
        (pa.array([1, 2], pa.timestamp("s")), 'c >= "yesterday"', "timestamp"),
        (pa.array([[1], [2]]), "c == 1", "list"),
    ],
    ids=lambda item: item if isinstance(item, str) else None,
)
def test_a_column_that_cannot_be_compared_is_refused_by_name(
    column: pa.Array, text: str, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", "two"], "c": column}), path)
    spec = make_spec(tmp_path / "store", [source(path, filter=text)])
    assert_refused(spec, str(path), "filter", "'c'", kind)
    assert InputError.exit_code == 1


def test_filter_and_text_column_each_change_the_version_and_the_spills(tmp_path: Path) -> None:
    rows = [row | {"title": f"title {i}"} for i, row in enumerate(make_rows())]
    path = write_rows(tmp_path / "a.parquet", rows)
    options: list[dict[str, Any]] = [
        {},
        {"filter": "score >= 0.5"},
        {"filter": "score >= 0.25"},
        {"text": "title"},
        {"id": "title"},
    ]
    specs = [make_spec(tmp_path / "store", [source(path, **item)]) for item in options]
    results = [build(spec) for spec in specs]
    assert len({result.version for result in results}) == len(specs)
    assert [result.num_encoded for result in results] == [1] * len(specs)
    for spec, result, item in zip(specs, results, options, strict=True):
        fresh = make_spec(tmp_path / "fresh" / result.version, [source(path, **item)])
        assert listed_files(fresh, build(fresh).version) == listed_files(spec, result.version)
        manifest = manifest_json(local_store(spec.store, spec.dataset), result.version)
        assert item.items() <= manifest["spec"]["sources"][0].items()
    assert build(specs[1]).published is False


def test_other_rules_of_filters_reuse_no_spill_and_rename_only_what_has_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "a.parquet", make_rows())
    specs = [make_spec(tmp_path / "store", [source(path, **item)]) for item in ({"filter": "score >= 0.5"}, {})]
    with monkeypatch.context() as before:
        before.setattr("tokenloom.spec.sources.FILTER_RULES", 1)
        old = [build(spec) for spec in specs]
    new = [build(spec) for spec in specs]
    assert [result.num_encoded for result in (*old, *new)] == [1, 1, 1, 0]
    assert [a.version == b.version for a, b in zip(old, new, strict=True)] == [False, True]


# Ids


def ids_by_text(spec: BuildSpec, version: str) -> dict[str, str | None]:
    """Return {text: id} of a version without duplicates."""
    documents = stored_documents(spec, version)
    found = {document["ids"].tobytes().decode(): document["id"] for document in documents}
    assert len(found) == len(documents)
    return found


def id_sources(folder: Path, with_ids: bool = True) -> tuple[list[dict[str, Any]], dict[str, str | None]]:
    """Write three sources, with text ids, integer ids and no ids; return them and {text: id}."""
    texts = [f"document {i} é " + "word " * (i % 23) for i in range(300)]
    wanted: dict[str, str | None] = {}
    rows: list[Row] = []
    for i, text in enumerate(texts):
        name = None if i % 10 == 9 else f"doc-{i}-漢" if i < 100 else i * 10**12 if i < 200 else None
        rows.append({"text": text, "key": name})
        wanted[text] = None if name is None or not with_ids else str(name)
    for part, (start, end) in enumerate(((0, 30), (30, 60), (60, 100))):
        write_rows(folder / f"a{part}.parquet", rows[start:end], group_rows=7)
    write_rows(folder / "b.parquet", rows[100:200], group_rows=20)
    write_jsonl(folder / "c.jsonl", texts[200:])
    has_id = {"id": "key"} if with_ids else {}
    paths = [folder / "a*.parquet", folder / "b.parquet"]
    return [*(source(path, **has_id) for path in paths), source(folder / "c.jsonl")], wanted


SHARDS: dict[str, Any] = {"shard_tokens": 3_000, "splits": {"train": 0.6, "validation": 0.3, "test": 0.1}}


def test_every_document_has_the_id_of_its_row_however_the_input_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, wanted = id_sources(tmp_path / "data")
    plain = make_spec(tmp_path / "plain", sources, **SHARDS)
    result = build(plain)
    assert sum(split["shards"] for split in result.splits.values()) > 6
    assert ids_by_text(plain, result.version) == wanted
    assert {None, "doc-5-漢", str(104 * 10**12)} <= set(wanted.values())

    workers = make_spec(tmp_path / "workers", sources, **SHARDS)
    assert listed_files(workers, build(workers, 2).version) == listed_files(plain, result.version)
    for num_documents in (4, 33):
        monkeypatch.setattr(sizes, "PIECE_DOCUMENTS", num_documents)
        pieces = make_spec(tmp_path / f"pieces-{num_documents}", sources, **SHARDS)
        assert listed_files(pieces, build(pieces).version) == listed_files(plain, result.version)
    monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", 2_000)
    cut = make_spec(tmp_path / "cut", sources, **SHARDS)
    cut_result = build(cut)
    assert cut_result.num_encoded > result.num_encoded + 10
    assert listed_files(cut, cut_result.version) == listed_files(plain, result.version)


def test_ids_change_no_token_and_the_table_has_an_id_column_only_with_them(tmp_path: Path) -> None:
    schemas = []
    hashes = []
    for with_ids in (True, False):
        sources, _ = id_sources(tmp_path / "data", with_ids)
        spec = make_spec(tmp_path / f"store-{with_ids}", sources, **SHARDS)
        result = build(spec)
        tables = Path(result.reference.split("@")[0], "versions", result.version).rglob("*.docs")
        schemas.append({tuple(open_documents(table).schema) for table in tables})
        hashes.append(listed_files(spec, result.version, ".tok"))
    assert hashes[0] == hashes[1]
    assert schemas == [{tuple(table_schema(has_classes=False, has_ids=True))}, {tuple(SCHEMA)}]
    assert SCHEMA.names == ["start", "num_tokens", "input", "row", "content", "key"]


_TEXTS = st.sampled_from(["a", "b", "c", "longer " * 9, "é", "漢", "x y z"])
_IDS = st.none() | st.text(st.characters(codec="utf-8"), max_size=8)


@settings(max_examples=count(10, 300), deadline=None)
@given(
    rows=st.lists(st.tuples(_TEXTS, _IDS), min_size=1, max_size=30),
    at=st.integers(0, 30),
    piece=st.integers(1, 5),
    shard_tokens=st.integers(5, 200),
)
def test_a_duplicate_document_has_the_id_of_its_first_copy(
    rows: list[tuple[str, str | None]], at: int, piece: int, shard_tokens: int
) -> None:
    wanted: dict[str, str | None] = {}
    for text, name in rows:
        wanted.setdefault(text, name or None)  # an id of no characters is none
    first, second = rows[:at], rows[at:]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "PIECE_DOCUMENTS", piece)
        paths = []
        for name, part in (("a.parquet", first), ("b.jsonl", second)):
            if part:
                paths.append(write_rows(Path(folder, name), [{"text": t, "key": i} for t, i in part], group_rows=3))
        if first and all(name is None for _, name in first):  # a column of only nulls has no type
            schema = pa.schema([("text", pa.string()), ("key", pa.string())])
            table = pa.Table.from_pylist([{"text": t, "key": None} for t, _ in first], schema)
            pq.write_table(table, Path(folder, "a.parquet"))
        spec = make_spec(Path(folder, "store"), [source(path, id="key") for path in paths], shard_tokens=shard_tokens)
        assert ids_by_text(spec, build(spec).version) == wanted


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_an_id_of_more_than_1024_bytes_is_refused(kind: str, tmp_path: Path) -> None:
    rows = [{"text": "one", "key": "é" * 512}, {"text": "two", "key": "k"}]
    spec = make_spec(tmp_path / "good", [source(write_rows(tmp_path / f"a.{kind}", rows), id="key")])
    assert ids_by_text(spec, build(spec).version) == {"one": "é" * 512, "two": "k"}
    path = write_rows(tmp_path / f"b.{kind}", [rows[1], {"text": "one", "key": "é" * 513}])
    assert_refused(make_spec(tmp_path / "bad", [source(path, id="key")]), str(path), "id", "1,024 bytes")


# Lengths


def test_length_limits_count_characters_and_dropped_documents_are_counted(tmp_path: Path) -> None:
    texts = [letter * length for letter in "aé漢😀" for length in range(12)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    for least, most in ((0, None), (1, None), (2, None), (3, 7), (5, 5), (0, 1)):
        rules = {"min_chars": least} | ({} if most is None else {"max_chars": most})
        spec = make_spec(tmp_path / f"store-{least}-{most}", [source(path)], documents=rules | {"deduplicate": False})
        result = build(spec)
        wanted = [text for text in texts if least <= len(text) <= (100 if most is None else most)]
        assert stored_texts(spec, result.version) == sorted(wanted)
        assert result.rows["filtered"] == len(texts) - len(wanted)
        assert result.rows["read"] == len(texts)


# Exclusion

EXCLUDED_TEXTS = ["text 7", "é\n漢\t", 'say "x"', "# no comment", "text 7"]
SMALL_TEXTS = [*(f"text {i}" for i in range(60)), *EXCLUDED_TEXTS, *(f"text {i}" for i in range(20))]


def content_of(text: str) -> str:
    """Return the content hash of a text, as the document table has it."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def with_exclusions(folder: Path, lines: Sequence[str], name: str = "exclude.txt", **rules: Any) -> dict[str, Any]:
    """Write a file of excluded contents and return the document rules."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    return {"documents": {"exclude": str(folder / name), **rules}}


@pytest.mark.parametrize("deduplicate", [True, False])
def test_excluded_texts_are_in_no_shard_and_are_counted(deduplicate: bool, tmp_path: Path) -> None:
    paths = [
        write_parquet(tmp_path / "a.parquet", SMALL_TEXTS, group_rows=9),
        write_jsonl(tmp_path / "b.jsonl", SMALL_TEXTS),
    ]
    lines = [
        "\ufeff# removal requests",
        "",
        content_of("text 7"),
        json.dumps("é\n漢\t"),
        json.dumps({"text": 'say "x"', "why": "asked"}),
        json.dumps({"content": content_of("# no comment").upper()}),
        content_of("not in the data"),
        "   ",
    ]
    rules = with_exclusions(tmp_path, lines, deduplicate=deduplicate)
    spec = make_spec(tmp_path / "store", [source(path) for path in paths], **rules, shard_tokens=100)
    result = build(spec)
    kept = [text for text in SMALL_TEXTS * 2 if text not in EXCLUDED_TEXTS]
    wanted = sorted(set(kept) if deduplicate else kept)
    assert stored_texts(spec, result.version) == wanted
    assert result.rows["excluded"] == 2 * len(SMALL_TEXTS) - len(kept)
    assert result.rows["duplicates"] == (len(kept) - len(set(kept)) if deduplicate else 0)
    assert result.rows["read"] == sum(result.rows.values()) - result.rows["read"] == 2 * len(SMALL_TEXTS)


@pytest.mark.parametrize(
    "line",
    [
        *("text 7", "12ab", content_of("a")[:-1] + "g", '"no end', '"half \\ud800"'),
        *("{}", '{"text": 5}', '{"content": "12"}', "[1]"),
        " ".join(["ab"] * 11),  # 32 characters, 11 bytes
        "\udcff",  # written as a byte that is not UTF-8
    ],
)
def test_an_exclusion_without_an_effect_is_reported_with_its_line(line: str, tmp_path: Path) -> None:
    rules = with_exclusions(tmp_path, ["# list", "", content_of("text 7"), line, content_of("text 8")])
    assert_refused(lines_spec(tmp_path, SMALL_TEXTS, **rules), "exclude.txt, line 4:")


def test_the_version_depends_on_the_set_of_exclusions_not_on_their_spelling(tmp_path: Path) -> None:
    sources = [source(write_jsonl(tmp_path / "a.jsonl", SMALL_TEXTS))]
    hashes = [content_of("text 3"), content_of("text 5")]
    same = [
        hashes,
        ["", "# why", hashes[1].upper(), "  " + hashes[0] + "\r", "", hashes[1]],
        [json.dumps("text 5"), json.dumps({"text": "text 3"})],
    ]
    specs = [
        make_spec(tmp_path / f"store-{i}", sources, **with_exclusions(tmp_path / str(i), lines, f"list-{i}.txt"))
        for i, lines in enumerate(same)
    ]
    found = [listed_files(spec, build(spec).version) for spec in specs]
    assert found[0] == found[1] == found[2]
    others: list[dict[str, Any]] = [
        {},
        with_exclusions(tmp_path / "y", hashes[:1]),
        with_exclusions(tmp_path / "z", [*hashes, content_of("text 6")]),
    ]
    rules = [*others, with_exclusions(tmp_path / "x", ["# none yet"])]
    names = [build(make_spec(tmp_path / "store-0", sources, **item)).version for item in rules]
    assert len({build(specs[0]).version, *names}) == len(names)
    assert names[-1] == names[0]


def test_the_path_of_the_exclusions_is_in_no_listed_file(tmp_path: Path) -> None:
    rules = with_exclusions(tmp_path / "confidential", [content_of("text 3")], "requests-of-may.txt")
    spec = lines_spec(tmp_path, SMALL_TEXTS, **rules)
    result = build(spec)
    folder = Path(spec.store, "data", "versions", result.version)
    for name in listed_files(spec, result.version):
        data = (folder / name).read_bytes()
        assert b"requests-of-may" not in data
        assert b"confidential" not in data
    assert "exclude" in manifest_json(local_store(spec.store, spec.dataset), result.version)["spec"]["documents"]


def test_a_build_after_a_removal_request_encodes_nothing(tmp_path: Path) -> None:
    sources = [source(write_parquet(tmp_path / "a.parquet", SMALL_TEXTS, group_rows=9))]
    assert build(make_spec(tmp_path / "store", sources)).num_encoded == 1
    for i in range(2):
        rules = with_exclusions(tmp_path / str(i), [content_of(f"text {j}") for j in range(i + 1)])
        spec, fresh = (make_spec(tmp_path / name, sources, **rules) for name in ("store", f"fresh-{i}"))
        result = build(spec)
        assert (result.published, result.num_encoded) == (True, 0)
        assert listed_files(spec, result.version) == listed_files(fresh, build(fresh).version)


def test_a_build_of_only_excluded_documents_is_refused(tmp_path: Path) -> None:
    rules = with_exclusions(tmp_path, [content_of("one"), content_of("two")])
    assert_refused(lines_spec(tmp_path, ["one", "two", "one"], **rules), "documents.exclude")


# Transforms

MODULE = """
import random, sys
MADE = random.Random(5)

def change(text):
    if "drop" in text:
        return None
    return text.upper().replace("É", "漢")

def fail(text):
    if text == "text 9":
        raise KeyError("no such thing")
    return text

def leave(text):
    sys.exit()

def interrupt(text):
    raise KeyboardInterrupt

class Panic(BaseException):
    pass

def panic(text):
    raise Panic("index out of bounds")

def number(text):
    return 5

def half(text):
    return "\\ud800"

def chance(text):
    return text + str(MADE.random())

NOTHING = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with functions that change texts, importable here and in workers."""
    name = "changes_" + "".join(random.Random(str(tmp_path)).choices(string.ascii_lowercase, k=12))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{name}.py").write_text(MODULE)
    (tmp_path / "modules" / f"{name}_broken.py").write_text("raise RuntimeError('a bad day')\n")
    (tmp_path / "modules" / f"{name}_leaving.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"), prepend=":")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def transform(function: str, version: str = "1") -> dict[str, Any]:
    """Return document rules with a transform."""
    return {"documents": {"transform": {"function": function, "version": version}}}


CHANGED_TEXTS = [f"text {i} é" if i % 4 else f"drop {i}" for i in range(80)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_documents_are_what_the_transform_returns(num_workers: int, module: str, tmp_path: Path) -> None:
    paths = [
        write_parquet(tmp_path / "a.parquet", [*CHANGED_TEXTS[:40], None]),
        write_jsonl(tmp_path / "b.jsonl", CHANGED_TEXTS[40:]),
    ]
    spec = make_spec(tmp_path / "store", [source(path) for path in paths], **transform(f"{module}:change"))
    result = build(spec, num_workers)
    assert stored_texts(spec, result.version) == sorted(f"TEXT {i} 漢" for i in range(80) if i % 4)
    assert (result.rows["kept"], result.rows["filtered"], result.rows["read"]) == (60, 21, 81)


def test_a_new_version_of_a_transform_changes_the_version_and_encodes_again(module: str, tmp_path: Path) -> None:
    sources = [source(write_jsonl(tmp_path / "a.jsonl", CHANGED_TEXTS))]
    specs = [
        make_spec(tmp_path / "store", sources, **options)
        for options in ({}, transform(f"{module}:change"), transform(f"{module}:change", "2"))
    ]
    results = [build(spec) for spec in specs]
    assert len({result.version for result in results}) == 3
    assert [result.num_encoded for result in results] == [1, 1, 1]
    assert listed_files(specs[1], results[1].version, ".tok") == listed_files(specs[2], results[2].version, ".tok")
    documents = manifest_json(local_store(specs[2].store, "data"), results[2].version)["spec"]["documents"]
    assert documents["transform"] == {"function": f"{module}:change", "version": "2"}


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("fail", "KeyError: 'no such thing'"),
        ("number", "TypeError: it returned int, not str"),
        ("half", "surrogates"),
        ("leave", "SystemExit without a message"),
        ("interrupt", "interrupted"),
        ("panic", "Panic: index out of bounds"),
    ],
)
def test_whatever_a_transform_raises_is_reported_with_file_row_and_function(
    function: str, said: str, on_error: str, module: str, tmp_path: Path
) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["text 9"])
    options = transform(f"{module}:{function}")
    options["documents"]["on_error"] = on_error
    spec = make_spec(tmp_path / "store", [source(path)], **options)
    place = re.escape(f"{path}, row 0: documents.transform {module}:{function} failed: ")
    in_workers = function == "interrupt"  # in this process, it is Ctrl-C
    for num_workers in (1,) if in_workers else (0, 1) if on_error == "fail" else (0,):
        with pytest.raises(InputError, match=f"^{place}.*{said}.*; correct"):
            build(spec, num_workers)
    assert_nothing_visible(spec)


@pytest.mark.parametrize(
    "function", ["{}_nowhere:change", "{}:nothing", "{}:NOTHING", "{}_broken:change", "{}_leaving:change"]
)
def test_a_transform_that_cant_be_imported_is_an_error_of_the_spec(function: str, module: str, tmp_path: Path) -> None:
    name = function.format(module)
    spec = lines_spec(tmp_path, CHANGED_TEXTS, **transform(name))
    with pytest.raises(SpecError, match=r"documents\.transform\.function: ") as caught:
        build(spec)
    assert name in str(caught.value)
    assert_nothing_visible(spec)


def test_a_nondeterministic_transform_publishes_nothing(module: str, tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, CHANGED_TEXTS, **transform(f"{module}:chance"))
    message = assert_refused(spec, "a.jsonl", "differs", error=CheckError)
    assert NEXT_STEP.search(message)


def test_exclusions_apply_to_transformed_texts(module: str, tmp_path: Path) -> None:
    options = transform(f"{module}:change")
    options["documents"] |= with_exclusions(tmp_path, [json.dumps("ONE 漢"), json.dumps("two")])["documents"]
    spec = lines_spec(tmp_path, ["one é", "two"], **options)
    result = build(spec)
    assert stored_texts(spec, result.version) == ["TWO"]
    assert result.rows["excluded"] == 1


def test_bytes_under_a_null_id_are_never_read(tmp_path: Path) -> None:
    """In Arrow a null slot can still have bytes, for example of an id that was removed."""
    offsets, data = b"\0\0\0\0\6\0\0\0\14\0\0\0", b"secretpublic"
    buffers = [pa.py_buffer(bytes([0b10])), pa.py_buffer(offsets), pa.py_buffer(data)]
    table = pa.table({"text": ["one", "two"], "id": pa.Array.from_buffers(pa.string(), 2, buffers)})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    spec = make_spec(tmp_path / "store", [{"kind": "arrow", "path": str(tmp_path / "a.arrow"), "id": "id"}])
    version = build(spec).version
    folder = Path(spec.store) / spec.dataset / "versions" / version
    ids = [i for path in folder.rglob("*.docs") for i in open_documents(path)["id"].to_pylist()]
    assert sorted(map(str, ids)) == ["None", "public"]
    assert not any(b"secret" in path.read_bytes() for path in Path(spec.store).rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_views_categories_and_structs_are_filtered_like_plain_columns(kind: str, tmp_path: Path) -> None:
    """As polars writes them: string_view, and dictionaries of it."""
    views = pa.array(["one", "two", "three and longer than twelve bytes", None], pa.string_view())
    categories = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1]), pa.array(["x", "y"], pa.string_view()))
    table = pa.table({"text": views, "part": categories, "label": pa.array(["a", "b", "a", "b"], pa.string_view())})
    path = tmp_path / f"a.{kind}"
    if kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:  # Arrow writes no dictionary of views
        pq.write_table(table.set_column(1, "part", categories.cast(pa.dictionary(pa.int64(), pa.string()))), path)
    for text in ('part == "x"', 'label == "a"'):
        spec = make_spec(tmp_path / "store", [{"kind": kind, "path": str(path), "filter": text, "id": "label"}])
        result = build(spec)
        assert stored_texts(spec, result.version) == ["one", "three and longer than twelve bytes"]


@pytest.mark.parametrize(
    "fields", [{"filter": "n < 3 or lable == 2"}, {"id": "idd"}, {"filter": "meta.n in [1, 2] or n >= 0"}]
)
def test_a_key_that_no_row_of_a_source_has_is_refused(fields: dict[str, str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [{"text": f"text {name} {n}", "n": n, "meta": {}} for n in range(10)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = make_spec(tmp_path / "store", [source(tmp_path / "*.jsonl", **fields)])
    with pytest.raises(
        InputError, match=r"source jsonl-0: no row has the key '(lable|idd|meta\.n)'.*check the spelling"
    ):
        build(spec)
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one", "n": 5, "lable": 2, "idd": "x", "meta": {"n": 2}}) + "\n")
    assert build(spec).published
