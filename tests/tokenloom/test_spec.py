"""The models of a spec: defaults, refused values, and the part that determines the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tokenloom.errors import SpecError
from tokenloom.spec.build_spec import MAX_SEED, BuildSpec

SOURCE: dict[str, Any] = {"kind": "parquet", "path": "data/*.parquet"}


def spec(**fields: Any) -> BuildSpec:
    """Return a spec with these fields in addition to, or instead of, the required ones."""
    required = {"dataset": "news", "store": "./store", "sources": [SOURCE], "tokenizer": {"kind": "byte"}}
    return BuildSpec.model_validate(required | fields)


# Values


def test_a_mapping_of_splits_is_the_same_as_a_list_in_its_order() -> None:
    mapping = {"b": 0.2, "train": 0.7, "a": 0.1}
    listed = [{"name": name, "share": share} for name, share in mapping.items()]
    assert spec(splits=mapping) == spec(splits=listed)
    assert spec(splits=mapping).split_shares() == list(mapping.items())
    assert spec(splits=mapping).identity() == spec(splits=listed).identity()
    assert spec(splits=listed[::-1]).identity() != spec(splits=listed).identity()
    with pytest.raises(ValidationError, match="two splits are named 'a'"):
        spec(splits=[*listed[:2], *2 * [{"name": "a", "share": 0.05}]])


def test_the_runner_the_checks_and_credentials_are_not_in_the_identity() -> None:
    elsewhere = spec(
        runner={"kind": "dask", "address": "tcp://a:1", "workers": 3},
        credentials=[{"protocol": "s3", "block": "prod"}],
        checks={"min_documents": 10, "max_token_drift": 0.5},
    )
    assert elsewhere.identity() == spec().identity()
    assert elsewhere.with_workers(5).runner.workers == 5
    assert elsewhere.with_workers(None) == elsewhere
    assert spec().with_workers(0).runner.workers == 0
    with pytest.raises(SpecError, match="runner dask needs at least one"):
        elsewhere.with_workers(0)


def test_a_spec_round_trips_through_json(tmp_path: Path) -> None:
    whole = spec(
        splits={"train": 0.5, "test": 0.5},
        tokenizer={"kind": "tiktoken", "ranks": "a", "pattern": "gpt2", "special_tokens": {"<|endoftext|>": 9}},
        seed=MAX_SEED,
    )
    assert BuildSpec.model_validate_json(whole.model_dump_json()) == whole
    assert BuildSpec.model_validate(json.loads(whole.model_dump_json())) == whole


def test_sources_without_a_name_are_named_by_kind_and_position() -> None:
    sources = [SOURCE, {**SOURCE, "name": "named"}, {"kind": "text", "path": "a.txt"}]
    assert spec(sources=sources).source_names() == ["parquet-0", "named", "text-2"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "a123456789abcdef"}, "16 hexadecimal digits name a version"),
        ({"sources": [SOURCE | {"filter": "f(label) == 1"}]}, "is not a column; write comparisons"),
        ({"sources": [{"kind": "arrayrecord", "path": "a", "id": "id"}]}, "give text, the key with their text"),
        ({"sources": [{"kind": "huggingface", "name": "json"}]}, "give data_files"),
        ({"documents": {"min_chars": 5, "max_chars": 4}}, r"max_chars \(4\) is less than min_chars \(5\)"),
        ({"sources": [SOURCE, SOURCE | {"name": "parquet-0"}]}, "two sources are named 'parquet-0'"),
        ({"tokenizer": {"kind": "tiktoken", "name": "gpt2", "pattern": "x"}}, "require ranks"),
        ({"tokenizer": {"kind": "tiktoken", "ranks": "a"}}, "needs a pattern"),
        ({"splits": {"valid": 0.5, "test": 0.5}}, "a split named train is required"),
        ({"splits": {"train": 0.5, "../test": 0.5}}, "String should match pattern"),
        ({"splits": {"train": float("nan")}}, "less than or equal to 1"),
        ({"store": "st\0ore"}, "a path can't contain a NUL character; remove it"),
        ({"checks": {"min_documents": 0}}, r"checks\.min_documents"),
        ({"checks": {"max_duplicate_share": float("nan")}}, r"checks\.max_duplicate_share"),
        ({"checks": {"max_token_drift": float("inf")}}, r"checks\.max_token_drift"),
        ({"checks": {"max_drift": 0.1}}, r"checks\.max_drift"),
    ],
)
def test_an_invalid_value_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**fields)


def test_decimal_shares_add_up_exactly() -> None:
    assert spec(splits={"train": 0.7, "a": 0.1, "b": 0.1, "c": 0.1}).split_shares()[0] == ("train", 0.7)
    assert spec(splits={"train": 1.0}).split_shares() == [("train", 1.0)]


def test_only_the_checks_that_are_set_are_limits() -> None:
    assert spec().checks.limits() == {}
    limits = spec(checks={"max_token_drift": 2, "min_tokens": 5}).checks.limits()
    assert limits == {"min_tokens": 5, "max_token_drift": 2.0}
