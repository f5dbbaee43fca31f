"""The JSON schema of a spec, from which Prefect makes a form: as the browser and the server read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import validate

from tests.builders.datasets import make_spec
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.spec.build_spec import BuildSpec

_SCHEMA: dict[str, Any] = build_dataset.parameters.model_dump()
_SPEC = _SCHEMA["definitions"]["BuildSpec"]
_TOKENIZERS = ("By name", "Bytes", "tiktoken", "Hugging Face", "SentencePiece", "Ids")
_SOURCE = {"kind": "text", "path": "a.txt"}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its references resolved."""
    reference = schema.get("$ref", "").rpartition("/")[2]
    return (_SCHEMA["definitions"][reference] if reference else {}) | schema


def tabs(field: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of the tabs of a field of the spec, by title."""
    return {tab["title"]: tab for tab in map(resolved, _SPEC["properties"][field]["anyOf"])}


def objects() -> Iterator[dict[str, Any]]:
    """Yield the schema of every object of the form."""
    yield from (each for each in _SCHEMA["definitions"].values() if "properties" in each)
    yield from (each for each in tabs("tokenizer").values() if "properties" in each)


def refused(spec: dict[str, Any], is_of_form: bool = True) -> list[str]:
    """Return the errors of Prefect's server for the parameter `spec`, in the form or when a run is created."""
    errors = validate({"spec": spec}, _SCHEMA, preprocess=True, allow_none_with_default=not is_of_form)
    return [error.message for error in errors]


def as_filled_in(tab: dict[str, Any]) -> Any:
    """Return what the form submits for a tab in which the user filled in nothing."""
    if "properties" not in tab:
        return tab.get("default")
    return {name: field["default"] for name, field in tab["properties"].items() if "default" in field}


def test_no_field_is_a_choice_with_none() -> None:
    fields = [field for each in objects() for field in each["properties"].values()]
    assert len(fields) >= 60
    for field in fields:
        assert field.get("default", ...) is not None, field
        assert not any(choice == {"type": "null"} for choice in field.get("anyOf", [])[:1]), field


def test_a_kind_is_a_list_of_its_one_value_after_the_other_fields() -> None:
    kinds = [each for each in objects() if "kind" in each["properties"]]
    assert len(kinds) >= 15
    for each in kinds:
        kind = each["properties"]["kind"]
        assert kind["enum"] == [kind["default"]] == [kind["const"]]
        assert kind["position"] > len(each["properties"])
        assert "kind" in each["required"]


def test_the_first_tab_of_the_tokenizer_lists_names_and_presets_none() -> None:
    first, *others = tabs("tokenizer").values()
    assert (first["title"], first.get("default")) == ("By name", None)
    assert [each["title"] for each in others] == list(_TOKENIZERS[1:])
    assert "tokenizer" in _SPEC["required"]
    for name in first["enum"]:
        spec = {"dataset": "news", "store": "store", "sources": [_SOURCE], "tokenizer": name}
        assert refused(spec) == []
        assert BuildSpec.model_validate(spec).tokenizer.kind == ("byte" if name == "byte" else "tiktoken")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tokenizer", None, "is not valid under any"),
        ("tokenizer", {"kind": "huggingface", "name": "./model"}, "is not valid under any"),
        ("dataset", "Bad Name", "does not match"),
        ("store", "", "should be non-empty"),
        ("sources", [{"kind": "text"}], "is not valid under any"),
        ("splits", [{"name": "train", "share": 2}], "greater than the maximum"),
    ],
)
def test_the_form_refuses_values_that_its_schema_excludes(field: str, value: Any, message: str) -> None:
    spec = {"dataset": "news", "store": "store", "sources": [_SOURCE], "tokenizer": "byte"}
    assert refused(spec) == []
    assert any(message in error for error in refused(spec | {field: value}))
    del spec["tokenizer"]
    assert refused(spec) == ["'tokenizer' is a required property"]


def test_a_run_accepts_a_spec_with_explicit_nulls() -> None:
    sources = [{"kind": kind, "path": "a"} for kind in ("parquet", "jsonl", "csv", "text", "arrow", "arrayrecord")]
    sources.append({"kind": "huggingface", "name": "org/name"})
    for tokenizer in (
        {"kind": "tiktoken", "ranks": "a.tiktoken", "pattern": "gpt2"},
        {"kind": "huggingface", "name": "EleutherAI/gpt-neox-20b", "revision": "main"},
        {"kind": "sentencepiece", "path": "tokenizer.model"},
    ):
        for runner in ("process", "dask", "ray"):
            spec = make_spec(Path("store"), sources, tokenizer=tokenizer, runner={"kind": runner})
            assert refused(spec.model_dump(mode="json"), is_of_form=False) == []


def test_blocks_of_rare_options_are_folded_below_the_others() -> None:
    fields = _SPEC["properties"]
    order = sorted(fields, key=lambda name: fields[name].get("position", 0))
    assert order[:6] == ["dataset", "store", "sources", "tokenizer", "splits", "limit"]
    assert [name for name in order if "As usual" in str(fields[name])] == order[6:9] == ["documents", "chat", "checks"]
    assert all("title" in fields[name] and "properties" not in tabs(name)["As usual"] for name in order[6:9])


def test_the_part_of_conversations_may_be_left_as_it_is() -> None:
    spec = {"dataset": "news", "store": "store", "sources": [_SOURCE], "tokenizer": "byte"}
    sent = spec | {name: as_filled_in(tabs(name)["Change"]) for name in ("chat", "documents", "checks")}
    assert sent["chat"]["template"] == "tokenizer"
    assert refused(sent) == []
    assert BuildSpec.model_validate(sent).identity() == BuildSpec.model_validate(spec).identity()
    chats = sent | {"sources": [{"kind": "jsonl", "path": "a.jsonl", "messages": "messages"}]}
    assert refused(chats) == []
    assert BuildSpec.model_validate(chats).has_conversations
