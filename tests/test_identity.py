"""What decides the bytes and the name of a version: order, splits, defaults. builds/test_audit.py has all keys."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import create_model

from tests.builders.datasets import (
    build,
    listed_files,
    local_store,
    make_spec,
    open_documents,
    stored_documents,
    write_parquet,
)
from tests.counts import count
from tests.tokenloom.test_tokenizers import write_ranks
from tokenloom.spec.base import SpecModel
from tokenloom.spec.blocks import DocumentRules
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.sources import Source
from tokenloom.spec.tokenizers import Tokenizer
from tokenloom.storage.formats.manifest import version_name
from tokenloom.storage.formats.shard import open_shard
from tokenloom.storage.versions.published import load_manifest, published_versions, version_path
from tokenloom.storage.versions.tags import newest
from tokenloom.tasks.building.inputs import InputFile
from tokenloom.tasks.building.plan import plan_build, spill_name
from tokenloom.tasks.sources import PartitionRange

TEXTS = [f"document {i}: " + "word " * (i % 37) for i in range(400)]
SPLITS = {"train": 0.5, "validation": 0.25, "test": 0.25}


def parquet(path: Path, name: str = "news") -> dict[str, Any]:
    """Return a parquet source."""
    return {"kind": "parquet", "path": str(path), "name": name}


def version_of(spec: BuildSpec) -> str:
    """Build and return the version's name."""
    return build(spec).version


def text_of(document: dict[str, Any]) -> str:
    """Return the text of a document of a byte dataset."""
    text: str = document["ids"].tobytes().decode("utf-8")
    return text


def splits_of(spec: BuildSpec) -> dict[str, str]:
    """Build and return {text: split}; no text may stand in two splits."""
    splits: dict[str, str] = {}
    for document in stored_documents(spec, version_of(spec)):
        assert splits.setdefault(text_of(document), document["split"]) == document["split"]
    return splits


def cut(folder: Path, texts: Sequence[str], sizes: Sequence[int], group_rows: int) -> Path:
    """Write texts into parquet files of the given numbers of rows, again and again; return their glob."""
    start = index = 0
    while start < len(texts):
        size = sizes[index % len(sizes)]
        write_parquet(folder / f"{index:04d}.parquet", texts[start : start + size], group_rows=group_rows)
        start, index = start + size, index + 1
    return folder / "*.parquet"


def split_sequences(spec: BuildSpec, version: str) -> dict[str, tuple[list[int], list[int]]]:
    """Return {split: (all tokens, all keys)} of a version, its shards laid end to end."""
    store = local_store(spec.store, spec.dataset)
    sequences = {}
    for split, entry in load_manifest(store, version).splits.items():
        tokens: list[int] = []
        keys: list[int] = []
        for shard in entry.shards:
            path = store.local(version_path(version, shard.name))
            tokens += open_shard(path).tokens.tolist()
            keys += open_documents(path.with_suffix(".docs")).column("key").to_pylist()
        sequences[split] = (tokens, keys)
    return sequences


# Bytes of the shards


def test_kept_copies_are_spread_over_the_order(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["the same"] * 200 + TEXTS[:200])
    spec = make_spec(tmp_path / "store", [parquet(path)], documents={"deduplicate": False}, splits={"train": 1.0})
    texts = [text_of(document) for document in stored_documents(spec, version_of(spec))]
    positions = [i for i, text in enumerate(texts) if text == "the same"]
    assert len(positions) == 200
    assert positions[0] < 50 and positions[-1] > 350


corpora = st.lists(
    st.one_of(st.just(""), st.text(max_size=12), st.sampled_from(["copy", "é", "\0", "<|endoftext|>"])), max_size=25
)


@settings(max_examples=count(20, 300), deadline=None)
@given(st.data(), corpora, st.booleans(), st.integers(5, 200), st.integers(0, 2**53 - 1))
def test_shards_of_any_size_hold_exactly_the_documents_in_key_order(
    data: st.DataObject, texts: list[str], deduplicate: bool, shard_tokens: int, seed: int
) -> None:
    texts = [*texts, "one that is always there"]
    sizes = data.draw(st.lists(st.integers(1, 10), min_size=1, max_size=4), label="rows of files")
    group_rows = data.draw(st.integers(1, 8), label="rows of row groups")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = parquet(cut(folder / "data", texts, sizes, group_rows))
        fields: dict[str, Any] = {"seed": seed, "splits": SPLITS, "documents": {"deduplicate": deduplicate}}
        spec = make_spec(folder / "store", [source], shard_tokens=shard_tokens, **fields)
        result, large = build(spec), make_spec(folder / "store", [source], **fields)
        documents = stored_documents(spec, result.version)
        sequences = split_sequences(spec, result.version)
        assert split_sequences(large, version_of(large)) == sequences
    given_texts = [text for text in texts if text]
    kept = Counter(dict.fromkeys(given_texts, 1) if deduplicate else given_texts)
    assert Counter(map(text_of, documents)) == kept
    assert len({(document["path"], document["row"]) for document in documents}) == kept.total()
    counts = {"kept": kept.total(), "duplicates": len(given_texts) - kept.total(), "excluded": 0, "quarantined": 0}
    assert result.rows == counts | {"read": len(texts), "filtered": len(texts) - len(given_texts)}
    for split, (tokens, keys) in sequences.items():
        assert keys == sorted(keys)
        joined = [i for document in documents if document["split"] == split for i in [*document["ids"].tolist(), 255]]
        assert tokens == joined


# Splits


def test_a_document_keeps_its_split_when_files_are_added_the_seed_changes_or_it_appears_twice(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_parquet(folder / "a.parquet", TEXTS[:200])
    source = parquet(folder / "*.parquet")
    before = splits_of(make_spec(tmp_path / "store", [source], splits=SPLITS))
    assert set(before.values()) == {"train", "validation", "test"}

    reseeded = splits_of(make_spec(tmp_path / "store", [source], splits=SPLITS, seed=7))
    assert reseeded == before

    write_parquet(folder / "b.parquet", TEXTS[100:])
    grown = splits_of(make_spec(tmp_path / "store", [source], splits=SPLITS))
    assert {text: grown[text] for text in before} == before

    kept = splits_of(make_spec(tmp_path / "store", [source], splits=SPLITS, documents={"deduplicate": False}, seed=9))
    assert kept == grown


def test_the_seed_changes_the_order_and_not_the_documents(tmp_path: Path) -> None:
    source = parquet(write_parquet(tmp_path / "a.parquet", TEXTS))
    orders = []
    for seed in (0, 1):
        spec = make_spec(tmp_path / "store", [source], seed=seed, splits={"train": 1.0})
        orders.append([text_of(document) for document in stored_documents(spec, version_of(spec))])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(TEXTS)


# Building again


def test_a_build_after_one_more_file_encodes_only_that_file(tmp_path: Path) -> None:
    folder, store = tmp_path / "data", tmp_path / "store"
    cut(folder, TEXTS[:300], [60], 20)
    spec = make_spec(store, [parquet(folder / "*.parquet")])
    assert build(spec).num_encoded == 5
    spills = {path: path.stat().st_mtime_ns for path in (store / "data" / "work" / "spills").iterdir()}
    assert len(spills) == 10  # a spill and a record each

    write_parquet(folder / "more.parquet", TEXTS[300:])
    result = build(spec)
    assert result.published
    assert result.num_encoded == 1
    assert {path: path.stat().st_mtime_ns for path in spills} == spills
    assert len(published_versions(local_store(spec.store, spec.dataset))) == 2
    assert len(stored_documents(spec, result.version)) == 400


def test_a_build_with_nothing_new_publishes_nothing(tmp_path: Path) -> None:
    spec = make_spec(tmp_path / "store", [parquet(cut(tmp_path / "data", TEXTS, [100], 20))])
    first = build(spec)
    store = local_store(spec.store, spec.dataset)
    entry = newest(store, "latest")
    folder = store.local(version_path(first.version))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = build(spec)
    assert (first.published, again.published) == (True, False)
    assert again.num_encoded == 0
    assert (again.version, again.splits) == (first.version, first.splits)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert newest(store, "latest") == entry


def test_a_version_made_from_cached_spills_has_the_bytes_of_one_made_afresh(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    cut(folder, TEXTS[:300], [60], 20)
    source = parquet(folder / "*.parquet")
    build(make_spec(tmp_path / "store", [source]))
    write_parquet(folder / "more.parquet", TEXTS[300:])
    grown, afresh = make_spec(tmp_path / "store", [source]), make_spec(tmp_path / "fresh", [source])
    assert listed_files(grown, version_of(grown)) == listed_files(afresh, version_of(afresh))


# Names of versions


def test_a_version_does_not_depend_on_how_its_path_is_typed(tmp_path: Path) -> None:
    cut(tmp_path / "data", TEXTS, [130], 50)
    (tmp_path / "link").symlink_to(tmp_path / "data", target_is_directory=True)
    typed = [
        "data/*.parquet",
        "./data/*.parquet",
        f"{tmp_path}/data/*.parquet",
        "link/*.parquet",
        "data/../data/*.parquet",
    ]
    specs = [make_spec(Path("store"), [parquet(Path("x")) | {"path": path}]).resolve(tmp_path) for path in typed]
    assert len({version_of(spec) for spec in specs}) == 1


def _spec(model: type[SpecModel], **defaults: Any) -> BuildSpec:
    """Return a spec of which nothing optional is given; a model in it has these defaults in place of its own."""
    changed = create_model("Changed", __base__=model, **{name: (Any, value) for name, value in defaults.items()})  # type: ignore[call-overload]
    plain = make_spec("store", [{"kind": "text", "path": "a"}])
    if model is BuildSpec:
        required = {name: getattr(plain, name) for name in ("dataset", "store", "sources", "tokenizer")}
        return cast(BuildSpec, changed.model_construct(**required))
    given: dict[str, Any] = {name: "a" for name in ("path", "name", "format") if name in model.model_fields}
    part = changed.model_construct(**given)
    if model in _SOURCES:
        return plain.model_copy(update={"sources": [part]})
    return plain.model_copy(update={"documents" if model is DocumentRules else "tokenizer": part})


def _names(spec: BuildSpec) -> tuple[str, str]:
    """Return the name of the version that a spec makes of a file, and the name of that file's spills."""
    (name,), (source,) = spec.source_names(), spec.sources
    file = InputFile(name, "a", "/a", 1, "xxh3_128:01", source.reading_options(), {})
    version = version_name(spec.identity(), [(name, "a", file.fingerprint)], "f" * 64)
    return version, spill_name(spec, "f" * 64, file, PartitionRange(0, 1, 1, None))


def _options() -> Iterator[tuple[type[SpecModel], str]]:
    """Yield every option whose default is a value, with its model: what is absent (None, [] or {}) has no name."""
    for model in (BuildSpec, DocumentRules, *_SOURCES, *_TOKENIZERS):
        for name, field in model.model_fields.items():
            is_nested = isinstance(field.default, SpecModel)
            if not (field.is_required() or is_nested or field.default in (None, [], {})) and name not in _UNNAMED:
                yield model, name


_SOURCES, _TOKENIZERS = (
    [kind for kind in get_args(get_args(union)[0]) if issubclass(kind, SpecModel)] for union in (Source, Tokenizer)
)
_UNNAMED = {"kind", "partition_bytes", "anyway", "report", "runner", "backend"}  # they decide no byte


@pytest.mark.parametrize(("model", "option"), list(_options()))
def test_a_default_that_changes_makes_other_names(model: type[SpecModel], option: str) -> None:
    default = model.model_fields[option].default
    if isinstance(default, bool):
        changed: Any = not default
    else:
        changed = default[::-1] if isinstance(default, list) else default * 2 or default + 1
    version, spills = _names(_spec(model))
    other_version, other_spills = _names(_spec(model, **{option: changed}))
    assert other_version != version
    assert (other_spills == spills) == (option == "shard_tokens")  # which decides nothing about spills


def test_a_new_option_that_is_absent_keeps_all_names() -> None:
    for model in (BuildSpec, DocumentRules, *_SOURCES, *_TOKENIZERS):
        absent: tuple[Any, ...] = (None, [], {})
        assert {_names(_spec(model, new=default)) for default in absent} == {_names(_spec(model))}


def test_the_order_in_which_splits_are_written_decides_their_documents(tmp_path: Path) -> None:
    source = parquet(write_parquet(tmp_path / "a.parquet", TEXTS))
    one = splits_of(make_spec(tmp_path / "one", [source], splits={"train": 0.5, "validation": 0.25, "test": 0.25}))
    two = splits_of(make_spec(tmp_path / "two", [source], splits={"train": 0.5, "test": 0.25, "validation": 0.25}))
    swapped = {"train": "train", "test": "validation", "validation": "test"}
    assert two == {text: swapped[split] for text, split in one.items()}
    assert np.unique(list(one.values())).tolist() == ["test", "train", "validation"]


# The name of a version is what trained models and other teams cite; a spec of today must give the same one tomorrow.
# The names of spills are those of a cache: others mean that the next build of everybody encodes everything again.
_PINNED_KINDS = {
    "parquet": ("107dd7638cb2e8c1", "a175e4e012032740ac996babefe6125f"),
    "jsonl": ("b5c898b731b88205", "d66e9fd863a38e1675f58b1adc02185a"),
    "csv": ("0860b0d24af49325", "0fbd5361722b5cfa96649df167aa42ec"),
    "text": ("8de5314edc3c9b42", "8c49e07868a1e901a545f96a0044bd2c"),
    "arrow": ("62858d565f1ad506", "8e5850432eb927a00f4f83cb62d800a6"),
    "arrayrecord": ("985a91e7c8d35876", "3e7530a7aeccdf710ce6de753ba08d74"),
    "huggingface": ("6cab233c8a440ef9", "63c020e2078ca594fa879e923246cca7"),
    "tokens": ("1371e6959414fa15", "7c4c10e6d01c4346c9274a14767b5bfc"),
}


def test_the_names_of_versions_and_spills_are_pinned_for_each_kind_of_source() -> None:
    found = {model.model_fields["kind"].default: _names(_spec(model)) for model in _SOURCES}
    assert found == _PINNED_KINDS


_PINNED: dict[str, tuple[dict[str, Any], str]] = {
    "byte": ({"kind": "byte"}, "9eeec05d1a2e1324"),
    "byte with a name": ({"kind": "byte", "name": "bytes"}, "2c6b576b6d6996ee"),
    "tiktoken": ({"kind": "tiktoken", "name": "gpt2"}, "1cd0de11bf5b5211"),
    "tiktoken with a mark": ({"kind": "tiktoken", "name": "gpt2", "bos": "<|endoftext|>"}, "8d4a6927bbed3de1"),
    "tiktoken from a file": (
        {"kind": "tiktoken", "ranks": "/a.tiktoken", "name": "mine", "pattern": "gpt2", "special_tokens": {"<s>": 300}}
        | {"eot": "<s>"},
        "96901388d542eecb",
    ),
    "huggingface": (
        {"kind": "huggingface", "path": "gpt-neox-20b/tokenizer.json", "eot": "<|endoftext|>"},
        "f808a99aa3ae40d2",
    ),
    "sentencepiece": ({"kind": "sentencepiece", "path": "mistral/tokenizer.model.v1"}, "04889ba8bda23ce7"),
}


@pytest.mark.parametrize("kind", _PINNED)
def test_the_names_of_versions_are_pinned(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    written, version = _PINNED[kind]
    files = {}
    if "ranks" in written:
        files["ranks"] = str(write_ranks(tmp_path / "a.tiktoken"))
    elif written["kind"] == "tiktoken":
        request.getfixturevalue("tiktoken_cache")
    elif "path" in written:
        data: Path = request.getfixturevalue("data_dir")
        files["path"] = str(data / "tokenizers" / written["path"])
    (tmp_path / "a.txt").write_text("hello")
    source = {"kind": "text", "path": str(tmp_path / "a.txt")}
    spec = make_spec(tmp_path / "store", [source], tokenizer=written | files)
    assert plan_build(spec, None).build.version == version
    filled_in = BuildSpec.model_validate(spec.model_dump())  # with every default, as a form sends it
    assert plan_build(filled_in, None).build.version == version


def test_a_tokenizer_by_its_short_name_is_the_same_one() -> None:
    source = {"kind": "text", "path": "a.txt"}
    for short, written in (("byte", {"kind": "byte"}), ("gpt2", {"kind": "tiktoken", "name": "gpt2"})):
        assert make_spec(Path("store"), [source], tokenizer=short) == make_spec(
            Path("store"), [source], tokenizer=written
        )
