"""A version of every kind of file, and single damages to it: bits, lengths, missing files, swapped shards."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, local_store, make_spec, manifest_json, write_jsonl, write_parquet
from tests.tokenloom.test_huggingface_tokenizer import train_bpe
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves


@dataclass(frozen=True)
class Made:
    """A published version and what it was built from."""

    spec: BuildSpec
    version: str

    @property
    def reference(self) -> str:
        """The dataset with its newest tag."""
        return f"{self.spec.store}/data@latest"

    @property
    def store(self) -> LocalStore:
        """The dataset's folder."""
        return local_store(self.spec.store, "data")

    @property
    def manifest(self) -> dict[str, Any]:
        """What its manifest says now."""
        return manifest_json(self.store, self.version)

    @cached_property
    def files(self) -> list[str]:
        """Every file that verify requires, relative to the dataset's folder: of the version, and of the tags."""
        folders = [self.store.local(f"versions/{self.version}"), self.store.local("tags")]
        paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        return [str(path.relative_to(self.store.root)) for path in paths if path.name != "build.json"]


def flip_bit(path: Path, place: int, bit: int = 0) -> None:
    """Flip a bit of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def at_write(patch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """Call `do` before write `number` of local files."""
    numbers, write = count(), local_files.write_all

    def writing(file: Any, data: Any) -> None:
        if next(numbers) == number:
            do()
        write(file, data)

    patch.setattr(local_files, "write_all", writing)


def make_version(folder: Path) -> Made:
    """Build a version with ids, quarantine, tokenizer files, three splits, empty shards and two tags."""
    (folder / "tokenizer.json").write_text(train_bpe())
    lines = write_jsonl(folder / "in" / "a.jsonl", [f"text number {i} of many" for i in range(90)])
    rows = [json.dumps({"text": f"line {i} " + "ipsum " * (i % 30), "id": f"id-{i}"}) for i in range(150)]
    rows[70] = "no JSON"
    (folder / "in" / "b.jsonl").write_text("\n".join(rows) + "\n")
    table = write_parquet(folder / "in" / "c.parquet", ["one text, again and again"] * 300)
    sources = [
        {"kind": "jsonl", "path": str(lines), "name": "lines"},
        {"kind": "jsonl", "path": str(folder / "in" / "b.jsonl"), "name": "named", "id": "id"},
        {"kind": "parquet", "path": str(table), "name": "table"},
    ]
    spec = make_spec(
        folder / "store",
        sources,
        tokenizer={"kind": "huggingface", "path": str(folder / "tokenizer.json"), "eot": "<|endoftext|>"},
        documents={"on_error": "skip"},
        splits={"train": 0.699999, "validation": 0.3, "test": 0.000001},
        shard_tokens=1500,
    )
    made = Made(spec, build(spec).version)
    for number in (1, 2):
        tag_moves.move(made.store, "latest", made.version, number, "set by hand")
        tag_moves.move(made.store, "prod", made.version, number - 1, "chosen")
    return made


Damage = tuple[str, set[str], Callable[[], None]]  # a label, the files that it damages, the function that does it


class Damager:
    """Chooses single damages by a seed."""

    def __init__(self, made: Made, seed: int) -> None:
        self._made, self._random = made, random.Random(seed)
        self._files = [name for name in made.files if self._path(name).stat().st_size]  # the mask of no token is empty
        self._shards = [name for name in made.files if name.endswith(".tok")]
        newest = {max(name for name in made.files if name.startswith(f"tags/{tag}/")) for tag in ("latest", "prod")}
        self._removable = [name for name in made.files if name not in newest]

    def damages(self, count: int) -> Iterator[Damage]:
        """Yield `count` damages of all kinds, every file and every section of shards among them."""
        for i in range(count):
            rare = self._swap if (i // 6) % 2 else self._remove
            choices = (self._flip, self._flip_section, self._flip, self._flip_section, self._truncate, rare)
            yield choices[i % 6](i)

    def _path(self, name: str) -> Path:
        return self._made.store.local(name)

    def _flip(self, i: int) -> Damage:
        name = self._files[(i // 6 * 2 + i % 2) % len(self._files)]
        return self._flip_in(name, 0, self._path(name).stat().st_size)

    def _flip_section(self, i: int) -> Damage:
        """Flip a bit in a section of a shard: fixed header, JSON block, padding and checksum, tokens, offsets."""
        name = self._shards[i // 30 % len(self._shards)]
        data = self._path(name).read_bytes()
        header_bytes, _, json_bytes = struct.unpack_from("<III", data, 12)
        (offsets_start,) = struct.unpack_from("<Q", data, 48)
        bounds = [0, 96, 96 + json_bytes, header_bytes, offsets_start, len(data)]
        sections = [(a, b) for a, b in pairwise(bounds) if b > a]
        return self._flip_in(name, *sections[self._random.randrange(len(sections))])

    def _flip_in(self, name: str, start: int, end: int) -> Damage:
        position, bit = self._random.randrange(start, end), self._random.randrange(8)

        return f"bit {bit} of byte {position} of {name}", {name}, lambda: flip_bit(self._path(name), position, bit)

    def _truncate(self, _: int) -> Damage:
        name = self._random.choice(self._files)
        num_bytes = self._random.randrange(self._path(name).stat().st_size)
        return f"{name} cut to {num_bytes} bytes", {name}, lambda: os.truncate(self._path(name), num_bytes)

    def _remove(self, i: int) -> Damage:
        name = self._removable[i // 12 % len(self._removable)]
        return f"{name} removed", {name}, self._path(name).unlink

    def _swap(self, _: int) -> Damage:
        """Swap two shards with their document tables; tables of the same bytes are not damaged by it."""
        one, other = self._random.sample(self._shards, 2)
        pairs = [(one, other), (one.replace(".tok", ".docs"), other.replace(".tok", ".docs"))]
        contents = {name: self._path(name).read_bytes() for pair in pairs for name in pair}
        files = {name for a, b in pairs for name in (a, b) if contents[a] != contents[b]}

        def apply() -> None:
            for first, second in pairs:
                self._path(first).write_bytes(contents[second])
                self._path(second).write_bytes(contents[first])

        return f"{one} and {other} swapped", files, apply


@contextmanager
def restored(made: Made) -> Iterator[None]:
    """Give the version's files back what they hold now after the block."""
    before = {name: made.store.local(name).read_bytes() for name in made.files}
    try:
        yield
    finally:
        for name, data in before.items():
            path = made.store.local(name)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
