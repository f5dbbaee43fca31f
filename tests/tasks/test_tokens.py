"""Sources of tokens: documents that another trainer's tools made become a version with the same ids."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from pydantic import ValidationError

from tests.builders.chat_tokenizer import write_chat_tokenizer
from tests.builders.commands import run_json
from tests.builders.datasets import build, make_spec
from tests.builders.exported import Documents
from tests.builders.mutations import damaged
from tests.builders.token_files import TYPES, ids_in, write_megatron
from tests.counts import count
from tokenloom.cli.main import main
from tokenloom.errors import BadRow, InputError
from tokenloom.flows.direct import plan_directly
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec
from tokenloom.spec.sources import COLUMN_RULES
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks import preview
from tokenloom.tasks.building.inputs import check_unchanged
from tokenloom.tasks.building.plan import plan_build
from tokenloom.tasks.sources import make_reader, tokens
from tokenloom.tokenizers import huggingface_json, load_tokenizer, pinned_fields

_EOT = 0
_TEXTS = [f"document {i} of a corpus that was tokenized long ago" for i in range(40)]


def tokens_spec(folder: Path, pattern: Path | str, vocab_size: int, eot_id: int = _EOT, **fields: Any) -> BuildSpec:
    """Return the spec of a build of files of Megatron; one split, so that documents are easy to compare."""
    source = {"kind": "tokens", "format": "megatron", "path": str(pattern)} | fields.pop("source", {})
    tokenizer = {"kind": "ids", "vocab_size": vocab_size, "eot_id": eot_id} | fields.pop("tokenizer", {})
    return make_spec(folder / "store", [source], tokenizer=tokenizer, **{"splits": {"train": 1.0}} | fields)


def documents_of(spec: BuildSpec) -> Documents:
    """Return the ids of every document that a build of a spec has, in the order of the version."""
    tables = VersionTables(*resolve(parse_reference(f"{spec.store}/{spec.dataset}")))
    found: Documents = []
    for entry in tables.manifest.shards:
        shard = StoredShard(tables.store, tables.manifest.version, entry)
        ids = shard.tokens(0, entry.tokens)
        found += [part.tolist() for part in np.split(ids, shard.offsets[1:-1])] if entry.documents else []
    return found


def test_the_rules_of_columns_of_ids_name_versions_and_spills() -> None:
    spec = tokens_spec(Path("/"), "/a.parquet", 100, source={"format": "huggingface"})
    for options in (spec.identity()["sources"][0], spec.sources[0].reading_options()):
        assert options["column_rules"] == COLUMN_RULES


# Megatron


@pytest.mark.parametrize("code", TYPES)
def test_documents_of_every_type_of_ids_become_those_of_a_version(code: int, tmp_path: Path) -> None:
    long = np.resize(np.arange(1, 100), 750_000).tolist()  # 3 MB as 32 bits
    one: list[list[list[int]]] = [[[5, 6, _EOT]], [[7]], [[8, 9], [10, _EOT]], [long], [[_EOT]], [[]], []]
    one.append([[11, _EOT, 12, _EOT]])
    two = [[[5, 6]], [[7, 8, _EOT]]]
    write_megatron(tmp_path / "in" / "one", one, code)
    write_megatron(tmp_path / "in" / "two", two, code)
    spec = tokens_spec(tmp_path, tmp_path / "in" / "*", 100)
    rows = build(spec).facts.manifest.rows
    expected = [[5, 6], [7], [8, 9, 10], long, [11, _EOT, 12], [7, 8]]
    assert sorted(documents_of(spec)) == sorted([*ids, _EOT] for ids in expected)
    assert (rows.read, rows.filtered, rows.duplicates, rows.kept) == (10, 3, 1, 6)


def test_ids_around_documents_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "in", [[[1, 5, _EOT]], [[5, _EOT]], [[1, 1, 6]], [[7]], [[_EOT]]])
    spec = tokens_spec(tmp_path, path, 100, tokenizer={"bos_id": 1}, documents={"min_chars": 0})
    assert build(spec).facts.manifest.rows.duplicates == 1
    assert sorted(documents_of(spec)) == [[1, _EOT], [1, 1, 6, _EOT], [1, 5, _EOT], [1, 7, _EOT]]


@pytest.mark.parametrize("suffix", ["", ".idx"])
def test_a_prefix_names_the_same_version_as_its_bin(tmp_path: Path, suffix: str) -> None:
    path = write_megatron(tmp_path / "in_text_document", [[[5, _EOT]]])
    prefix = f"{path.with_suffix('')}{suffix}"
    planned = [plan_directly(tokens_spec(tmp_path, each, 9), 1)[0] for each in (prefix, path)]
    assert planned[0].build.version == planned[1].build.version


def _changed(suffix: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda prefix: prefix.with_suffix(suffix).write_bytes(change(prefix.with_suffix(suffix).read_bytes()))


def _cut(suffix: str, num_bytes: int) -> Callable[[Path], object]:
    return _changed(suffix, lambda data: data[:-num_bytes])


def _poke(position: int, data: bytes) -> Callable[[Path], object]:
    return _changed(".idx", lambda index: index[:position] + data + index[position + len(data) :])


def _swap(prefix: Path) -> None:
    other = write_megatron(prefix.parents[1] / "other", [[[1, 2, 3]]])
    shutil.copy(other.with_suffix(".idx"), prefix.with_suffix(".idx"))


_NUM = 3  # sequences of the file that is damaged, each a document
_LENGTHS, _OFFSETS, _FIRSTS = 34, 34 + 4 * _NUM, 34 + 12 * _NUM
_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no .idx": (lambda prefix: prefix.with_suffix(".idx").unlink(), r"a\.idx: no such file"),
    "no .bin": (lambda prefix: prefix.with_suffix(".bin").unlink(), r"a\.idx: the ids of megatron are in \.bin files"),
    "a cut .idx": (_cut(".idx", 5), r"a\.idx: 97 bytes, and its head says 102: a file was cut or changed"),
    "a head alone": (_cut(".idx", 95), r"not an \.idx of Megatron, version 1"),
    "a cut .bin": (
        _cut(".bin", 2),
        r"a\.idx: documents \[0, 3\) are tokens \[0, 8\), .*a\.bin, which has 7: a file was",
    ),
    "a swapped .idx": (_swap, r"documents \[0, 1\) are tokens \[0, 3\), not in turn those of .*a\.bin, which has 8"),
    "floats": (_poke(17, b"\7"), r"not an \.idx of Megatron, version 1, of an integer type"),
    "a count too large": (_poke(18, b"\xff" * 7), r"102 bytes, and its head says [\d,]{20}"),
    "a negative length": (_poke(_LENGTHS + 4, b"\xff" * 4), r"a\.idx: sequences \[0, 3\) do not follow each other"),
    "a wrong offset": (_poke(_OFFSETS + 8, b"\2"), r"a\.idx: sequences \[0, 3\) do not follow"),
    "wrong bounds": (_poke(_FIRSTS + 8, b"\3"), r"the first sequences of documents \[0, 3\) do not ascend"),
    "bounds that end early": (_poke(_FIRSTS + 24, b"\2"), r"documents \[0, 3\) are tokens \[0, 5\), .*, which has 8"),
}


@pytest.mark.parametrize("what", _DAMAGE)
def test_damaged_files_are_named_with_the_rule_and_the_next_step(what: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "in" / "a", [[[5, 6, _EOT]], [[7, 8]], [[9, 10, _EOT]]])
    damage, message = _DAMAGE[what]
    damage(tmp_path / "in" / "a")
    with pytest.raises(InputError, match=message) as found:
        build(tokens_spec(tmp_path, tmp_path / "in" / "*", 100))
    assert "\n" not in str(found.value)


def _plain_megatron(index: bytes, data: bytes) -> Documents:
    """Return the documents of an .idx and a .bin, one sequence after the other."""
    code, (num_sequences, num_bounds) = index[17], struct.unpack_from("<QQ", index, 18)
    lengths = np.frombuffer(index, "<i4", num_sequences, 34).tolist()
    offsets = np.frombuffer(index, "<i8", num_sequences, 34 + 4 * num_sequences).tolist()
    firsts = np.frombuffer(index, "<i8", num_bounds, 34 + 12 * num_sequences).tolist()
    sequences = [
        np.frombuffer(data, TYPES[code], length, offset).tolist() if length else []
        for length, offset in zip(lengths, offsets, strict=True)
    ]
    return [[one for ids in sequences[start:end] for one in ids] for start, end in pairwise(firsts)]


def test_mutants_of_an_index_are_refused_or_read_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "INDEX_DOCUMENTS", 3)
    numbers = random.Random(1)
    documents = [[[numbers.randrange(1, 90) for _ in range(numbers.randrange(5))] for _ in range(3)] for _ in range(9)]
    path = write_megatron(tmp_path / "a", documents, 1)
    whole, data = path.with_suffix(".idx").read_bytes(), path.read_bytes()
    options = {"kind": "tokens", "format": "megatron", "max_bytes": 10**6, "vocab_size": 100, "eot_id": _EOT}
    reader = make_reader({**options, "bos_id": None, "has": ["index"]})
    read = refused = 0
    for number in range(count(400, 5_000)):
        index = damaged(whole, numbers)
        path.with_suffix(".idx").write_bytes(index)
        try:
            batches = [rows for part in reader.partitions(str(path)) for rows in reader.read(str(path), part)]
        except InputError as error:
            assert str(error).startswith(str(path.with_suffix(""))), number
            refused += 1
        else:
            assert ids_in(batches) == _plain_megatron(index, data), number
            read += 1
    assert read > 5 and refused > 5


# Ids, whatever the format


@pytest.mark.parametrize(("code", "ids"), [(8, [5, 100]), (4, [5, -1]), (1, [5, 200]), (5, [5, 2**40])])
def test_an_id_outside_of_the_vocabulary_names_file_and_document(code: int, ids: list[int], tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a", [[[5, _EOT]], [ids, [6]], [[7, _EOT]]], code)
    with pytest.raises(BadRow, match=rf"a\.bin, document 1: its token 1 is {ids[1]}, .*\[0, 100\); check .*vocab_size"):
        build(tokens_spec(tmp_path, path, 100))
    spec = tokens_spec(tmp_path, path, 100, documents={"on_error": "skip"})
    assert build(spec).facts.quarantined == {"tokens-0": {"unknown_id": 1}}
    assert sorted(documents_of(spec)) == [[5, _EOT], [7, _EOT]]


# The spec


_SOURCE = {"kind": "tokens", "format": "megatron", "path": "a.bin"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"documents": {"max_chars": 9}}, r"documents\.max_chars works on texts, and sources of tokens have none"),
        ({"documents": {"without_target": "keep"}}, r"no source holds conversations"),
        ({"tokenizer": {"kind": "byte"}}, r"tokenizer: tokens-0 holds tokens; write \{kind: ids"),
        ({"tokenizer": {"kind": "ids", "vocab_size": 9, "eot_id": 9}}, r"eot_id 9 is not in the vocabulary"),
        (
            {"sources": [_SOURCE | {"dtype": "uint32"}]},
            "dtype: the files of megatron say the type of their ids; remove",
        ),
        ({"sources": [_SOURCE, {"kind": "text", "path": "b"}]}, r"sources: text-1 holds texts, which the tokenizer"),
    ],
)
def test_a_spec_that_makes_no_sense_for_tokens_is_refused(changed: dict[str, Any], message: str) -> None:
    tokenizer = {"kind": "ids", "vocab_size": 100, "eot_id": 0}
    fields = {"dataset": "data", "store": "store", "sources": [_SOURCE], "tokenizer": tokenizer}
    with pytest.raises(ValidationError, match=message):
        BuildSpec.model_validate(fields | changed)


def test_contents_are_excluded_and_texts_are_refused(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a", [[[5, 6, _EOT]], [[7, _EOT]]])
    content = xxhash.xxh3_128_hexdigest(b"ids\0" + np.array([7], "<u4").tobytes())
    (tmp_path / "out.txt").write_text(f"# asked to remove\n{content}\n")
    spec = tokens_spec(tmp_path, path, 100, documents={"exclude": str(tmp_path / "out.txt")})
    assert build(spec).facts.manifest.rows.excluded == 1
    assert documents_of(spec) == [[5, 6, _EOT]]
    (tmp_path / "out.txt").write_text('"a text"\n')
    with pytest.raises(InputError, match=r"out\.txt, line 1: '\"a text\"' is not a content hash"):
        build(spec)


# Inputs


def test_the_index_is_part_of_the_input(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "in" / "a", [[[5, 6], [7, 8]]])
    spec = tokens_spec(tmp_path, tmp_path / "in" / "*", 100)
    (one,) = plan_build(spec, None).inputs
    check_unchanged(one)
    write_megatron(tmp_path / "in" / "a", [[[5, 6]], [[7, 8]]])
    with pytest.raises(InputError, match=r"a\.\w+: it changed while it was read"):
        check_unchanged(one)
    (two,) = plan_build(spec, None).inputs
    assert (one.path, one.url) == (two.path, two.url) == ("a.bin", str(path))
    assert one.fingerprint.partition(" + ")[0] == two.fingerprint.partition(" + ")[0]
    assert one.fingerprint != two.fingerprint


# A version of tokens


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> BuildSpec:
    """The spec of a version of bytes, as ids; the tokenizer `byte` made them."""
    folder = tmp_path_factory.mktemp("imported")
    documents = [[[*text.encode(), 255]] for text in _TEXTS]
    write_megatron(folder / "in" / "a", documents[:25], 1)
    write_megatron(folder / "in" / "b", [*documents[25:], [[*_TEXTS[0].encode(), 255]]], 1)
    tokenizer = {"decode": {"kind": "byte"}}
    spec = tokens_spec(folder, folder / "in" / "*.bin", 256, 255, tokenizer=tokenizer, source={"name": "old"})
    build(spec, 2)
    return spec


def test_peek_and_trace_show_text_and_the_number_of_the_document(
    imported: BuildSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = f"{imported.store}/data"
    shown = run_json(capsys, "peek", reference, "--count", 40, "--chars", 100)["documents"]
    texts = {("a.bin", i): text for i, text in enumerate(_TEXTS[:25])}
    texts |= {("b.bin", i): text for i, text in enumerate(_TEXTS[25:])}
    assert {(each["path"], each["row"]): each["text"] for each in shown} == texts
    (sample,) = run_json(capsys, "trace", reference, "--sample", 0, "--seq-len", 64)["samples"]
    assert all(texts[each["path"], each["row"]].startswith(each["text"][:10]) for each in sample["documents"][:1])


def test_where_finds_a_text_a_content_and_a_row(
    imported: BuildSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = f"{imported.store}/data"
    (tmp_path / "a.txt").write_text(_TEXTS[30] + "\n")
    by_text = run_json(capsys, "where", reference, "--text", tmp_path / "a.txt")
    (found,) = by_text["documents"]
    assert (by_text["status"], found["path"], found["row"]) == ("found", "b.bin", 5)
    by_content = run_json(capsys, "where", reference, "--content", found["content"])
    by_row = run_json(capsys, "where", reference, "--path", "b.bin", "--row", 5)
    assert by_content["documents"] == by_row["documents"] == [found]
    copy = run_json(capsys, "where", reference, "--path", "b.bin", "--row", 15)
    assert (copy["status"], copy["documents"][0]["path"]) == ("duplicate", "a.bin")
    assert run_json(capsys, "where", reference, "--path", "b.bin", "--row", 16, code=3)["status"] == "not_found"
    (tmp_path / "a.txt").write_text("another text")
    missing = run_json(capsys, "where", reference, "--text", tmp_path / "a.txt", code=3)
    assert missing["status"] == "not_found"


def test_a_text_needs_the_tokenizer_that_made_the_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tokens_spec(tmp_path, write_megatron(tmp_path / "a", [[[5, 6, _EOT]]]), 100)
    build(spec)
    (tmp_path / "a.txt").write_text("a text")
    assert main(["where", f"{spec.store}/data", "--text", str(tmp_path / "a.txt")]) == 2
    assert "nothing says which tokenizer made the tokens" in capsys.readouterr().err
    (shown,) = run_json(capsys, "peek", f"{spec.store}/data")["documents"]
    assert shown["text"] == "5 6"


def test_a_mask_that_is_imported_is_shown_checked_and_a_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.array([5, 6, _EOT, 7, 8, 9, _EOT], "<u2")
    ids.tofile(tmp_path / "a.ds")
    np.array([3, 7], "<u8").tofile(tmp_path / "a.ds.index")
    np.array([0, 1, 1, 0, 0, 0, 1], np.uint8).tofile(tmp_path / "a.ds.loss")
    source = {"format": "datatrove", "dtype": "uint16"}
    checks = {"min_learned_share": 0.4, "stop_token_learned": True}
    spec = tokens_spec(tmp_path, tmp_path / "a.ds", 100, source=source, checks=checks)
    share, stop_token = build(spec).gates
    assert (share.compared, share.found) == (True, "0.4286 (3 of 7 tokens of conversations)")
    assert not stop_token.compared
    reference = f"{spec.store}/data"
    shown = run_json(capsys, "peek", reference)["documents"]
    learned = {each["row"]: [(run["text"], run["learned"]) for run in each["runs"]] for each in shown}
    assert learned == {0: [("5", False), ("6 <|endoftext|>", True)], 1: [("7 8 9", False), ("<|endoftext|>", True)]}
    assert run_json(capsys, "inspect", reference)["conversations"]["learned"] == 3
    assert run_json(capsys, "verify", reference, "--deep")["documents_encoded_again"] == 2
    np.ones(7, np.uint8).tofile(tmp_path / "a.ds.loss")
    assert "source changed" in verify_directly(reference, True, None, 0)["warnings"][0]
    assert main(["report", reference]) == 0
    page = Path(capsys.readouterr().out.split("  ")[0]).read_text()
    assert "those that the masks of the source say" in page


def test_the_files_of_the_tokenizer_that_decodes_are_part_of_the_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chat_tokenizer(tmp_path / "tokenizer.json")
    decode = {"kind": "huggingface", "path": "tokenizer.json", "eot": "<|endoftext|>"}
    tokenizer = {"kind": "ids", "vocab_size": 2000, "eot_id": 0, "decode": decode}
    write_megatron(tmp_path / "a", [[[65, 66, 67, 0]]])
    sources = [{"kind": "tokens", "format": "megatron", "path": "a.bin"}]
    fields = {"dataset": "data", "store": "store", "sources": sources, "tokenizer": tokenizer, "report": False}
    (tmp_path / "spec.yaml").write_text(json.dumps(fields | {"splits": {"train": 1.0}}))
    spec = load_spec(str(tmp_path / "spec.yaml"))
    build(spec)
    (tmp_path / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    (shown,) = run_json(capsys, "peek", f"{spec.store}/data")["documents"]
    assert not shown["text"].startswith("65")
    written = load_tokenizer({**decode, "path": str(tmp_path / "elsewhere.json")})
    assert shown["text"] == written.decode(np.array([65, 66, 67]))


def test_a_model_of_the_hub_that_decodes_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_json, "pinned_fields", lambda definition: {"revision": "c0ffee"})
    decode = {"kind": "huggingface", "name": "org/model"}
    spec = tokens_spec(Path("/"), "/a.bin", 100, tokenizer={"decode": decode})
    tokenizer = spec.tokenizer.pinned(pinned_fields(spec.tokenizer.model_dump()))
    assert tokenizer.model_dump()["decode"]["revision"] == "c0ffee"
    assert tokenizer.identity()["decode"] == decode | {"revision": "c0ffee"}


def test_ids_that_the_decoder_does_not_have_are_shown_as_numbers() -> None:
    definition = {"kind": "ids", "vocab_size": 1000, "eot_id": 999, "decode": {"kind": "byte"}}
    tokenizer = load_tokenizer(definition)
    assert tokenizer.decode(np.array([72, 105, 300, 33, 999, 72], np.uint16)) == "Hi<|300|>!<|endoftext|>H"
    assert load_tokenizer({**definition, "decode": None}).decode(np.array([72, 999, 5])) == "72 <|endoftext|> 5"
    assert tokenizer.fingerprint != load_tokenizer({"kind": "byte"}).fingerprint


def test_tokens_are_estimated_by_tokens_where_later_documents_are_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "BATCH_TOKENS", 1_000)
    monkeypatch.setattr(preview, "READ_BYTES", 20_000)
    long, short = ([[[i % 9 + 1] * size]] for i, size in [(1, 100), (2, 10)])
    path = write_megatron(tmp_path / "a", [*(long * 100), *(short * 900)])
    _, estimated, _ = plan_directly(tokens_spec(tmp_path, path, 2**16), 0)
    assert estimated is not None
    assert abs(estimated.num_tokens / 20_000 - 1) < 0.1  # 19,000, and an end-of-text id for each document
