"""`documents.on_error: skip`: bad rows are dropped, counted and listed, and no other rows."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import platform
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.datasets import (
    build,
    listed_files,
    local_store,
    make_spec,
    manifest_json,
    stored_texts,
    write_jsonl,
)
from tests.builders.observing import at_step
from tests.builders.refusals import assert_nothing_visible
from tests.counts import count
from tests.tasks.test_hostile_input import damaged_page
from tokenloom.cli import main as cli
from tokenloom.errors import BadRow, FormatError, InputError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.manifest import QUARANTINE as MANIFEST
from tokenloom.storage.formats.records import canonical_json
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.sources import FileRange, make_reader, records
from tokenloom.tasks.sources import files as opening
from tokenloom.tasks.sources import reader as reading
from tokenloom.tasks.sources.base import REASONS

GOOD = [f"good text {i} " + "ab" * (i % 7) for i in range(20)]
Bad = tuple[int, int, str]  # row, number of rows, reason


def spec_of(path: Path, kind: str = "jsonl", source: dict[str, Any] | None = None, **documents: Any) -> BuildSpec:
    """Return a spec that skips bad rows of one source, with the store next to it."""
    sources = [{"kind": kind, "path": str(path), "name": "rows", **(source or {})}]
    return make_spec(path.parent / "store", sources, documents={"on_error": "skip", **documents})


def failing(spec: BuildSpec) -> BuildSpec:
    """Return the same spec with `on_error: fail`."""
    return spec.model_copy(update={"documents": spec.documents.model_copy(update={"on_error": "fail"})})


def listed_rows(spec: BuildSpec, version: str) -> list[dict[str, Any]]:
    """Return the lines of a version's quarantine, checked against its manifest; none if there is no such file."""
    store = local_store(spec.store, spec.dataset)
    manifest, path = manifest_json(store, version), store.local(version_path(version, MANIFEST))
    lines = []
    if MANIFEST in manifest["files"]:
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == manifest["files"][MANIFEST]
        lines = [json.loads(line) for line in data.splitlines()]
        assert lines
        assert data == b"".join(canonical_json(line) + b"\n" for line in lines)
        assert spec.store not in data.decode()
        assert platform.node() not in data.decode()
    else:
        assert not path.exists()
    for line in lines:
        assert sorted(line) == ["num_rows", "path", "reason", "row", "source"]
        assert not line["path"].startswith("/")
        assert line["reason"] in REASONS
    assert sum(line["num_rows"] for line in lines) == manifest["rows"]["quarantined"]
    return lines


# Every reason: the table of tests/tasks/test_hostile_input.py has them for readers


def lines_with(folder: Path, reason: str, *bad: bytes) -> tuple[Path, list[Bad]]:
    """Write good lines with bad ones in between; return the file, and its bad rows."""
    path, content, rows = folder / "a.jsonl", b"", list[Bad]()
    waiting = list(bad)
    for i, one in enumerate(GOOD):
        if i % 3 == 1 and waiting:
            rows.append((len(content), 1, reason))
            content += waiting.pop(0) + b"\n"
        content += json.dumps({"text": one}).encode() + b"\n"
    assert not waiting
    path.write_bytes(content)
    return path, rows


_NOT_TEXT = (b'{"text": 1}', b'{"text": true}', b'{"text": {}}', b'{"text": [1]}', b'{"text": NaN}')
_MISSING_KEY = (b"{}", b'{"Text": "a"}', b"[]", b'"text"', b"7", b"null")
_TOO_LARGE = (b'{"text": "' + b"x" * 101 + b'"}', '{"text": "é'.encode() + b"x" * 99 + b'"}')


@pytest.mark.parametrize("sequence", list(permutations(["too_large", "bad_id", "invalid_json"]))[::2], ids="-".join)
def test_the_first_bad_row_is_reported_whichever_step_finds_it(sequence: Sequence[str], tmp_path: Path) -> None:
    lines = {
        "too_large": b'{"text": "' + b"x" * 2001 + b'"}',
        "bad_id": b'{"text": "a", "id": "' + b"x" * 1025 + b'"}',
        "invalid_json": b"{",
    }
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + b"\n".join(lines[reason] for reason in sequence))
    spec = spec_of(path, source={"id": "id"}, max_bytes=2000)
    with pytest.raises(BadRow) as caught:
        build(failing(spec))
    assert (caught.value.row, caught.value.reason) == (17, sequence[0])
    assert [line["reason"] for line in listed_rows(spec, build(spec).version)] == list(sequence)


# Random mixtures

words = st.text(max_size=12)
bad_lines = st.sampled_from(
    [
        (b"{", "invalid_json"),
        (b'{"text": "\xff"}', "invalid_utf8"),
        (b'{"text": "\\udc80"}', "invalid_utf8"),
        (b'{"t": ""}', "missing_key"),
        (b'{"text": 0}', "not_text"),
        (b'{"text": "' + b"x" * 61 + b'"}', "too_large"),
    ]
)
good_lines = st.one_of(words, st.sampled_from(["", "again", None])).map(
    lambda one: (json.dumps({"text": one}).encode(), None)
)
Line = tuple[bytes, str | None]


@settings(max_examples=count(25, 500), deadline=None)
@given(st.lists(st.one_of(good_lines, good_lines, bad_lines), max_size=30), st.booleans(), st.booleans())
def test_mixtures_of_lines_are_accounted_for(lines: list[Line], is_zipped: bool, deduplicates: bool) -> None:
    content, bad, texts = b"", [], []
    for line, reason in [(b'{"text": "first"}', None), *lines]:
        if reason:
            bad.append((len(content), 1, reason))
        elif one := json.loads(line)["text"]:
            texts.append(one)
        content += line + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.lines.gz" if is_zipped else "a.jsonl")
        path.write_bytes(gzip.compress(content) if is_zipped else content)
        spec = spec_of(path, max_bytes=60, deduplicate=deduplicates)
        kept = sorted(set(texts)) if deduplicates else texts
        result = build(spec)
        assert stored_texts(spec, result.version) == sorted(kept)
        listed = listed_rows(spec, result.version)
        assert [(line["row"], line["num_rows"], line["reason"]) for line in listed] == bad
        assert {(line["source"], line["path"]) for line in listed} <= {("rows", path.name)}
        fates = {name: num_rows for name, num_rows in result.rows.items() if name != "read"}
        assert result.rows["read"] == sum(fates.values()) == 1 + len(lines)
        assert (fates["kept"], fates["duplicates"]) == (len(kept), len(texts) - len(kept))
        if bad:
            with pytest.raises(BadRow) as caught:
                build(failing(spec))
            assert (caught.value.row, 1, caught.value.reason) == bad[0]


# Where a file is cut, and how long its lines and documents are

sizes = st.lists(st.integers(0, 400), min_size=1, max_size=12)


def read_parts(kind: str, path: Path, parts: Sequence[FileRange], **options: Any) -> tuple[dict[int, int], set[int]]:
    """Return {row: length of its text} and the bad rows of ranges; fails if a row comes twice."""
    reader = make_reader({"kind": kind, "text": "text", "on_error": "skip", **options})
    good: dict[int, int] = {}
    bad: set[int] = set()
    for part in parts:
        for batch in reader.read(str(path), part):
            for row, one in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True):
                assert row not in good
                good[row] = len(one)
            assert not bad & {one.row for one in batch.bad}
            bad |= {one.row for one in batch.bad}
    return good, bad


def ranges(bounds: Sequence[int], size: int) -> list[FileRange]:
    """Return the ranges between bounds, from 0 to `size`."""
    ends = [*sorted(bound for bound in bounds if 0 < bound < size), size]
    return [FileRange(start, end) for start, end in pairwise([0, *ends])]


@settings(max_examples=count(150, 3000), deadline=None)
@given(sizes, st.lists(st.integers(1, 3000), max_size=6), st.booleans())
def test_overlong_lines_are_dropped_wherever_the_file_is_cut(
    lengths: list[int], cuts: list[int], ends_with_newline: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(records, "OTHER_BYTES", 40)
        patch.setattr(reading, "READ_BYTES", 40)
        most, content, good, bad = 2 * 50 + 40, b"", {}, set()
        for length in lengths:
            line = b'{"text": "' + b"x" * length + b'"}\n'
            if len(line) - 1 <= most:
                good[len(content)] = length
            else:
                bad.add(len(content))
            content += line
        if not ends_with_newline:
            content = content[:-1]
        path = Path(folder, "a.jsonl")
        path.write_bytes(content)
        found = read_parts("jsonl", path, ranges(cuts, len(content)), max_bytes=50)
    assert found == (good, bad)


@settings(max_examples=count(150, 3000), deadline=None)
@given(
    sizes,
    st.lists(st.integers(5, 3000), max_size=6),
    st.sampled_from(["|", "<|s|>", "ab-", "\n---\n", "\n\n"]),
    st.integers(1, 64),
)
def test_documents_between_separators_do_not_depend_on_cuts_or_blocks(
    lengths: list[int], cuts: list[int], separator: str, block_bytes: int
) -> None:
    pieces = ["x" * length for length in lengths]
    content, good, bad, row = separator.join(pieces), {}, set(), 0
    for piece in pieces:
        if len(piece) > 100:
            bad.add(row)
        elif piece:
            good[row] = len(piece)
        row += len(piece) + len(separator)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(reading, "READ_BYTES", block_bytes)
        path = Path(folder, "a.txt")
        path.write_text(content)
        overlaps_itself = separator[0] == separator[-1] != separator  # such a file is not cut
        parts = ranges([] if overlaps_itself else cuts, len(content)) if content else []
        found = read_parts("text", path, parts, max_bytes=100, separator=separator)
        (tmp := Path(folder, "b.txt.gz")).write_bytes(gzip.compress(content.encode()))
        zipped = read_parts("text", tmp, [FileRange(0, 1)], max_bytes=100, separator=separator)
    assert found == zipped == (good, bad)


def mixed_folder(folder: Path) -> BuildSpec:
    """Several files of three kinds, most with bad rows; the spec that skips them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, bad in enumerate((_NOT_TEXT, _MISSING_KEY, _TOO_LARGE[:1])):
        lines_with(folder, "", *bad)[0].rename(folder / f"{i}.jsonl")
    (folder / "a.parquet").write_bytes(damaged_page())
    rows = ["text,n", *(f"{one},1" for one in GOOD[:10]), "too many,1,2", *(f"{one},1" for one in GOOD[10:]), "too few"]
    (folder / "a.csv").write_text("\n".join(rows))
    kinds = {"jsonl": "*.jsonl", "parquet": "a.parquet", "csv": "a.csv"}
    sources = [{"kind": kind, "path": str(folder / name)} for kind, name in kinds.items()]
    return make_spec(folder / "store", sources, shard_tokens=1500, documents={"on_error": "skip", "max_bytes": 100})


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The listed files of an undisturbed build of mixed_folder."""
    spec = mixed_folder(tmp_path_factory.mktemp("wanted"))
    result = build(spec)
    assert result.rows["quarantined"] == len(listed_rows(spec, result.version)) + 19 == 5 + 6 + 1 + 20 + 2
    return listed_files(spec, result.version)


@pytest.mark.parametrize(("num_workers", "partition_bytes"), [(0, None), (2, None), (0, 90), (0, 333)])
def test_the_list_has_the_same_bytes_for_any_number_of_workers_and_any_cut(
    num_workers: int,
    partition_bytes: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: dict[str, str],
) -> None:
    if partition_bytes is not None:
        monkeypatch.setattr("tokenloom.tasks.sources.base.PARTITION_BYTES", partition_bytes)
    spec = mixed_folder(tmp_path)
    assert listed_files(spec, build(spec, num_workers).version) == wanted


def test_a_build_from_existing_spills_lists_the_same_rows(tmp_path: Path, wanted: dict[str, str]) -> None:
    spec = mixed_folder(tmp_path)
    first = build(spec)
    other = spec.model_copy(update={"shard_tokens": 800})
    second = build(other)
    assert second.num_encoded == 0
    assert second.version != first.version
    assert listed_files(other, second.version)[MANIFEST] == wanted[MANIFEST]


# Interrupted builds and damaged work


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["tokenize", "shuffle", "publish"])
def test_an_interrupted_build_resumes_to_the_same_list(step: str, tmp_path: Path, wanted: dict[str, str]) -> None:
    spec = mixed_folder(tmp_path)
    with at_step(step, stop), pytest.raises(KeyboardInterrupt):
        build(spec)
    assert_nothing_visible(spec)
    assert listed_files(spec, build(spec).version) == wanted


# Errors that are never skipped


def _out_of_memory(one: str) -> str:
    raise MemoryError


def test_running_out_of_memory_is_not_blamed_on_the_transform(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", GOOD)
    spec = spec_of(path, transform={"function": "tests.builds.test_skips:_out_of_memory", "version": "1"})
    with pytest.raises(MemoryError):
        build(spec)


class _Failing:
    """A file of which all but the first reads fail."""

    def __init__(self, file: IO[bytes], error: Exception, num_reads: int) -> None:
        self._file, self._error, self._left = file, error, num_reads

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "read1", "readline"):
            self._left -= 1
            if self._left < 0:
                raise self._error
        return getattr(self._file, name)


@contextmanager
def failing_reads(error: Exception, num_reads: int) -> Iterator[None]:
    """Make all reads but the first of each opened input file fail."""
    opened = opening.open_file

    @contextmanager
    def open_failing(url: str) -> Iterator[IO[bytes]]:
        with opened(url) as file:
            yield _Failing(file, error, num_reads)  # type: ignore[misc]

    with patch.object(opening, "open_file", open_failing):
        yield


LINES = b"".join(json.dumps({"text": f"{i} {random.Random(i).random()}"}).encode() + b"\n" for i in range(2000))
ERRORS = [OSError(errno.EIO, "Input/output error"), OSError("Forbidden"), TimeoutError(), MemoryError("no memory")]
INPUTS = {
    "a.jsonl": LINES,
    "a.lines.gz": gzip.compress(LINES),
    "a.json": b"[" + LINES.replace(b"\n", b",\n")[:-2] + b"]",
    "a.csv": b"text\n" + b"a row\n" * 100,
    "a.txt": b"a document",
    "a.parquet": b"",
}


@pytest.mark.parametrize(
    ("name", "error"),
    [("a.jsonl", error) for error in ERRORS] + [(name, ERRORS[0]) for name in INPUTS if name != "a.jsonl"],
)
def test_a_disk_or_network_that_fails_is_never_skipped(
    name: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.running.steps.RETRY_SECONDS", (0.0, 0.0, 0.0))
    path = tmp_path / name
    path.write_bytes(INPUTS[name])
    if name == "a.parquet":
        pq.write_table(pa.table({"text": GOOD}), path, row_group_size=5)
    kind = {".csv": "csv", ".txt": "text", ".parquet": "parquet"}.get(path.suffix, "jsonl")
    spec = spec_of(path, kind)
    with ExitStack() as stack:
        begin = partial(stack.enter_context, failing_reads(error, 0 if kind == "text" else 1))
        stack.enter_context(at_step("tokenize", begin))
        with pytest.raises(MemoryError if isinstance(error, MemoryError) else InputError) as caught:
            build(spec)
    assert not isinstance(caught.value, BadRow)
    assert_nothing_visible(spec)
    assert build(spec).rows["quarantined"] == 0


# What the user sees


def test_a_build_says_how_many_rows_it_skipped_and_where_they_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bad = lines_with(tmp_path, "not_text", *_NOT_TEXT)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "dataset: data\nstore: ./store\nsources: [{kind: jsonl, path: a.jsonl}]\n"
        "tokenizer: {kind: byte}\ndocuments: {on_error: skip}\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["build", "spec.yaml", "--direct", "--workers", "0"]
    assert cli.main([*command]) == 0
    shown = "".join(capsys.readouterr())
    assert (
        f"{len(bad)} of {len(GOOD) + len(bad)} rows left out: {len(bad)} quarantined; "
        "quarantine.jsonl lists the quarantined rows" in shown
    )
    assert cli.main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows == {"read": 25, "kept": 20, "quarantined": 5, "duplicates": 0, "filtered": 0, "excluded": 0}


def test_a_source_of_only_bad_rows_is_refused_even_beside_a_good_one(tmp_path: Path) -> None:
    """A key that no row has is an error of the spec, not 700 bad rows."""
    good, wrong = (write_jsonl(tmp_path / f"{name}.jsonl", ["one", "two"], key=name) for name in ("text", "article"))
    sources = [{"kind": "jsonl", "path": str(good)}, {"kind": "jsonl", "path": str(wrong), "name": "papers"}]
    spec = make_spec(tmp_path / "store", sources, documents={"on_error": "skip"})
    with pytest.raises(
        InputError, match=r"source papers: no document, and 2 bad rows \(2 missing_key\).*no key 'text'"
    ):
        build(spec)


def test_a_damaged_list_of_a_published_version_is_named(tmp_path: Path) -> None:
    spec = mixed_folder(tmp_path)
    version = build(spec).version
    path = Path(spec.store) / "data" / "versions" / version / "quarantine.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    with pytest.raises(FormatError, match=r"quarantine\.jsonl: it does not hold valid JSON; restore it"):
        build(spec).to_json()
