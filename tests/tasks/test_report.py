"""The report of a version: its figures are those of the shards, and its page is valid, inert, small and repeatable."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import html5lib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.datasets import build, local_store, make_spec, small_spec, stored_documents, write_jsonl
from tests.builders.observing import messages_of_builds
from tokenloom.cli.main import main
from tokenloom.errors import StoreError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.manifest import BUILD, InputEntry, Manifest, RowCounts, SplitEntry
from tokenloom.storage.formats.statistics import (
    DocumentCounts,
    DocumentStatistics,
    EncodedCounts,
    bin_edges,
    count_lengths,
    length_bins,
)
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves
from tokenloom.storage.versions.build_record import GateResult
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.tasks.building.publish import BuildResult
from tokenloom.tasks.building.version_facts import VersionFacts
from tokenloom.tasks.report.figures import ShownDocument, TokenSample, VersionFigures, collect_figures, unlike_shares
from tokenloom.tasks.report.page import (
    QUANTILES,
    by_doubling,
    length_quantiles,
    make_report,
    render_page,
    tokens_by_length,
)
from tokenloom.tasks.report.templates import percent_of, short
from tokenloom.wording import printable

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FATES = "From rows read to documents kept"
_XHTML = "{http://www.w3.org/1999/xhtml}"


def _published(spec: BuildSpec) -> tuple[BuildResult, LocalStore, Manifest]:
    result = build(spec)
    store = local_store(spec.store, spec.dataset)
    return result, store, load_manifest(store, result.version)


def _parsed(page: str | bytes) -> Any:
    """Return the tree of a page; raises html5lib's ParseError if it is not valid HTML."""
    text = page if isinstance(page, str) else page.decode()
    return html5lib.HTMLParser(strict=True).parse(text)


def _text(node: Any) -> str:
    return " ".join("".join(node.itertext()).split())


def _tables(tree: Any) -> dict[str, list[list[str]]]:
    """Return the rows of each table by its caption, the header first."""
    return {
        _text(table.find(f"{_XHTML}caption")): [[_text(cell) for cell in row] for row in table.iter(f"{_XHTML}tr")]
        for table in tree.iter(f"{_XHTML}table")
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[BuildResult, LocalStore, Manifest]:
    """A small version with a report."""
    return _published(small_spec(tmp_path_factory.mktemp("small"), report=True))


@pytest.fixture(scope="module")
def figures(published: tuple[BuildResult, LocalStore, Manifest]) -> VersionFigures:
    """Its figures."""
    return collect_figures(*published[1:])


@pytest.mark.parametrize("deduplicate", [True, False])
def test_the_figures_are_those_of_the_shards(deduplicate: bool, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, documents={"deduplicate": deduplicate})
    result, store, manifest = _published(spec)
    documents = stored_documents(spec, result.version)
    figures = collect_figures(store, manifest)
    lengths = [len(each["ids"]) + 1 for each in documents]

    assert figures.total == DocumentCounts(len(documents), sum(lengths))
    for what, found in (("source", figures.sources), ("split", figures.splits)):
        expected = {
            name: DocumentCounts(
                sum(each[what] == name for each in documents),
                sum(n for each, n in zip(documents, lengths, strict=True) if each[what] == name),
            )
            for name in {each[what] for each in documents}
        }
        assert found == expected
        assert list(found.values()) == sorted(expected.values(), key=lambda counts: -counts.tokens)
    assert figures.lengths == count_lengths(np.array(lengths, np.uint32))
    ids = Counter({manifest.tokenizer.eot_id: len(documents)})
    for each in documents:
        ids.update(each["ids"].tolist())
    assert figures.sample.num_tokens == sum(lengths)
    assert {token_id: count for token_id, _, count in figures.sample.tokens} == dict(
        sorted(ids.items(), key=lambda item: (-item[1], item[0]))[:30]
    )
    places = {
        (each["split"], each["source"], each["path"], each["row"]): bytes(each["ids"].tolist()).decode()
        for each in documents
    }
    shown = {(one["split"], one["source"], one["path"], one["row"]): one for one in figures.documents}
    assert len(figures.documents) == len(shown) == 10
    assert all(places[place] == one["text"] and not one["is_cut"] for place, one in shown.items())
    assert all(one["num_tokens"] == len(one["text"].encode()) + 1 for one in figures.documents)


def test_the_page_has_every_source_split_and_fate_of_rows(figures: VersionFigures) -> None:
    store, manifest = figures.facts.store, figures.facts.manifest
    tree = _parsed(render_page(figures))
    tables = _tables(tree)
    assert [row[0] for row in tables["Sources"][1:]] == list(figures.sources)
    assert [row[2:4] for row in tables["Sources"][1:]] == [
        [f"{counts.documents:,}", f"{counts.tokens:,}"] for counts in figures.sources.values()
    ]
    assert [row[:3] for row in tables["Splits"][1:]] == [
        [name, f"{counts.documents:,}", f"{counts.tokens:,}"] for name, counts in figures.splits.items()
    ]
    fates = {row[0]: [int(count.replace(",", "")) for count in row[1:]] for row in tables[_FATES][1:]}
    rows = manifest.rows
    assert fates.pop("all") == [rows.read, rows.filtered, rows.quarantined, rows.duplicates + rows.excluded, rows.kept]
    assert fates.keys() == figures.sources.keys()
    assert all(read == sum(rest) for read, *rest in fates.values())
    assert sum(read for read, *_ in fates.values()) == rows.read and rows.duplicates
    assert [link.get("href") for link in tree.find(f".//{_XHTML}nav")] == [
        f"#{heading.get('id')}" for heading in tree.iter(f"{_XHTML}h2")
    ]
    assert len(list(tree.iter(f"{_XHTML}details"))) == 10
    text = _text(tree)
    assert f"{store.root}@{manifest.version}" in text
    assert "tagged latest" in text
    assert "There is no previous version" in text
    assert "The bottleneck was" in text
    assert f"Counted in all tokens of {len(manifest.shards)} shards." in text
    assert "share of the tokens counted" in text


def test_a_page_says_what_is_unknown_without_build_json_or_with_one_that_does_not_fit(tmp_path: Path) -> None:
    _, store, manifest = _published(small_spec(tmp_path))
    path = version_path(manifest.version, BUILD)
    record = json.loads(store.read(path))
    record["statistics"]["train"]["lengths"][-1] += 1  # damage that no checksum covers
    store.replace(path, json.dumps(record | {"seconds": {"tokenize": float("nan")}}).encode())
    for _ in range(2):
        tree = _parsed(make_report(store, manifest))
        assert "build.json is missing or damaged, so sources, lengths" in _text(tree)
        assert "Sources" not in _tables(tree)
        assert [row[1] for row in _tables(tree)["Splits"][1:]] == [
            f"{counts.documents:,}" for counts in collect_figures(store, manifest).splits.values()
        ]
        store.remove(path)


def test_the_page_shows_the_difference_to_the_previous_version(tmp_path: Path) -> None:
    folder = tmp_path / "input"
    write_jsonl(folder / "a.jsonl", [f"first document {i}" for i in range(30)])
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "name": "one", "path": str(folder / "*.jsonl")}])
    _, _, old = _published(spec)
    write_jsonl(folder / "b.jsonl", [f"second document {i}" for i in range(5)])
    _, store, new = _published(spec)
    figures = collect_figures(store, new)
    assert figures.previous is not None
    assert figures.previous.version == old.version
    tables = _tables(_parsed(render_page(figures)))
    assert tables["Sources, compared"][1][1:4] == ["30", "35", "+5"]
    changes = [int(row[6].replace(",", "")) for row in tables["Splits, compared"][1:]]
    assert sum(changes) == sum(len(f"second document {i}") + 1 for i in range(5))


def test_a_version_replaced_the_one_that_its_tag_named_when_it_was_published(tmp_path: Path) -> None:
    folder = tmp_path / "input"
    write_jsonl(folder / "a.jsonl", ["first"])
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(folder / "*.jsonl")}])
    _, store, old = _published(spec)
    write_jsonl(folder / "b.jsonl", ["second"])
    _, _, new = _published(spec)
    tag_moves.move(store, "latest", old.version, 2, "the second is wrong")
    tag_moves.move(store, "best", old.version, 0, "by hand")
    assert collect_figures(store, old).tags == ["best", "latest"]
    assert [collect_figures(store, each).replaced for each in (old, new)] == [None, old.version]
    shown = {name.split()[1]: tokens for name, tokens in collect_figures(store, new).history.items()}
    assert shown == {each.version[:8]: each.num_tokens for each in (old, new)}
    assert "Tokens of the last 2 versions" in _text(_parsed(make_report(store, new)))
    assert "Tokens of the last" not in _text(_parsed(make_report(store, old)))


def test_a_split_of_unusually_long_documents_is_named() -> None:
    splits = {"train": DocumentCounts(9800, 98_000), "test": DocumentCounts(100, 7300), "tiny": DocumentCounts(2, 9000)}
    assert list(unlike_shares(splits)) == ["test"]
    assert unlike_shares(splits | {"test": DocumentCounts(100, 1500)}) == {}


def test_an_empty_split_and_a_single_document_have_a_page(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    spec = make_spec(tmp_path / "store", [{"kind": "text", "path": str(tmp_path / "a.txt")}])
    _, store, manifest = _published(spec)
    figures = collect_figures(store, manifest)
    tables = _tables(_parsed(render_page(figures)))
    assert [row[1:3] for row in tables["Splits"][1:]] == [["1", "2"], ["0", "0"], ["0", "0"]]
    assert [one["text"] for one in figures.documents] == ["x"]


_HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "</p></details><style>* {display: none}</style><!-- ",
    "\x00\x01\x1b[31m\x7f\x85 control",
    "\u202egnp.exe\u2066 \u200f right to left \ufffe\ufdd0",
    "{{ 7 * 7 }}{% raw %}${x} `tick` &amp;lt; ]]> '\"",
    "w" * 5000,
    "Z" + "\u0316" * 300,
]


def test_hostile_texts_and_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "input"
    name = "<img src=x onerror=alert(2)>\u202e&amp;.jsonl"
    write_jsonl(folder / name, _HOSTILE)
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(folder / "*.jsonl")}], splits={"train": 1})
    _, store, manifest = _published(spec)
    page = make_report(store, manifest).decode()
    tree = _parsed(page)
    assert not _CONTROLS.search(page)
    tags = Counter(node.tag.rpartition("}")[2] for node in tree.iter() if isinstance(node.tag, str))
    assert not {"script", "img", "iframe", "object", "embed", "form", "base"} & tags.keys()
    assert all(str(link.get("href")).startswith("#") for link in tree.iter(f"{_XHTML}a"))
    assert tags["style"] == 1
    assert not [key for node in tree.iter() for key in node.attrib if str(key).startswith("on")]
    text = "".join(tree.itertext())
    for shown in ("<script>alert(1)</script>", "{{ 7 * 7 }}", "`tick` &amp;lt; ]]>", "\\x1b[31m", "\\u202egnp.exe"):
        assert shown in text
    assert "<img src=x onerror=alert(2)>\\u202e&amp;.jsonl" in text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_becomes_inert_and_keeps_what_is_printable(text: str) -> None:
    shown = printable(text)
    assert not _CONTROLS.search(shown)
    assert shown.isprintable() or set(filter(lambda c: not c.isprintable(), shown)) <= set(text)
    if text.isprintable():
        assert shown == text


def test_the_same_store_gives_the_same_page_and_names_nothing_else_of_the_machine(
    published: tuple[BuildResult, LocalStore, Manifest],
) -> None:
    result, store, manifest = published
    page = make_report(store, manifest)
    assert store.read(f"reports/{result.version}.html") == page  # as the build wrote it
    rest = page.decode().replace(f"{store.root}@{manifest.version}", "")
    assert str(store.root.parents[1]) not in rest
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", rest)


def _large_figures(
    figures: VersionFigures, num_sources: int, num_inputs: int, num_splits: int, name: str = "s" * 52
) -> VersionFigures:
    """Return figures made large: long names, which end with `name` for sources, and texts that need escaping."""
    sources = [f"source-{i:04d}-{name}" for i in range(num_sources)]
    inputs = [InputEntry(sources[i % num_sources], f"{'p' * 200}/{i}", "f", 2**40) for i in range(num_inputs)]
    splits = [f"split-{i:02d}-{'s' * 20}" for i in range(num_splits)]
    counts = DocumentCounts(2**30, 2**40)
    lengths = [2**30] * len(bin_edges(200))
    statistics = {split: DocumentStatistics(lengths, dict.fromkeys(sources, counts)) for split in splits}
    shard = replace(figures.facts.manifest.shards[0], tokens=2**40, documents=2**30)
    parts = {name: SplitEntry(2**40 * num_sources, 2**30 * num_sources, 2**30, [shard] * 3) for name in splits}
    rows = RowCounts(**dict.fromkeys(("read", "filtered", "excluded", "quarantined", "duplicates", "kept"), 2**40))
    manifest = replace(figures.facts.manifest, dataset="d" * 64, splits=parts, rows=rows)
    assert figures.facts.build is not None
    build = replace(
        figures.facts.build,
        seconds=dict.fromkeys(("tokenize", "assign", "shuffle", "validate"), 1e6),
        statistics=statistics,
        encoded=dict.fromkeys(sources, EncodedCounts(2**31, 2**40, 2**42)),
        gates=[GateResult(f"gate-{i}", ">= 1", "<script>", True) for i in range(20)],
    )
    long = {"source": sources[0], "num_tokens": 2**40, "path": "&" * 4000, "id": "<" * 9999, "text": "<" * 480}
    document = cast(ShownDocument, {**figures.documents[0], **long, "is_cut": True})
    facts = VersionFacts(LocalStore("/corpora/data"), manifest, build)
    # There is no file from which to read them.
    facts.__dict__["quarantined"] = {name: {f"reason-{i}": 2**40 for i in range(9)} for name in sources}
    return VersionFigures(
        facts=facts,
        inputs=inputs,
        tags=["latest"],
        replaced="1" * 16,
        statistics=statistics,
        sample=TokenSample([(i, "&\x00" * 500, 9) for i in range(30)], 2**20, 8),
        documents=[document] * 10,
        previous=replace(facts, manifest=replace(manifest, version="1" * 16)),
        history={f"2026-11-{day:02d} {'f' * 8}": 2**40 for day in range(1, 21)},
        notes=[],
    )


def test_a_large_page_stays_below_a_megabyte(figures: VersionFigures) -> None:
    page = render_page(_large_figures(figures, num_sources=1500, num_inputs=10_000, num_splits=60, name="<&>" * 30))
    assert len(page.encode()) < 1_000_000
    assert "and 1,300 more" in page
    assert len(_tables(_parsed(page))["Splits"]) == 61


def _observed_build(spec: BuildSpec) -> tuple[BuildResult, list[str]]:
    """Build; return the result and the messages."""
    with messages_of_builds() as messages:
        return build(spec), messages


@pytest.mark.parametrize(
    ("function", "error"),
    [("render_page", MemoryError("no memory")), ("report_path", StoreError("No space left on device"))],
)
def test_a_report_that_cannot_be_drawn_or_written_fails_no_build(
    function: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tokenloom.tasks.report.page.{function}", Mock(side_effect=error))
    result, (message,) = _observed_build(small_spec(tmp_path, report=True))
    assert (result.published, result.tag_moved, result.report) == (True, True, None)
    assert f"{error}; run `tokenloom report {result.reference}`" in message


def test_a_build_writes_the_report_that_is_missing_unless_the_spec_leaves_it_out(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, report=True)
    without, messages = _observed_build(spec.model_copy(update={"report": False}))
    assert (without.report, messages) == (None, [])
    assert not (tmp_path / "store/data/reports").exists()
    again = build(spec)  # as after a kill between the tag and the report
    assert (again.published, again.version) == (False, without.version)
    assert again.report == str(tmp_path / f"store/data/reports/{without.version}.html")
    assert Path(again.report).read_bytes() == make_report(*_published(spec)[1:])


def test_the_command_writes_the_page_into_the_store_or_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = build(small_spec(tmp_path, report=True))
    assert result.report == str(tmp_path / f"store/data/reports/{result.version}.html")
    written = Path(result.report).read_bytes()
    Path(result.report).unlink()
    assert main(["report", str(tmp_path / "store/data"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "reference": result.reference,
        "version": result.version,
        "report": result.report,
        "bytes": len(written),
    }
    assert Path(result.report).read_bytes() == written
    assert main(["report", result.reference, "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}  {len(written):,} bytes\n"
    assert (tmp_path / "page.html").read_bytes() == written
    assert main(["report", result.reference, "--output", str(tmp_path / "missing/page.html")]) == 1
    assert "missing/page.html: No such file or directory" in capsys.readouterr().err
    assert (
        build(small_spec(tmp_path, report=True)).report == result.report
    )  # an up-to-date build names the page that is there


LENGTHS = st.lists(st.integers(1, 10**6), min_size=1, max_size=60)


@given(LENGTHS)
def test_quantiles_are_right_to_within_their_bin(lengths: list[int]) -> None:
    array = np.array(lengths, np.uint32)
    for share, found in zip(QUANTILES.values(), length_quantiles(count_lengths(array)), strict=True):
        exact = int(np.quantile(array, share, method="inverted_cdf"))
        edges = bin_edges(int(length_bins(array).max()) + 1)
        index = int(length_bins(np.array([exact], np.uint32))[0])
        assert edges[index] <= found < edges[index + 1]


@given(LENGTHS)
def test_the_bars_of_a_histogram_count_the_documents_of_each_doubling(lengths: list[int]) -> None:
    counts = count_lengths(np.array(lengths, np.uint32))
    exact = Counter(length.bit_length() - 1 for length in lengths)
    assert list(by_doubling(counts).values()) == [exact[k] for k in range(min(exact), max(exact) + 1)]
    assert [*by_doubling(counts)][-1] == f"{2 ** max(exact):,}–{2 ** (max(exact) + 1) - 1:,}"
    assert sum(tokens_by_length(counts)) == pytest.approx(sum(lengths), rel=1 / 8)


def test_figures_are_short() -> None:
    numbers = {0: "0", 7: "7", 999: "999", 1000: "1 k", 12_345: "12.3 k", 999_999: "1 M", 6_120_867: "6.12 M"}
    assert {n: short(n) for n in numbers} == numbers
    shares = {0: "0 %", 1: "<0.1 %", 20: "0.2 %", 500: "5.0 %", 994: "9.9 %", 995: "10 %", 9999: "100 %"}
    assert {n: percent_of(n, 10_000) for n in shares} == shares
    assert percent_of(1, 0) == "-"
