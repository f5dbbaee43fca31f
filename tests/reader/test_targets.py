"""Targets: which labels of conversations a model learns, with every packing, from every kind of store."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.builders.late_cuda import pretend_cuda
from tests.builders.synthetic_store import write_store
from tests.reader.oracle import FIELDS, PACKINGS, Oracle, as_lists, assert_same, make_store, shard_paths
from tests.reader.test_remote_reading import published_in_memory
from tokenloom.errors import FormatError, StoreError, TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import EvaluationPass, TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.streams.stream import Stream
from tokenloom.storage.cache import partial_shard
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.formats import blocks as blocks_module
from tokenloom.storage.formats.classes import ASSISTANT, BEGINS, ENDS_TURN, LAST_TURN, MAY_LEARN, USER
from tokenloom.storage.formats.shard import open_shard

_T = 12
_UNPADDED = (*PACKINGS, "best_fit_drop", "best_fit_keep_start")
_ALL_PACKINGS = (*_UNPADDED, "best_fit_pad4", "best_fit_drop_pad6")
_POLICIES: list[Any] = ["assistant", "last", "all", ["user", "tool_output"], ["template", "text", "reasoning"]]


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    """Conversations and plain text, in five shards with masks, in blocks of 64 bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", 64)
        return make_store(folder / "targets", (300, 90, 500, 12, 210), has_masks=True)


@pytest.fixture
def remote(reference: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same version in a store whose shards are read through the cache, several requests each."""
    monkeypatch.setattr(partial_shard, "REQUEST_BYTES", 256)
    with published_in_memory(reference, "targets") as published:
        yield published.url


def batches_of(data: TokenDataset | Mixture, **options: Any) -> list[dict[str, Any]]:
    """Return the batches of an epoch in natural order, the last one padded."""
    loader = TokenLoader(data, 5, **{"order": "sequential", "num_epochs": 1, "drop_last": False, **options})
    return list(loader)


def expected_of(oracle: Oracle) -> list[dict[str, Any]]:
    """Return the same batches, made row by row."""
    padded = [*range(len(oracle)), *[None] * 4]
    return [oracle.batch(padded[i : i + 5]) for i in range(0, len(oracle), 5)]


# ---- which labels are targets


@pytest.mark.parametrize("packing", _ALL_PACKINGS)
@pytest.mark.parametrize("labels", ["shifted", "same"])
def test_targets_follow_from_ids_classes_and_offsets_row_by_row(reference: str, packing: str, labels: str) -> None:
    for learn, mask_documents in itertools.product(_POLICIES, (None, True, False)[: 2 + (packing in _UNPADDED)]):
        options: dict[str, Any] = {"packing": packing, "labels": labels, "mask_documents": mask_documents}
        options |= {"learn": learn, "fields": ("classes", *(FIELDS if mask_documents is None else ()))}
        data, oracle = TokenDataset(reference, seq_len=_T, **options), Oracle(reference, _T, **options)
        expected = expected_of(oracle)
        assert [as_lists(batch) for batch in batches_of(data)] == expected
        samples = [{name: values.tolist() for name, values in sample.items()} for sample in data[:]]
        whole = [oracle.sample(i) for i in range(len(oracle))]
        assert samples == [{name: values for name, values in one.items() if name != "cu_seqlens"} for one in whole]
        assert sum(batch["num_targets"] for batch in expected) > 0


def chat_store(folder: Path, turns: list[tuple[int, int]], shift: int = 0) -> str:
    """Write one shard of two equal conversations of these (class, tokens) turns; return its reference.

    The id of a token is its place. With a shift, the mask is off by so many tokens.
    """
    one = np.concatenate([np.full(n, number, np.uint8) for number, n in turns] + [np.zeros(1, np.uint8)])
    one[0] |= BEGINS
    classes = np.concatenate([one, one])
    tokens, lengths = np.arange(1, len(classes) + 1, dtype=np.uint16), np.array([len(one)] * 2, np.uint32)
    tokens[np.cumsum(lengths) - 1] = 0
    return write_store(folder, [(tokens, lengths)], vocab_size=5000, masks=[np.roll(classes, shift)])


_END = MAY_LEARN | ASSISTANT | ENDS_TURN
_TURNS = [(MAY_LEARN | USER, 3), (MAY_LEARN | ASSISTANT, 2), (_END, 1), (MAY_LEARN | USER, 2)]
_TURNS += [(MAY_LEARN | ASSISTANT | LAST_TURN, 2), (_END | LAST_TURN, 1)]


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_a_mask_shifted_by_one_token_is_seen(tmp_path: Path, shift: int) -> None:
    data = TokenDataset(chat_store(tmp_path, _TURNS, shift), seq_len=23, learn="assistant")
    sample = data[0]
    pairs = [(int(a), int(b)) for a, b in zip(sample["input_ids"], sample["labels"], strict=True) if b != -100]
    replies = [4, 5, 6, 9, 10, 11, 16, 17, 18, 21, 22, 23]  # after three and two tokens of the user
    assert ([b for _, b in pairs] == replies) == (shift == 0)
    assert shift or all(b == a + 1 for a, b in pairs)  # the input before a label is the token before it


def test_padded_batches_have_no_targets(reference: str) -> None:
    data = TokenDataset(reference, seq_len=_T, packing="best_fit")
    batches = [batch for rank in (0, 1, 2) for batch in EvaluationPass(data, len(data), rank=rank, world_size=3)]
    assert [batch["num_targets"] for batch in batches] == [int((b["labels"] != -100).sum()) for b in batches]
    alone = list(EvaluationPass(data, 1, rank=2, world_size=len(data) + 3))
    assert [batch["num_targets"] > 0 for batch in alone] == [(alone[0]["labels"] != -100).any()]
    (padding,) = EvaluationPass(data, 1, rank=len(data) + 1, world_size=len(data) + 3)
    assert padding["num_targets"] == 0
    assert (padding["labels"] == -100).all()


# ---- every way to read


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize(
    "options", [{"access": "range"}, {"access": "pread", "max_open_shards": 1}, {"verify": "full"}]
)
def test_every_access_reads_the_same_targets_of_a_local_and_a_remote_store(
    reference: str, remote: str, cache: ShardCache, packing: str, options: dict[str, Any]
) -> None:
    expected = batches_of(TokenDataset(reference, seq_len=_T, packing=packing), order="full")
    for where in (reference, remote):
        data = TokenDataset(where, seq_len=_T, packing=packing, cache=cache, **options)
        for made in (batches_of(data, order="full", prefetch=0), batches_of(data, order="full", io_threads=2)):
            for batch, other in zip(made, expected, strict=True):
                assert_same(batch, other)
    length = sum(file.stat().st_size for path in shard_paths(reference) for file in (path, path.with_suffix(".mask")))
    assert cache.stats()["bytes_downloaded"] <= 1.15 * length


@pytest.mark.parametrize("labels", ["shifted", "same"])
def test_batches_on_a_device_are_those_in_host_memory(
    reference: str, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cuda(monkeypatch)
    for packing, fields in itertools.product(_ALL_PACKINGS, ((), ("classes", *FIELDS))):
        data = TokenDataset(reference, seq_len=_T, packing=packing, labels=labels, fields=fields)
        for batch, other in zip(batches_of(data, device="cuda"), batches_of(data), strict=True):
            assert_same(batch, other)


# ---- mixtures and states


def chat_and_text(reference: str, folder: Path, **options: Any) -> Mixture:
    text = folder / "text"
    plain = f"{text}/data" if text.exists() else make_store(text, (400, 100), seed=5)
    sets = {name: TokenDataset(r, seq_len=_T, **options) for name, r in (("text", plain), ("chat", reference))}
    return Mixture({name: (data, 1) for name, data in sets.items()})


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_text_in_a_mixture_with_conversations_is_learned_whole(reference: str, tmp_path: Path, packing: str) -> None:
    options: dict[str, Any] = {"packing": packing, "fields": ("classes", "member")}
    mixture = chat_and_text(reference, tmp_path, **options)
    oracles = [Oracle(data.reference.partition("@")[0], _T, packing) for data in mixture.datasets.values()]
    places = [0, 0]
    for batch in itertools.islice(TokenLoader(mixture, 4, order="sequential"), 8):
        for row, member in enumerate(batch["member"].tolist()):
            expected = oracles[member].sample(places[member])
            places[member] += 1
            assert {name: batch[name][row].tolist() for name in expected} == expected
            if member == 0 and packing == "concat":
                assert (batch["classes"][row] == 129).all()


def test_members_with_conversations_have_one_policy(reference: str, tmp_path: Path) -> None:
    one, other = (TokenDataset(reference, seq_len=_T, learn=learn) for learn in ("assistant", "all"))
    text = TokenDataset(make_store(tmp_path, (100,)), seq_len=_T, learn="last")
    with pytest.raises(ValueError, match="same learn: 'one' has assistant, 'other' has all"):
        Mixture({"text": (text, 1), "one": (one, 1), "other": (other, 1)})
    assert Stream(Mixture({"text": (text, 1), "one": (one, 1)}), "full", 0, None).format.learn == "assistant"


def test_a_state_names_the_policy_only_where_there_are_conversations(reference: str, tmp_path: Path) -> None:
    state = TokenLoader(TokenDataset(reference, seq_len=_T, learn={"user", "text"}), 2).state_dict()
    assert state["stream"]["learn"] == ["text", "user"]
    again = TokenLoader.from_state(str(Path(reference).parent), json.loads(json.dumps(state)), 2)
    assert again.state_dict() == state
    with pytest.raises(TokenloomError, match=r"learn is \['text', 'user'\] in the state, 'assistant' in the loader"):
        TokenLoader(TokenDataset(reference, seq_len=_T), 2).load_state_dict(state)
    mixture = TokenLoader(chat_and_text(reference, tmp_path), 2).state_dict()
    members = mixture["stream"]["members"]
    assert ["learn" in members[name] for name in ("text", "chat")] == [False, True]
    overlong = TokenDataset(reference, seq_len=_T, packing="best_fit", overlong="drop")
    assert TokenLoader(overlong, 2).state_dict()["stream"]["packing"] == "best_fit_drop"


# ---- damage


def test_a_damaged_block_of_a_remote_mask_is_found(reference: str, remote: str, cache: ShardCache) -> None:
    name = shard_paths(reference)[2].with_suffix(".mask").relative_to(reference).as_posix()
    system, path = fsspec.filesystem("memory"), f"/targets/data/{name}"
    good = system.cat_file(path)
    system.pipe_file(path, good[:100] + bytes([good[100] ^ 1]) + good[101:])
    data = TokenDataset(remote, seq_len=_T, cache=cache, access="range")
    with pytest.raises(FormatError, match=rf"{name}: block 1 does not have the checksum"):
        batches_of(data)
    system.pipe_file(path, good)
    assert [as_lists(batch) for batch in batches_of(data)] == expected_of(Oracle(reference, _T))


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_mask_that_is_missing_or_cut_short_is_named(tmp_path: Path, access: str) -> None:
    reference = make_store(tmp_path, (300,), has_masks=True)
    mask = shard_paths(reference)[0].with_suffix(".mask")
    good = mask.read_bytes()
    data = TokenDataset(reference, seq_len=_T, access=access)
    mask.write_bytes(good[:-1])
    with pytest.raises(FormatError, match=r"000000.mask: not the mask that the manifest lists"):
        data[0]
    mask.unlink()
    with pytest.raises(StoreError, match=r"000000.mask: the file is missing"):
        data[0]
    mask.write_bytes(bytes([good[0] ^ 16]) + good[1:])
    assert open_shard(mask.with_suffix(".tok")).header.num_tokens == len(good)
    with pytest.raises(FormatError, match=r"000000.mask: not the mask that the manifest lists"):
        TokenDataset(reference, seq_len=_T, verify="full")[0]
