"""Pairs of builds, of which the second has one change, and the inputs that they build from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.builders.chats import CHATML, chat_tokenizer
from tests.builders.datasets import build, listed_files, make_spec
from tests.builders.row_files import write_rows
from tests.builders.token_files import write_megatron
from tokenloom.spec.build_spec import BuildSpec

Fields = dict[str, Any]  # of a spec, except its store
Base = Callable[[Path], Fields]
Change = Callable[[Path, Fields], None]
#: "bytes": the documents or their ids, order, split or origin are others; "name": only what the version says of its
#: inputs and its spec is; "same": the name and every listed byte stay.
Expected = Literal["bytes", "name", "same"]
Changes = dict[str, tuple[Expected, Change]]  # by label, with underscores in place of blanks
_RECORDS = ("manifest.json", "inputs.json")  # what a version says of its inputs and its spec


@dataclass(frozen=True)
class Pair:
    """A build before and after a change.

    Args:
        key: what the change is of: a key of the spec as `keys_of` names it, or a file, see FILES of audit_files.
        label: of the change.
        expected: what the change does to the version.
        base: writes the inputs into a folder, and returns the fields of the spec before the change.
        change: changes files in the folder, and the fields of the spec.
    """

    key: str
    label: str
    expected: Expected
    base: Base
    change: Change

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.key}: {self.label} ({self.expected})"


class Worlds:
    """The folder of inputs before and after a change of a pair, one at a time at the same path, and their stores."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self._folder, self._now = folder, folder / "now"
        self.fields: dict[str, Fields] = {}
        for side in ("before", "after"):
            self._now.mkdir()
            self.fields[side] = pair.base(self._now)
            if side == "after":
                pair.change(self._now, self.fields[side])
            self._now.rename(folder / side)

    def build(self, side: str, store: str) -> tuple[str, dict[str, str]]:
        """Build one side into a store, which keeps its work files alone; return the version and its listed files."""
        (self._folder / side).rename(self._now)
        try:
            fields = dict(self.fields[side])
            below = fields.pop("store", "store")
            spec = make_spec(self._folder / store / below, **fields)
            root = Path(spec.store) / spec.dataset
            for name in ("versions", "tags"):
                shutil.rmtree(root / name, ignore_errors=True)
            version = build(spec).version
            return version, listed_files(spec, version)
        finally:
            self._now.rename(self._folder / side)


def check_pair(folder: Path, pair: Pair) -> None:
    """Check what the change of a pair does, in an empty store and in one that has the other side's work files."""
    worlds = Worlds(folder, pair)
    before, after = worlds.build("before", "one"), worlds.build("after", "two")
    assert (after[0] == before[0]) is (pair.expected == "same"), "the name"
    assert (after[1] == before[1]) is (pair.expected == "same"), "the listed files"
    contents = [{name: sha for name, sha in files.items() if name not in _RECORDS} for _, files in (before, after)]
    assert (contents[0] != contents[1]) is (pair.expected == "bytes"), "the documents"
    assert worlds.build("after", "one") == after, "in the store of before"
    assert worlds.build("before", "two") == before, "in the store of after"


# ---- changes


def assign(path: str, value: Any) -> Change:
    """Return the change that sets what is at a path of the spec, such as "sources.0.text"; "{}/" is the folder."""

    def change(folder: Path, fields: Fields) -> None:
        parent, name = _parent(fields, path)
        parent[name] = value.replace("{}/", f"{folder}/") if isinstance(value, str) else value

    return change


def remove(path: str) -> Change:
    """Return the change that removes a key from the spec."""

    def change(_folder: Path, fields: Fields) -> None:
        parent, name = _parent(fields, path)
        del parent[name]

    return change


def _parent(fields: Fields, path: str) -> tuple[Any, Any]:
    names: list[Any] = [int(name) if name.isdigit() else name for name in path.split(".")]
    parent: Any = fields
    for name in names[:-1]:
        parent = parent.setdefault(name, {}) if isinstance(name, str) else parent[name]
    return parent, names[-1]


def edit(file: str, how: Callable[[bytes], bytes]) -> Change:
    """Return the change that replaces the content of a file; of a missing one, b""."""

    def change(folder: Path, _fields: Fields) -> None:
        path = folder / file
        path.write_bytes(how(path.read_bytes() if path.exists() else b""))

    return change


def replaced(old: str, new: str) -> Callable[[bytes], bytes]:
    """Return the change of a text in a file, which has it."""

    def how(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode())

    return how


def written(text: str | bytes) -> Callable[[bytes], bytes]:
    """Return the change to another content."""
    return lambda _: text if isinstance(text, bytes) else text.encode()


def together(*changes: Change) -> Change:
    """Return several changes as one."""

    def change(folder: Path, fields: Fields) -> None:
        for one in changes:
            one(folder, fields)

    return change


def touched(file: str) -> Change:
    """Return the change of a file's time, and of its inode."""

    def change(folder: Path, _fields: Fields) -> None:
        path = folder / file
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        os.utime(path, (1, 1))

    return change


def pairs_of(file: str, base: Base, **changes: tuple[Expected, Change]) -> Iterator[Pair]:
    """Yield pairs of a file, by label: what a change does, and the change."""
    for label, (expected, change) in changes.items():
        yield Pair(f"file {file}", label.replace("_", " "), expected, base, change)


def moved(folder_name: str, key: str) -> Change:
    """Return the change of the folder in which inputs lie, and of the path at `key` of the spec."""

    def change(folder: Path, fields: Fields) -> None:
        place = folder / "quite" / "another place"
        place.parent.mkdir()
        (folder / folder_name).rename(place)
        parent, name = _parent(fields, key)
        parent[name] = parent[name].replace(str(folder / folder_name), str(place))

    return change


# ---- bases

SUFFIXES = {"parquet": "parquet", "jsonl": "jsonl", "csv": "csv", "arrow": "arrow", "arrayrecord": "array_record"}


def rows(start: int = 0) -> list[Fields]:
    """Return rows of texts, with an empty one, a short one, a long one, and a duplicate."""
    made = []
    for i in range(start, start + 12):
        text = {3: "", 4: "ab", 5: "long " * 12, 6: f"text {start} é"}.get(i - start, f"text {i} é")
        numbers = {"score": i, "lang": "en" if i % 3 else "de"}
        made.append({"id": f"id{i}", "key": f"key{i}", "text": text, "other": f"other {i}", **numbers})
    return made


def conversations() -> list[Fields]:
    """Return rows of conversations under two keys, with tools under two."""
    made = []
    for i in range(6):
        turns = [{"role": "user", "content": f"ask {i}"}, {"role": "assistant", "content": f"say {i}"}]
        other = [{"role": "user", "content": f"who {i}"}, {"role": "assistant", "content": f"me <|im_end|> {i}"}]
        tools = [json.dumps([{"type": "function", "function": {"name": name}}]) for name in ("find", "count")]
        texts = {"talk": json.dumps(turns), "chat": json.dumps(other), "tools": tools[0], "functions": tools[1]}
        made.append(texts | {"id": f"id{i}", "score": i, "prompt": f"p {i}", "completion": f"c {i}"})
        made[-1] |= {"instruction": f"ask {i}", "input": "", "output": f"say {i}"}
    made.append(made[0] | {"talk": json.dumps([{"role": "user", "content": "no target"}]), "id": "none"})
    return made


def source_of(fields: Fields) -> Fields:
    """Return the first source."""
    found: Fields = fields["sources"][0]
    return found


def files_of_rows(folder: Path, kind: str = "jsonl", **source: Any) -> Fields:
    """Write two files of rows of a kind."""
    if kind == "huggingface":
        for name, start in (("train", 0), ("test", 12)):
            write_rows(folder / "in" / f"{name}.jsonl", rows(start))
        return {"sources": [{"kind": kind, "name": str(folder / "in"), "text": "text"} | source]}
    for name, start in (("a", 0), ("b", 12)):
        write_rows(folder / "in" / f"{name}.{SUFFIXES[kind]}", rows(start))
    path = str(folder / "in" / f"*.{SUFFIXES[kind]}")
    return {"sources": [{"kind": kind, "path": path, "text": "text", "name": "news"} | source]}


def file_of_chats(folder: Path, kind: str = "jsonl", template: str | None = CHATML, **source: Any) -> Fields:
    """Write a file of conversations, a tokenizer in a folder, and a template, None for that of the tokenizer."""
    suffix = SUFFIXES.get(kind, "jsonl")
    write_rows(folder / "in" / f"train.{suffix}", conversations())
    place = {"name": str(folder / "in")} if kind == "huggingface" else {"path": str(folder / "in" / f"*.{suffix}")}
    (folder / "chat.jinja").write_text(template or "")
    tokenizer = chat_tokenizer(folder / "tokenizer", bos_token="<s>", eos_token="<|endoftext|>")
    chat = {"template": str(folder / "chat.jinja") if template else "tokenizer"}
    source = {"kind": kind, **place, "messages": "talk"} | source
    return {"sources": [source], "tokenizer": tokenizer, "chat": chat}


def csv_lines(lines: str, **source: Any) -> Base:
    """Return the base of a CSV file without a header, whose first field is the text."""

    def base(folder: Path) -> Fields:
        (folder / "in.csv").write_text(lines)
        options = {"kind": "csv", "path": str(folder / "in.csv"), "text": "0", "header": False}
        return {"sources": [options | source]}

    return base


def texts(folder: Path, **source: Any) -> Fields:
    """Write two text files."""
    (folder / "in").mkdir()
    for name in "ab":
        (folder / "in" / f"{name}.txt").write_text(f"one of {name}\ntwo of {name}\n")
    return {"sources": [{"kind": "text", "path": str(folder / "in" / "*.txt")} | source]}


IDS = [5, 6, 0, 7, 8, 9, 0, 10, 0]  # of three documents, each with its end-of-text id
ENDS = [3, 7, 9]


def token_files(folder: Path, form: str, *, is_parquet: bool = False, **source: Any) -> Fields:
    """Write a file of tokens of a format, and all files that belong to it."""
    place = folder / "in"
    place.mkdir()
    ids = np.array(IDS, np.uint16)
    learned = np.array([0, 1, 1, 0, 0, 1, 1, 1, 1], np.uint8)
    if form == "megatron":
        write_megatron(place / "a", [[[5, 6, 0]], [[7, 8, 9, 0], [10, 0]]])
    elif form == "olmo":
        import gzip

        ids.tofile(place / "token_ids_a.npy")
        learned.tofile(place / "labels_mask_a.npy")
        lines = "".join(f"{start},{end}\n" for start, end in zip([0, *ENDS], ENDS, strict=False))
        (place / "token_ids_a.csv.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    elif form == "llmc":
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, len(ids)
        (place / "a.bin").write_bytes(header.tobytes() + np.array([0, *IDS[:-1]], np.uint16).tobytes())
    elif form == "nanogpt":
        ids.tofile(place / "a.bin")
        (place / "meta.pkl").write_bytes(b"a pickle")
    elif form == "datatrove":
        ids.tofile(place / "a.ds")
        np.array(ENDS, np.uint64).tofile(place / "a.ds.index")
        learned.tofile(place / "a.ds.loss")
        (place / "a.ds.metadata").write_text(f"gpt2|2\n{len(ids)}\n9 T")
    else:
        made = [{"input_ids": [5, 6], "labels": [-100, 6]}, {"input_ids": [7, 8, 9], "labels": [7, 8, 9]}]
        write_rows(place / f"a.{'parquet' if is_parquet else 'arrow'}", made)
    suffix = {"olmo": "token_ids_*.npy", "datatrove": "*.ds", "huggingface": "a.*"}.get(form, "*.bin")
    tokenizer = {"kind": "ids", "vocab_size": 1000, "eot_id": 0}
    return {
        "sources": [{"kind": "tokens", "format": form, "path": str(place / suffix)} | source],
        "tokenizer": tokenizer,
    }


def with_fields(base: Base, **fields: Any) -> Base:
    """Return a base with more fields of the spec; "{}/" in texts is the folder."""

    def made(folder: Path) -> Fields:
        filled: Fields = json.loads(json.dumps(fields).replace("{}/", f"{folder}/"))
        return base(folder) | filled

    return made


def plain(kind: str = "jsonl", **source: Any) -> Base:
    """Return the base of two files of rows."""
    return partial(files_of_rows, kind=kind, **source)


def chats(kind: str = "jsonl", **source: Any) -> Base:
    """Return the base of a file of conversations."""
    return partial(file_of_chats, kind=kind, **source)


def of_spec(fields: Fields) -> BuildSpec:
    """Return the spec of some fields."""
    return make_spec("/store", **{name: value for name, value in fields.items() if name != "store"})
