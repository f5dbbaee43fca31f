"""The wording of counts, times and tokenizers in messages and tables."""

from __future__ import annotations

import pytest

from tokenloom.wording import (
    about,
    clock,
    counted,
    counted_rows,
    described_end,
    described_tokenizer,
    did_you_mean,
    duration,
    first_of,
    percent,
    tokenizer_name,
)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (counted(1, "file"), "1 file"),
        (counted(0, "file"), "0 files"),
        (counted(1234567, "document"), "1,234,567 documents"),
        (counted(1, "batch"), "1 batch"),
        (counted(2, "batch"), "2 batches"),
        (counted(2, "process"), "2 processes"),
        (counted_rows({"read": 1, "filtered": 0, "duplicates": 1}), "1 read, 0 filtered, 1 duplicate"),
        (counted_rows({"duplicates": 1234}), "1,234 duplicates"),
    ],
)
def test_a_count_agrees_with_its_noun(shown: str, words: str) -> None:
    assert shown == words


def test_a_measured_time_is_short_an_estimated_one_rounded_and_a_running_one_a_clock() -> None:
    measured = {0.04: "0.0 s", 12.34: "12.3 s", 99.94: "99.9 s", 99.96: "1 min 40 s", 3600: "1 h 0 min"}
    assert {seconds: duration(seconds) for seconds in measured} == measured
    estimated = {0: "about 5 s", 42: "about 42 s", 170: "about 3 min", 4804: "about 80 min", 10**4: "about 3 h"}
    assert {seconds: about(seconds) for seconds in estimated} == estimated
    assert [clock(seconds) for seconds in (7, 754, 3723)] == ["0:07", "12:34", "1:02:03"]


def test_only_complete_work_is_at_100_percent() -> None:
    assert [percent(share) for share in (0, 0.999, 1)] == ["0%", "99%", "100%"]


def test_a_tokenizer_is_described_by_name_kind_and_vocabulary() -> None:
    tokenizer = {"name": "gpt2", "kind": "tiktoken", "vocab_size": 50257, "eot_id": 50256}
    assert described_tokenizer(tokenizer) == "gpt2 (tiktoken), 50,257 ids"


def test_a_tokenizer_without_a_name_is_named_by_its_file() -> None:
    definition = {"kind": "huggingface", "path": "/models/llama/tokenizer.json"}
    assert tokenizer_name("huggingface", "huggingface", definition) == "llama/tokenizer.json"
    assert tokenizer_name("tiktoken", "tiktoken", {"path": None, "ranks": "s3://b/c/v.tiktoken"}) == "c/v.tiktoken"
    assert tokenizer_name("mine", "huggingface", definition) == "mine"
    assert tokenizer_name("byte", "byte", {"kind": "byte"}) == tokenizer_name("byte", "byte", None) == "byte"


def test_an_end_of_text_is_described_by_id_text_and_source() -> None:
    assert described_end(255, None, is_of_config=False) == "255"
    assert described_end(0, "<|end|>", is_of_config=False) == "0 '<|end|>'"
    assert described_end(9, "</s>", is_of_config=True) == "9 '</s>', the eos_token of tokenizer_config.json"


def test_a_near_miss_is_named_before_the_allowed_values() -> None:
    assert did_you_mean("Biuld", ["plan", "build"]) == "Did you mean build? Allowed: plan, build"
    assert did_you_mean("x", ["plan", "build"]) == "Allowed: plan, build"
    assert did_you_mean("[sp]", ["[SEP]"]) == "Did you mean [SEP]? Allowed: [SEP]"


def test_a_long_list_of_names_ends_with_a_count() -> None:
    names = [f"n{i}" for i in range(1011)]
    assert first_of(names) == "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 1,001 more"
    assert [first_of(names[:count]) for count in (0, 2)] == ["none", "n0, n1"]
