"""Canonical JSON and its signature."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import count
from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import canonical_json, read_signed, sha256_of, sign

PROPERTY = settings(deadline=None, database=None, max_examples=count(100, 3000))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text().filter(lambda key: key != "checksum"), JSON, min_size=1, max_size=5)


@PROPERTY
@given(OBJECTS, st.randoms(use_true_random=False))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert canonical_json({key: value[key] for key in keys}) == canonical_json(value)
    assert sha256_of(value) == hashlib.sha256(canonical_json(value)).hexdigest()
    assert json.loads(canonical_json(value)) == value


def test_canonical_json_is_sorted_without_spaces_in_utf_8() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "ż"}) == '{"a":"ż","b":[1,2.5]}'.encode()


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})


@PROPERTY
@given(OBJECTS)
def test_a_signed_value_round_trips(value: dict[str, Any]) -> None:
    assert read_signed(sign(value), "here") == value


def test_checksum_is_the_last_field_and_covers_all_bytes_before_it() -> None:
    data = sign({"z": 1, "a": '","checksum":"'})
    body = data[: data.rindex(b',"checksum"')]
    assert list(json.loads(data)) == ["a", "z", "checksum"]
    assert json.loads(data)["checksum"] == hashlib.sha256(body).hexdigest()
    assert read_signed(data, "here") == {"z": 1, "a": '","checksum":"'}


@PROPERTY
@given(OBJECTS, st.integers(1, 255))
def test_any_changed_byte_of_a_signed_file_is_detected(value: dict[str, Any], flip: int) -> None:
    data = sign(value)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= flip
        with pytest.raises(FormatError, match=r"store/manifest\.json"):
            read_signed(bytes(damaged), "store/manifest.json")


def test_signed_file_cut_at_any_length_is_refused() -> None:
    data = sign({"version": "0123456789abcdef", "checksums": [1, 2]})
    for num_bytes in range(len(data)):
        with pytest.raises(FormatError):
            read_signed(data[:num_bytes], "here")
    with pytest.raises(FormatError):
        read_signed(data + b"\n", "here")
