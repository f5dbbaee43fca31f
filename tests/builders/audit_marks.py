"""Pairs of builds for marks and exclusions: the keys of a spec, and every form of their files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tests.builders.audit import (
    Base,
    Changes,
    Expected,
    Fields,
    Pair,
    assign,
    edit,
    moved,
    pairs_of,
    plain,
    remove,
    rows,
    source_of,
    together,
    touched,
    written,
)
from tests.builders.row_files import write_rows

# ---- keys


def marked(folder: Path) -> Fields:
    """Write rows, and tables of marks of each: by id, by content, by row, and lists."""
    fields = plain("parquet", id="id")(folder)
    both = rows() + rows(12)
    for name, start in (("a", 0), ("b", 12)):
        made = [{"id": f"id{i}", "quality": i % 4, "bad": i % 3 == 0} for i in range(start, start + 12)]
        write_rows(folder / "aligned" / f"{name}.parquet", made)
    marks = [{"id": row["id"], "quality": row["score"] % 4, "bad": row["score"] % 3 == 0} for row in both]
    write_rows(folder / "marks" / "ids.parquet", marks)
    others = [mark | {"quality": 3 - int(mark["quality"])} for mark in marks]
    write_rows(folder / "others" / "ids.parquet", others)
    (folder / "list.txt").write_text("id1\nid2\nid14\n")
    source_of(fields)["name"] = "news"
    listed = {"path": str(folder / "list.txt"), "key": "id", "as": "seen"}
    fields["documents"] = {"marks": [{"path": str(folder / "marks" / "*.parquet"), "key": "id"}, listed]}
    fields["documents"] |= {"keep": "quality >= 1", "repeat": {"by": "quality", "times": {2: 2.5, 3: 2}}}
    return fields


def _marks() -> Iterator[Pair]:
    key, at = "documents.marks.", "documents.marks.0."
    yield Pair(f"{key}path", "lies elsewhere", "same", marked, moved("marks", f"{at}path"))
    yield Pair(f"{key}path", "is of other marks", "bytes", marked, assign(f"{at}path", "{}/others/*.parquet"))
    yield Pair(f"{key}key", "is the row", "bytes", marked, _by_row)
    renamed = assign("documents.marks.1.as", "remove")
    yield Pair(f"{key}as", "is remove", "bytes", marked, renamed)
    yield Pair(f"{key}missing", "drops", "bytes", marked, assign("documents.marks.1.missing", "drop"))
    yield Pair(f"{key}missing", "the default is written out", "same", marked, assign(f"{at}missing", "fail"))
    yield Pair(f"{key}missing", "the default of lists", "same", marked, assign("documents.marks.1.missing", "keep"))
    yield Pair(f"{key}source", "names the only one", "name", marked, assign(f"{at}source", ["news"]))
    yield Pair(f"{key}source", "names one of two", "bytes", _twomarked, assign(f"{at}source", ["news"]))
    one = assign("documents.marks.1.source", "news")
    listed = together(_named_list, assign("documents.marks.1.source", ["news"]))
    yield Pair(f"{key}source", "as a text and as a list", "same", _of_one_source, listed)
    yield Pair(f"{key}source", "as a text", "name", marked, one)
    yield Pair("documents.keep", "keeps others", "bytes", marked, assign("documents.keep", "quality >= 2"))
    spelled = assign("documents.keep", "quality>=1")
    yield Pair("documents.keep", "written otherwise", "same", marked, spelled)
    yield Pair("documents.keep", "of a list", "bytes", marked, assign("documents.keep", "not seen"))
    repeat = "documents.repeat."
    yield Pair(f"{repeat}by", "is another mark", "bytes", marked, assign("documents.repeat", _BY_BAD))
    times = {2: 2.5, 3: 3}
    yield Pair(f"{repeat}times", "are others", "bytes", marked, assign(f"{repeat}times", times))
    yield Pair(f"{repeat}times", "in another order", "same", marked, assign(f"{repeat}times", {3: 2, 2: 2.5}))
    yield Pair(f"{repeat}times", "of keys as texts", "same", marked, assign(f"{repeat}times", {"2": 2.5, "3": 2.0}))
    yield Pair(f"{repeat}splits", "are others", "bytes", _spread, assign(f"{repeat}splits", ["test"]))
    yield Pair(f"{repeat}splits", "the default is written out", "same", marked, assign(f"{repeat}splits", ["train"]))


_BY_BAD = {"by": "bad", "times": {"true": 3}}


def _by_row(folder: Path, fields: Fields) -> None:
    fields["documents"]["marks"][0] = {"path": str(folder / "aligned" / "*.parquet"), "key": "row"}
    _give_other_marks(folder, fields)


def _give_other_marks(folder: Path, _fields: Fields) -> None:
    for name in "ab":
        path = folder / "aligned" / f"{name}.parquet"
        table = pq.read_table(path)
        pq.write_table(table.set_column(1, "quality", pa.array(np.arange(len(table)) % 3)), path)


def _named_list(_folder: Path, _fields: Fields) -> None:
    """Change nothing: the list of sources has one name."""


def _of_one_source(folder: Path) -> Fields:
    fields = marked(folder)
    fields["documents"]["marks"][1]["source"] = "news"
    return fields


def _twomarked(folder: Path) -> Fields:
    fields = marked(folder)
    write_rows(folder / "more" / "c.parquet", rows(12))
    more = source_of(fields) | {"path": str(folder / "more" / "*.parquet"), "name": "more"}
    fields["sources"].insert(0, more)
    return fields


def _spread(folder: Path) -> Fields:
    return marked(folder) | {"splits": {"train": 0.5, "test": 0.5}}


# ---- files


def _with_marks(folder: Path, name: str, data: bytes, rules: Fields, kind: str = "parquet") -> Fields:
    fields = plain(kind, id="id")(folder)
    (folder / "marks").mkdir()
    (folder / "marks" / name).write_bytes(data)
    return fields | {"documents": json.loads(json.dumps(rules).replace("{}/", f"{folder}/"))}


def _parquet(made: Sequence[Fields]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(made)), sink)
    return bytes(sink.getvalue())


def _lines(made: Sequence[Fields]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in made).encode()


def _listed(name: str, key: str, data: bytes) -> Base:
    """Return a base whose list of keys removes documents."""
    return partial(_with_marks, name=name, data=data, rules={"marks": [_mark(name, key) | {"as": "remove"}]})


def _table(name: str, key: str, data: bytes) -> Base:
    """Return a base whose table of marks decides with `keep`."""
    rules = {"marks": [_mark(name, key) | {"missing": "keep"}], "keep": "score >= 1"}
    return partial(_with_marks, name=name, data=data, rules=rules)


def _mark(name: str, key: str) -> Fields:
    return {"path": f"{{}}/marks/{name}", "key": key}


def _scores(first: int) -> list[int]:
    return [first, *[i % 3 for i in range(1, 24)]]


def _files() -> Iterator[Pair]:
    both = rows() + rows(12)
    contents = [{"content": row["text"]} for row in both if row["text"]][:5]
    tables: dict[str, tuple[str, str, list[Fields]]] = {
        "table of ids": ("ids.parquet", "id", [{"id": row["id"]} for row in both]),
        "table of contents": ("contents.parquet", "content", contents),
        "table of path and row": ("rows.parquet", "row", [{"path": "a.parquet", "row": i} for i in range(12)]),
    }
    for label, (name, key, made) in tables.items():
        before, after = ([row | {"score": s} for row, s in zip(made, _scores(n), strict=False)] for n in (0, 2))
        base, file = _table(name, key, _parquet(before)), f"marks/{name}"
        changes: Changes = {"another_mark": ("bytes", edit(file, written(_parquet(after))))}
        changes |= {"another_order": ("name", edit(file, written(_parquet(before[::-1]))))}
        yield from pairs_of(f"marks: {label}", base, **changes, a_new_time=("same", touched(file)))
    yield from _lists(both)
    spans = [{"id": f"id{i}", "attributes": {"score": [[0, 2, i % 3]]}} for i in range(24)]
    other = edit("marks/a.jsonl", written(_lines([*spans[1:], {"id": "id0", "attributes": {"score": [[0, 2, 2]]}}])))
    yield from pairs_of("marks: dolma", _table("a.jsonl", "id", _lines(spans)), another_score=("bytes", other))
    yield from pairs_of("marks: aligned parquet", _aligned, other_marks=("bytes", _give_other_marks))
    beside = touched("aligned/a.parquet")
    yield from pairs_of("marks: aligned parquet", _aligned, a_new_time=("same", beside))
    positions = np.array([0, 2], "<u4").tobytes()
    base = partial(_of_positions, positions=positions)
    fewer = edit("marks/000000.remove", written(np.array([0, 5], "<u4").tobytes()))
    yield from pairs_of("marks: positions", base, others=("bytes", fewer))
    numbers = [{"id": row["id"], "score": 1} for row in both]
    rules = {"marks": [_mark("ids.parquet", "id")], "repeat": {"by": "score", "times": {1: 2, 2: 3}}}
    repeated = partial(_with_marks, name="ids.parquet", data=_parquet(numbers), rules=rules)
    more = edit("marks/ids.parquet", written(_parquet([numbers[0] | {"score": 2}, *numbers[1:]])))
    yield from pairs_of("marks: repeat", partial(_in_one_split, base=repeated), more_copies=("bytes", more))


def _of_positions(folder: Path, positions: bytes) -> Fields:
    fields = _listed("000000.remove", "row", positions)(folder)
    for name, start in (("a", 0), ("b", 12)):
        write_rows(folder / "in" / f"{name}.parquet", [row for row in rows(start) if row["text"]])
    return fields


def _in_one_split(folder: Path, base: Base) -> Fields:
    return base(folder) | {"splits": {"train": 1.0}}


def _aligned(folder: Path) -> Fields:
    fields = marked(folder)
    fields["documents"]["marks"][0] = {"path": str(folder / "aligned" / "*.parquet"), "key": "row"}
    return fields


def _lists(both: Sequence[Fields]) -> Iterator[Pair]:
    """Yield the pairs of lists of keys, and of exclusions."""
    texts = [json.dumps(both[i]["text"]) for i in (0, 7)]
    forms: dict[str, tuple[str, str, bytes, bytes]] = {
        "list of ids": ("ids.txt", "id", b"id0\nid7\n", b"id0\nid8\n"),
        "list of ids in JSON lines": ("ids.jsonl", "id", _lines([{"id": "id0"}]), _lines([{"id": "id7"}])),
        "list of ids in parquet": ("ids.parquet", "id", _parquet([{"any": "id0"}]), _parquet([{"any": "id7"}])),
        "list of contents": ("texts.txt", "content", "\n".join(texts).encode(), texts[1].encode()),
    }
    for label, (name, key, data, other) in forms.items():
        changes: Changes = {"others": ("bytes", edit(f"marks/{name}", written(other)))}
        yield from pairs_of(f"marks: {label}", _listed(name, key, data), **changes)
        yield Pair(f"file marks: {label}", "a new time", "same", _listed(name, key, data), touched(f"marks/{name}"))
    excluding = partial(_with_marks, name="a.txt", data="\n".join(texts).encode(), rules=_EXCLUDE)
    hashes = [_digits(json.loads(text)) for text in texts]
    spellings: dict[str, tuple[Expected, str]] = {"fewer": ("bytes", texts[0]), "hashes": ("same", "\n".join(hashes))}
    spellings |= {"another order": ("same", "\n".join(texts[::-1])), "twice": ("same", "\n".join(texts + texts))}
    for label, (expected, lines) in spellings.items():
        change = edit("marks/a.txt", written(lines))
        yield Pair("file documents.exclude", label, expected, excluding, change)
    emptied = partial(_with_marks, name="a.txt", data=b"", rules=_EXCLUDE)
    yield Pair("documents.exclude", "an empty one is none", "same", emptied, remove("documents"))


_EXCLUDE = {"exclude": "{}/marks/a.txt"}


def _digits(text: str) -> str:
    return xxhash.xxh3_128(text.encode()).hexdigest()


def mark_pairs() -> Sequence[Pair]:
    """Return the pairs of marks and exclusions."""
    return [*_marks(), *_files()]
