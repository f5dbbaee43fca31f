"""Files whose checksums are right and that contradict each other are reported with the contradiction."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damaging import Made, make_version, restored
from tests.builders.masks import give_masks
from tokenloom.errors import FormatError
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.storage.formats.blocks import decode_blocks, encode_blocks
from tokenloom.storage.formats.records import canonical_json, parse_json, sign

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A version with every kind of file in it."""
    return make_version(tmp_path_factory.mktemp("lies"))


@pytest.fixture
def made(whole: Made) -> Iterator[Made]:
    """The same version; its files are restored after the test."""
    with restored(whole):
        yield whole


def version_file(made: Made, name: str) -> Path:
    """Return the path of a file of the version."""
    return made.store.local(f"versions/{made.version}/{name}")


def sign_again(made: Made, change: Change) -> None:
    """Change the manifest and update its checksum."""
    path = version_file(made, "manifest.json")
    manifest: Any = parse_json(path.read_bytes(), "", is_signed=True)
    change(manifest)
    path.write_bytes(sign(manifest))


def first_shard(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest's entry of the first shard of train, which the tests change."""
    shard: dict[str, Any] = manifest["splits"]["train"]["shards"][0]
    return shard


def _damages(made: Made) -> list[dict[str, str]]:
    damages: list[dict[str, str]] = verify_directly(made.reference, False, None, 0)["damages"]
    return damages


def _messages(made: Made) -> dict[str, str]:
    """Return {file name without the folder: message} of verify."""
    return {row["file"].removeprefix(f"versions/{made.version}/"): row["what"] for row in _damages(made)}


def _count_more(manifest: dict[str, Any], *path: str) -> None:
    value: Any = manifest
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] += 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: _count_more(m, "splits", "train", "tokens"), r"splits\.train must be a split with the tokens"),
        (
            lambda m: _count_more(m, "splits", "train", "documents"),
            r"train must be a split with the tokens and",
        ),
        (lambda m: _count_more(m, "splits", "train", "duplicates"), "rows duplicates, the splits have"),
        (lambda m: _count_more(m, "rows", "kept"), "rows kept, the splits have"),
        (lambda m: _count_more(m, "rows", "filtered"), "rows read, .* accounted for"),
        (lambda m: m["files"].pop("quarantine.jsonl"), "quarantine.jsonl is not listed"),
        (lambda m: m["files"].pop("inputs.json"), "inputs.json is not listed"),
        (lambda m: m.pop("tokenizer"), "tokenizer must be given"),
        (lambda m: m.update(splits=[1]), "splits must be an object"),
        (lambda m: m.update(version="a" * 16), "it is the manifest of aaaa"),
        (lambda m: m["spec"].update(seed=5), "make version"),
        (lambda m: m["rows"].pop("read"), "rows.read must be given"),
        (lambda m: first_shard(m)["files"].pop(".docs"), r"splits.train.shards\[0\] must be a shard with .docs"),
        (lambda m: first_shard(m).pop("last_key"), r"splits.train.shards\[0\].last_key must be given"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_named(made: Made, change: Change, message: str) -> None:
    sign_again(made, change)
    messages = _messages(made)
    assert "manifest.json" in messages
    assert re.search(message, messages["manifest.json"]), messages


def test_a_manifest_of_a_newer_format_is_not_damage(made: Made) -> None:
    sign_again(made, lambda m: m.update(format_version=2))
    with pytest.raises(FormatError, match=r"manifest.json: manifest format 2; .* update tokenloom"):
        verify_directly(made.reference, False, None, 0)


def test_inputs_of_another_version_are_named(made: Made) -> None:
    value = json.loads(version_file(made, "inputs.json").read_bytes())
    value["inputs"][0]["fingerprint"] = "xxh3_128:" + "0" * 32
    data = canonical_json(value)
    version_file(made, "inputs.json").write_bytes(data)
    sign_again(made, lambda m: m["files"].update({"inputs.json": hashlib.sha256(data).hexdigest()}))
    assert "spec, inputs and tokenizer make version" in _messages(made)["manifest.json"]


def publish_beside(made: Made, suffix: str, data: bytes) -> None:
    """Replace a file beside the first shard, and its entry in the manifest."""
    version_file(made, f"train/000000{suffix}").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    sign_again(made, lambda m: first_shard(m)["files"].update({suffix: entry}))


@pytest.fixture
def masked(made: Made) -> Iterator[Made]:
    """The version with a mask beside every shard."""
    give_masks(made)
    yield made
    for path in version_file(made, "").rglob("*.mask"):
        path.unlink()


def test_a_mask_with_fewer_bytes_than_its_shard_has_tokens_is_named(masked: Made) -> None:
    mask = version_file(masked, "train/000000.mask").read_bytes()
    assert _messages(masked) == {}
    publish_beside(masked, ".mask", mask[:-1])
    assert "must be a shard with a byte of .mask for each token" in _messages(masked)["manifest.json"]


def test_block_checksums_of_another_shard_or_mask_are_named(masked: Made) -> None:
    right, other = (
        decode_blocks(version_file(masked, f"train/00000{number}.blocks").read_bytes(), "") for number in (0, 1)
    )
    for wrong in (replace(right, mask=None), replace(right, mask=other.mask), other):
        publish_beside(masked, ".blocks", encode_blocks(wrong))
        assert _messages(masked) == {"train/000000.blocks": "it does not hold the checksums of its shard"}


@pytest.mark.parametrize("num_without", [1, 99])
def test_a_mask_that_not_all_shards_have_is_named(masked: Made, num_without: int) -> None:
    sign_again(masked, lambda m: [row["files"].pop(".mask") for row in m["splits"]["train"]["shards"][:num_without]])
    assert "splits of which all shards have masks, or none has" in _messages(masked)["manifest.json"]


def test_a_file_of_a_later_kind_beside_a_shard_is_verified_too(made: Made) -> None:
    publish_beside(made, ".later", b"of a later release")
    assert verify_directly(made.reference, False, None, 0)["warnings"] == []
    assert _messages(made) == {}
    version_file(made, "train/000000.later").write_bytes(b"damaged")
    assert _messages(made) == {"train/000000.later": "its SHA-256 is not that of the manifest"}
    version_file(made, "train/000000.later").unlink()


@pytest.mark.parametrize(
    ("value", "message"),
    [(b"NaN", "does not hold valid JSON"), (b'"\\ud800"', "its spec can't be written as canonical JSON")],
)
def test_a_spec_that_is_not_canonical_json_is_named(made: Made, value: bytes, message: str) -> None:
    sign_again(made, lambda m: m["spec"].update(note=123_456))
    path = version_file(made, "manifest.json")
    body = path.read_bytes().rpartition(b',"checksum"')[0].replace(b"123456", value)
    path.write_bytes(body + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}')
    assert message in _messages(made)["manifest.json"]


def test_a_gap_in_a_log_is_one_damage_of_any_length(made: Made) -> None:
    entry: Any = parse_json(made.store.local("tags/latest/00000001.json").read_bytes(), "", is_signed=True)
    made.store.local("tags/latest/99999999.json").write_bytes(sign(entry | {"number": 99_999_999}))
    message = "an entry of the log is missing; restore it"
    assert [(row["file"], row["what"]) for row in _damages(made)] == [("tags/latest/99999998.json", message)]
    made.store.local("tags/latest/99999999.json").unlink()


def test_entries_of_logs_that_name_no_version_are_named(made: Made) -> None:
    for tag, version in (("latest", "no version"), ("prod", "c" * 16)):
        path = made.store.local(f"tags/{tag}/00000002.json")
        entry: Any = parse_json(path.read_bytes(), "", is_signed=True)
        path.write_bytes(sign(entry | {"version": version}))
    assert _messages(made) == {
        "tags/latest/00000002.json": "version must be 16 hexadecimal digits; restore it",
        f"versions/{'c' * 16}/manifest.json": "missing, but tag prod names it",
    }


def test_an_unlisted_file_is_a_note_and_not_damage(made: Made) -> None:
    strangers = [version_file(made, name) for name in ("notes.txt", "train/more.tok")]
    strangers.append(made.store.local("tags/latest/notes.txt"))
    for stranger in strangers:
        stranger.write_text("mine")
    try:
        result = verify_directly(made.reference, False, None, 0)
    finally:
        for stranger in strangers:
            stranger.unlink()
    assert result["damages"] == []
    assert result["warnings"] == [
        "tags/latest/notes.txt: not an entry of the log",
        f"versions/{made.version}/notes.txt: not listed in the manifest",
        f"versions/{made.version}/train/more.tok: not listed in the manifest",
    ]
