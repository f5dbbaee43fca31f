"""`repeat.times` names values of a mark: one name for one content, however a spec spells them, and nothing silent."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.chats import CHATML, chat_spec, conversation
from tests.builders.datasets import build, listed_files, make_spec
from tests.builders.observing import messages_of_builds
from tests.builders.refusals import assert_refused
from tests.counts import count
from tokenloom.errors import SpecError
from tokenloom.flows.direct import plan_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec

_VALUES = [4, 5, 6, 4, 4, 5]


def _spec(folder: Path, times: Mapping[Any, float], values: pa.Array | None = None, store: str = "store") -> BuildSpec:
    """Return a spec of six rows and a mark of them: in JSON lines, or in parquet if its values are given."""
    lines = [json.dumps({"text": f"text {n}", "id": f"id{n}"}) + "\n" for n in range(6)]
    (folder / "a.jsonl").write_text("".join(lines))
    marks = [{"id": f"id{n}", "attributes": {"q": [[0, 1, value]]}} for n, value in enumerate(_VALUES)]
    (folder / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in marks))
    if values is not None:
        pq.write_table(pa.table({"id": [f"id{n}" for n in range(6)], "q": values}), folder / "q.parquet")
    entry = {"path": str(folder / ("q.jsonl" if values is None else "q.parquet")), "key": "id"}
    documents = {"marks": [entry], "repeat": {"by": "q", "times": times}}
    source = {"kind": "jsonl", "path": str(folder / "a.jsonl"), "id": "id"}
    return make_spec(folder / store, [source], splits={"train": 1.0}, documents=documents)


def test_the_names_of_versions_with_repeat_are_pinned(tmp_path: Path) -> None:
    assert plan_directly(_spec(tmp_path, {4: 2.5, 5: 7}), 0)[0].build.version == "64098458ddd55f20"


_INTEGERS, _FLOATS = pa.array(_VALUES), pa.array(_VALUES, pa.float32())


@pytest.mark.parametrize("values", [None, _INTEGERS, _FLOATS], ids=["json", "integers", "floats"])
@pytest.mark.parametrize("seed", range(count(3, 30)))
def test_any_spelling_and_order_of_numbers_has_one_name_and_one_content(
    seed: int, values: pa.Array | None, tmp_path: Path
) -> None:
    made = random.Random(seed)
    spellings: dict[int, list[Any]] = {4: [4, "4", "4.0", "4e0", 4.0, "04"], 5: [5, "5", "5.00"], 6: ["6", "6."]}
    found = set()
    for number in range(3):
        keys = made.sample(sorted(spellings), 3)
        times = {made.choice(spellings[key]): float(key - 3) for key in keys}
        spec = _spec(tmp_path, times, values, f"store-{number}")
        version = build(spec).version
        found.add((version, tuple(sorted(listed_files(spec, version).items()))))
    assert len(found) == 1


@pytest.mark.parametrize("values", [None, _INTEGERS, _FLOATS], ids=["json", "integers", "floats"])
@pytest.mark.parametrize("times", [*itertools.permutations([("4", 2.0), ("4.0", 5.0), ("5", 1.0)])][:4])
def test_two_keys_of_one_number_are_refused(
    times: list[tuple[str, float]], values: pa.Array | None, tmp_path: Path
) -> None:
    assert_refused(
        _spec(tmp_path, dict(times), values), "documents.repeat.times: two keys of one value of q, 4; correct the keys"
    )


def test_true_and_1_are_one_key_of_a_boolean_mark(tmp_path: Path) -> None:
    values = pa.array([True, False, False, True, True, False])
    assert_refused(_spec(tmp_path, {"true": 3, 1: 2}, values), "two keys of one value of q, True; correct the keys")


def test_whole_numbers_of_any_size_have_one_name(tmp_path: Path) -> None:
    for spellings in (["10000000000000000", "1e16"], ["0", "-0.0"]):
        specs = [_spec(tmp_path, {spelling: 2.0}, _FLOATS) for spelling in spellings]
        assert len({plan_directly(spec, 0)[0].build.version for spec in specs}) == 1


@pytest.mark.parametrize("times", ["{4: 3, 4.0: 2}", "{4.0: 3, 4: 2}", "{true: 3, yes: 2}", "{4: 3, 0x4: 2}"])
def test_two_keys_that_yaml_takes_for_one_are_refused(times: str, tmp_path: Path) -> None:
    spec = f"""dataset: data
store: store
sources: [{{kind: jsonl, path: a.jsonl, id: id}}]
tokenizer: {{kind: byte}}
documents: {{marks: [{{path: q.parquet, key: id}}], repeat: {{by: q, times: {times}}}}}
"""
    (tmp_path / "spec.yaml").write_text(spec)
    with pytest.raises(SpecError, match=r"spec.yaml:5: documents.repeat.times.* is given twice; remove one"):
        load_spec(str(tmp_path / "spec.yaml"))


def test_texts_that_spell_one_number_are_two_values(tmp_path: Path) -> None:
    values = pa.array(["4", "4.0", "5", "5", "5", "5"])
    rows = [
        build(_spec(tmp_path, dict(times), values)).rows for times in ((("4", 3), ("4.0", 5)), (("4.0", 5), ("4", 3)))
    ]
    assert [found["copies"] for found in rows] == [6, 6]


def test_a_key_that_no_document_has_is_said_and_one_of_a_dropped_document_is_not(tmp_path: Path) -> None:
    spec = _spec(tmp_path, {4: 2, 9: 3, "5,": 1, "nan": 2}, pa.array(["4", "5", "6", "4", "4", "5"]))
    documents = spec.documents.model_copy(update={"keep": "q != '4'"})
    for _ in range(2):  # the second build finds the marks of the first in work/
        with messages_of_builds() as said:
            build(spec.model_copy(update={"documents": documents, "shard_tokens": 1000 + _}))
        assert said == ["documents.repeat.times: 3 keys that no document has: 5,, 9, nan"]


def _load(folder: Path, source: str = "", more: str = "") -> BuildSpec:
    lines = [
        "dataset: data",
        f"store: {folder}",
        "tokenizer: byte",
        f"sources: [{{kind: jsonl, path: a.jsonl{source}}}]",
    ]
    (folder / "spec.yaml").write_text("\n".join([*lines, more, ""]))
    return load_spec(folder / "spec.yaml")


_MARKS = "marks: [{path: m.parquet, key: row, as: AS, source: [SOURCE]}]"
_PLACES = {
    "a value of a mark": ("", "documents: {marks: [{path: m.parquet, key: row}], repeat: {by: q, times: {WORD: 3}}}"),
    "a mark": ("", "documents: {marks: [{path: m.txt, key: id, as: WORD}]}"),
    "the mark of repeat": ("", "documents: {marks: [{path: m.parquet, key: row}], repeat: {by: WORD, times: {a: 3}}}"),
    "a marked source": ("", "documents: {marks: [{path: m.parquet, key: row, source: [WORD]}]}"),
    "a split": ("", "splits: {train: 0.9, WORD: 0.1}"),
    "a split of a list": ("", "splits: [{name: train, share: 0.9}, {name: WORD, share: 0.1}]"),
    "a source": (", name: WORD", ""),
    "a column": (", text: WORD", ""),
    "an argument of a template": (", messages: m", "chat: {arguments: {WORD: 1}}"),
    "a key": ("", "WORD: 1"),
    "a check": ("", "checks: {WORD: 1}"),
}


@pytest.mark.parametrize("word", ["no", "yes", "on", "Off", "TRUE", "false"])
@pytest.mark.parametrize("place", _PLACES)
def test_booleans_of_yaml_as_keys_or_names_are_refused_with_quotes_as_the_next_step(
    place: str, word: str, tmp_path: Path
) -> None:
    source, more = (text.replace("WORD", word) for text in _PLACES[place])
    with pytest.raises(SpecError, match=re.escape("put quotes around yes, no, on, off, true, false and null")):
        _load(tmp_path, source, more)
    if place not in ("a key", "a check"):  # of which there are ours alone
        quoted = [text.replace("WORD", f'"{word.lower()}"') for text in _PLACES[place]]
        if place == "a marked source":
            quoted[0] = f', name: "{word.lower()}"'
        assert _load(tmp_path, *quoted)


@pytest.mark.parametrize(
    "place", ["a split", "a split of a list", "a marked source", "an argument of a template", "a key"]
)
def test_nulls_as_keys_or_names_are_refused_with_quotes_as_the_next_step(place: str, tmp_path: Path) -> None:
    for word in ("null", "~"):
        source, more = (text.replace("WORD", word) for text in _PLACES[place])
        with pytest.raises(SpecError, match=re.escape("put quotes around yes, no, on, off, true, false and null")):
            _load(tmp_path, source, more)


@pytest.mark.parametrize("word", ["null", "~", ".nan"])
def test_nulls_and_nan_are_no_values_of_a_mark(word: str, tmp_path: Path) -> None:
    more = _PLACES["a value of a mark"][1].replace("WORD", word)
    with pytest.raises(SpecError, match="can't be the value of a mark; put quotes around"):
        _load(tmp_path, "", more)


def test_the_order_of_a_templates_arguments_decides_nothing(tmp_path: Path) -> None:
    template = "{% for name in tones %}{{ name }}{{ tones[name] }} {% endfor %}" + CHATML
    found = set()
    for number, tones in enumerate(({"warm": 1, "dry": 2}, {"dry": 2, "warm": 1})):
        spec = chat_spec(tmp_path, [conversation("a", "b")], template, chat={"arguments": {"tones": tones}})
        spec = spec.model_copy(update={"store": str(tmp_path / f"store-{number}")})
        version = build(spec).version
        found.add((version, tuple(sorted(listed_files(spec, version).items()))))
    assert len(found) == 1
