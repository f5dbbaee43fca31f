"""What a machine remembers of a tokenizer is what it is: by content, or not at all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiktoken

from tests.builders.datasets import build, small_spec
from tests.tokenloom.test_tokenizers import write_ranks
from tests.tokenloom.tokenizer_conformance import EOT
from tokenloom.errors import TokenizerError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.canonical import sign_record
from tokenloom.storage.versions.published import published_versions
from tokenloom.storage.versions.references import dataset_store
from tokenloom.tokenizers import identity, load_tokenizer, machine_records
from tokenloom.tokenizers.base import TokenizerIdentity
from tokenloom.tokenizers.identity import identify

NEOX, MODEL = "tokenizers/gpt-neox-20b/tokenizer.json", "tokenizers/sentencepiece/test_model.model"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of records of a cache of this test's own."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def ranks(tmp_path: Path) -> dict[str, Any]:
    """Return the definition of a small vocabulary in a file."""
    path = write_ranks(tmp_path / "a.tiktoken")
    return {"kind": "tiktoken", "ranks": str(path), "pattern": "gpt2", "special_tokens": {EOT: 300}}


class Loads(NamedTuple):
    """The definitions that were loaded since the test began."""

    definitions: list[dict[str, Any]]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Record what identify loads."""
    loads = Loads([])

    def load(definition: dict[str, Any]) -> Any:
        loads.definitions.append(definition)
        return load_tokenizer(definition)

    monkeypatch.setattr(identity, "load_tokenizer", load)
    return loads


def record_of(cache: Path) -> Path:
    """Return the only record of an identity in a cache."""
    (path,) = cache.glob("TokenizerIdentity-*.json")
    return path


@pytest.mark.parametrize("kind", ["byte", "name", "ranks", "tokenizer.json", "tokenizer.model"])
def test_what_is_remembered_is_what_is_loaded(
    kind: str, ranks: dict[str, Any], data_dir: Path, tiktoken_cache: Path, loads: Loads
) -> None:
    definition: dict[str, Any] = {
        "byte": {"kind": "byte"},
        "name": {"kind": "tiktoken", "name": "gpt2", "bos": EOT},
        "ranks": ranks,
        "tokenizer.json": {"kind": "huggingface", "path": str(data_dir / NEOX)},
        "tokenizer.model": {"kind": "sentencepiece", "path": str(data_dir / MODEL)},
    }[kind]
    loaded = load_tokenizer(definition)
    first, second = identify(definition), identify(definition)
    assert first == second
    found, files = second
    names = [name for name in TokenizerIdentity.__slots__ if name not in ("encoder_key", "unproven")]
    assert {name: getattr(loaded, name) for name in names} == {name: getattr(found, name) for name in names}
    assert (found.encoder_key is None) == (found.unproven is not None) == (kind in ("byte", "tokenizer.model"))
    assert files == loaded.files
    assert len(loads.definitions) == (2 if kind == "byte" else 1)


def test_other_content_under_the_same_path_is_another_tokenizer(ranks: dict[str, Any], loads: Loads) -> None:
    before, _ = identify(ranks)
    write_ranks(Path(ranks["ranks"]), (b"xy",))
    after, files = identify(ranks)
    assert after.fingerprint == load_tokenizer(ranks).fingerprint != before.fingerprint
    assert files["ranks.tiktoken"] == Path(ranks["ranks"]).read_bytes()
    assert len(loads.definitions) == 2


def test_another_definition_is_another_tokenizer(ranks: dict[str, Any], loads: Loads) -> None:
    identify(ranks)
    other = ranks | {"special_tokens": {EOT: 301}}
    assert identify(other)[0].eot_id == 301
    assert len(loads.definitions) == 2


@pytest.mark.parametrize("changed", ["library", "base.py", "fast/known_parts.py"])
def test_another_release_of_the_library_or_of_our_modules_loads_it_again(
    changed: str, ranks: dict[str, Any], loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify(ranks)
    if changed == "library":
        installed = "tiktoken/core.py,sha256=abc,9\n"
        monkeypatch.setattr(type(distribution("tiktoken")), "read_text", lambda self, name: installed)
    else:
        folder = Path(shutil.copytree(Path(identity.__file__).parent, tmp_path / "modules"))
        with (folder / changed).open("a", encoding="utf-8") as file:
            file.write("# another release\n")
        monkeypatch.setattr(machine_records, "__file__", str(folder / "machine_records.py"))
    identify(ranks)
    identify(ranks)
    assert len(loads.definitions) == 2


def test_a_library_that_does_not_list_its_files_is_loaded_each_time(
    ranks: dict[str, Any], loads: Loads, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(distribution("tiktoken")), "read_text", lambda self, name: None)
    identify(ranks)
    identify(ranks)
    assert len(loads.definitions) == 2
    assert not cache.exists()


@pytest.mark.parametrize("field", ["name", "pattern"])
def test_an_encoding_of_a_plugin_is_loaded_each_time(
    field: str, ranks: dict[str, Any], loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tiktoken.list_encoding_names()
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: [*known, ranks["pattern"] + "-mine"])
    definition = ranks | {field: "gpt2-mine"}
    monkeypatch.setattr("tokenloom.tokenizers.tiktoken_bpe._pattern", lambda pattern: r"\S+|\s+")
    identify(definition)
    identify(definition)
    assert len(loads.definitions) == 2


def test_a_damaged_record_is_ignored_and_replaced(ranks: dict[str, Any], loads: Loads, cache: Path) -> None:
    found = identify(ranks)
    path = record_of(cache)
    good = path.read_bytes()
    for number, damaged in enumerate([b"", good[:-1], good.replace(b'"eot_id":300', b'"eot_id":301'), b"{}"], 2):
        path.write_bytes(damaged)
        assert identify(ranks) == found
        assert len(loads.definitions) == number
        assert path.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(
    ranks: dict[str, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_records, "_held", {})
    cache.parent.write_text("a file, not a folder")
    assert identify(ranks)[0].fingerprint == load_tokenizer(ranks).fingerprint


def test_a_missing_file_is_named_as_without_a_record(ranks: dict[str, Any]) -> None:
    identify(ranks)
    Path(ranks["ranks"]).unlink()
    with pytest.raises(TokenizerError, match=r"a\.tiktoken: no such file"):
        identify(ranks)


def test_a_build_that_is_up_to_date_loads_no_tokenizer(tmp_path: Path, ranks: dict[str, Any], loads: Loads) -> None:
    spec = _with_tokenizer(tmp_path, ranks)
    first = build(spec)
    again = build(spec)
    assert (again.version, again.published) == (first.version, False)
    assert len(loads.definitions) == 1


def test_a_wrong_record_publishes_nothing(tmp_path: Path, ranks: dict[str, Any], cache: Path) -> None:
    spec = _with_tokenizer(tmp_path, ranks)
    found, _ = identify(spec.tokenizer.model_dump())
    record_of(cache).write_bytes(sign_record(replace(found, fingerprint="0" * 64)))
    with pytest.raises(TokenizerError, match="is not the one of the plan"):
        build(spec)
    assert published_versions(dataset_store(spec.store, spec.dataset)) == []


def _with_tokenizer(folder: Path, definition: dict[str, Any]) -> BuildSpec:
    spec = small_spec(folder)
    return BuildSpec.model_validate(spec.model_dump() | {"tokenizer": definition})
