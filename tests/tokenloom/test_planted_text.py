"""Text and numbers planted in every field of every JSON file of a store: no terminal acts on them, no command breaks.

The fields are those of the files that a store holds, so that a new file or field is covered by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, local_store, make_spec, write_jsonl
from tests.tokenloom.test_diff_command import hashes
from tokenloom.cli.main import main
from tokenloom.storage.versions import tag_moves

_TEXT = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202e|<b>\t\nforged row\r"
_NUMBERS = (10**30, -1, float("nan"))
_WORK = ("assignment", "train-", "validation-", "test-")  # only builds read them
Place = tuple[str | int, ...]


class Planted:
    """A dataset with one of each record: three versions, of which no tag ever named the last."""

    def __init__(self, folder: Path) -> None:
        source = folder / "a.jsonl"
        spec = make_spec(folder / "store", [{"kind": "jsonl", "path": str(source)}], documents={"on_error": "skip"})
        self.versions = []
        for texts in (["one"], ["one", "two"], ["one", "two", "three"]):
            write_jsonl(source, texts)
            with source.open("a") as file:
                file.write("no JSON\n")
            self.versions.append(build(spec).version)
        store = local_store(spec.store, spec.dataset)
        self.root = store.root
        store.remove_files(list(store.files_below("tags")))
        for number, version in enumerate(self.versions[:2]):
            tag_moves.move(store, "prod", version, number, "tag")

    def files(self) -> list[Path]:
        """Return the JSON files that commands read, of one version."""
        found = [path for path in sorted(self.root.rglob("*.json")) if not path.match("work/spills/*")]
        others = [path for path in found if path.match("versions/*/*") and path.parent.name != self.versions[-1]]
        return [path for path in found if path not in others and not path.name.startswith(_WORK)]

    def commands(self, path: Path) -> list[list[str]]:
        """Return the commands that list what a store says, for some files only those that read them."""
        data, newest = str(self.root), f"{self.root}@{self.versions[-1]}"
        gc = ["gc", data, "--keep-last", "1"]
        listings = [["ls", data], ["du", data], ["report", str(self.root.parent)]]
        if path.name == "build.json":
            return listings
        listings += [["log", data, "--tag", "prod"], ["inspect", newest], ["verify", newest, "--workers", "0"], gc]
        where = ["where", newest, "--content", hashes(["one"])[0]]
        trace = ["trace", newest, "--seq-len", "2", "--batch-size", "1", "--step", "0"]
        diff = ["diff", f"{data}@{self.versions[1]}", newest, "--list", "added"]
        return [*listings, ["peek", newest], where, trace, diff]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(tmp_path_factory.mktemp("planted"))


def signed(value: dict[str, Any]) -> bytes:
    """Return signed JSON; NaN is not canonical, but a hostile writer can sign it."""
    body = json.dumps(value, ensure_ascii=False).encode()[:-1]
    return body + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each text, number and null in JSON; of a list, those in its first item."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, (*place, name))
    elif isinstance(value, list):
        yield from leaves(value[0], (*place, 0)) if value else ()
    elif not isinstance(value, bool) and place != ("checksum",):
        yield place


def changed(value: Any, place: Place, new: object) -> Any:
    """Return JSON with another value at a place."""
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = changed(value[place[0]], place[1:], new)
    return copy


def variants(data: bytes, seen: set[Place]) -> Iterator[tuple[Place, bytes]]:
    """Yield a JSON file with text or a number planted in one field after the other, and the field; signed if it was."""
    value = json.loads(data)
    is_signed = value.pop("checksum", None) is not None
    for place in leaves(value):
        kind = tuple("*" if part in ("train", "validation", "test") else part for part in place)  # alike
        if kind in seen:
            continue
        seen.add(kind)
        found = value
        for part in place:
            found = found[part]
        new = _TEXT if found is None or isinstance(found, str) else _NUMBERS[len(seen) % len(_NUMBERS)]
        planted = changed(value, place, new)
        yield place, signed(planted) if is_signed else json.dumps(planted, ensure_ascii=False).encode()


@contextmanager
def in_place(path: Path, data: bytes) -> Iterator[None]:
    """Have these bytes in a file during the block; the manifest lists those of inputs.json."""
    manifest = path.with_name("manifest.json")
    before = {file: file.read_bytes() for file in (path, manifest) if file.exists()}
    path.write_bytes(data)
    if path.name == "inputs.json" and manifest in before:
        value = json.loads(before[manifest])
        value.pop("checksum")
        value["files"]["inputs.json"] = hashlib.sha256(data).hexdigest()
        manifest.write_bytes(signed(value))
    yield
    for file, old in before.items():
        file.write_bytes(old)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_text_or_number_of_a_store_acts_on_a_terminal_or_breaks_a_command(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: defaultdict[tuple[str, str], set[Place]] = defaultdict(set)
    shown: set[str | int] = set()
    assert [command for command in planted.commands(Path("manifest.json")) if main(command) not in (0, 3)] == []
    for path in planted.files():
        for place, data in variants(path.read_bytes(), seen[path.parts[-3], path.name.lstrip(string.hexdigits)]):
            with in_place(path, data):
                for command in planted.commands(path):
                    main(command)
                    out, err = capsys.readouterr()
                    what = path, command, place, err
                    assert re.sub("[\n\t]", "", out + err).isprintable(), what
                    assert "forged row" not in [line.strip()[:10] for line in (out + err).splitlines()], what
                    assert "(--debug shows where)" not in err, what
                    if command[0] == "report":
                        page = (planted.root.parent / "index.html").read_text()
                        assert "<b>" not in page, what
                        shown |= {"catalogue"} if "&lt;b&gt;" in page else set()
                    shown |= {place[-1]} if "owned" in out + err else set()
    assert shown >= {"at", "by", "reason", "source", "path", "catalogue"}
