"""Batches on a CUDA device equal those in host memory; without one, most tests run with copies that are late."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.builders.late_cuda import pretend_cuda
from tests.builders.synthetic_store import random_documents, write_store
from tests.reader.oracle import FIELDS, PACKINGS, assert_same, make_store
from tokenloom.reader.batch import context_shard, document_mask
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

_ROOT = Path(__file__).parent.parent.parent
_MILLISECOND = 2_000_000  # about that long, in cycles of a device
_HAS_CUDA = torch.cuda.is_available()
_NO_CUDA = "needs a CUDA device: torch finds none on this machine"

Batch = dict[str, Any]
cuda_only = pytest.mark.skipif(not _HAS_CUDA, reason=_NO_CUDA)


@pytest.fixture(params=[pytest.param("cuda", marks=cuda_only), "late copies"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device of batches, which may be a stand-in."""
    if request.param == "late copies":
        pretend_cuda(monkeypatch)
    return "cuda"


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "cuda", (300, 90, 500, 12, 210))


def on_host(batch: Batch) -> Batch:
    """Return a copy of a batch in host memory."""
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def assert_equal(batches: Sequence[Batch], expected: Sequence[Batch]) -> None:
    """Raise AssertionError unless batches equal those of a loader in host memory."""
    assert len(batches) == len(expected) > 0
    for batch, other in zip(batches, expected, strict=True):
        assert_same(on_host(batch), other)


@pytest.mark.parametrize("prefetch", [0, None])
@pytest.mark.parametrize("packing", [*PACKINGS, "best_fit_pad4"])
def test_batches_equal_those_in_host_memory(reference: str, device: str, packing: str, prefetch: int | None) -> None:
    for labels in ("shifted", "same"):
        for fields in ((), FIELDS, ("cu_seqlens",)):
            data = TokenDataset(reference, seq_len=12, packing=packing, labels=labels, fields=fields)
            expected = list(TokenLoader(data, 5, num_epochs=1, drop_last=False))
            loader = TokenLoader(data, 5, num_epochs=1, drop_last=False, prefetch=prefetch, device=device)
            assert_equal(list(loader), expected)


def test_parts_and_rows_by_position_equal_those_in_host_memory(reference: str, device: str) -> None:
    options: dict[str, Any] = {"packing": "best_fit", "pad_documents": 4, "cu_seqlens_length": 65}
    data = TokenDataset(reference, seq_len=16, fields=FIELDS, **options)
    host, loader = TokenLoader(data, 4, num_epochs=1), TokenLoader(data, 4, num_epochs=1, device=device)
    expected, batches = list(host), list(loader)
    assert_equal(batches, expected)
    for layout in ("headtail", "contiguous"):
        parts = [context_shard(batch, rank, 2, layout) for batch in batches for rank in range(2)]
        assert_equal(parts, [context_shard(batch, rank, 2, layout) for batch in expected for rank in range(2)])
    assert (
        context_shard({"input_ids": batches[0]["input_ids"]}, 0, 2)["position_ids"].device
        == batches[0]["labels"].device
    )
    if _HAS_CUDA:  # copied by `to`, which has no stand-in
        assert_equal([loader.batch_at(step) for step in range(3)], expected[:3])


@pytest.mark.parametrize("vocab_size", [200, 65_536, 70_000])
def test_tokens_of_every_stored_type_arrive_unchanged(tmp_path: Path, device: str, vocab_size: int) -> None:
    tokens, lengths = random_documents(600, 9.0, 1, vocab_size)
    tokens[3] = vocab_size - 1
    data = TokenDataset(write_store(tmp_path, [(tokens, lengths)], vocab_size=vocab_size), seq_len=10)
    batches = list(TokenLoader(data, 1, order="sequential", num_epochs=1, device=device))
    host = list(TokenLoader(data, 1, order="sequential", num_epochs=1))
    assert_equal(batches, host)
    assert torch.cat([batch["input_ids"].flatten() for batch in host]).tolist() == tokens[: 10 * len(host)].tolist()
    assert all(value.is_contiguous() for batch in batches for value in batch.values() if torch.is_tensor(value))


@pytest.mark.parametrize("prefetch", [0, 2, None])
def test_a_slow_consumer_on_its_own_stream_gets_every_batch_unchanged(
    reference: str, device: str, prefetch: int | None
) -> None:
    data = TokenDataset(reference, seq_len=12, fields=FIELDS)
    loader, batches = TokenLoader(data, 2, device=device, prefetch=prefetch), []
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(200):  # the host does not wait: copies and kernels lag behind it
            torch.cuda._sleep(_MILLISECOND)  # type: ignore[no-untyped-call]
            batches.append(next(loader))
    torch.cuda.synchronize()
    loader.close()
    host = TokenLoader(data, 2, prefetch=0)
    assert_equal(batches, [next(host) for _ in range(200)])


def test_a_loader_resumes_on_a_device_and_in_host_memory(reference: str, device: str) -> None:
    data = TokenDataset(reference, seq_len=12)
    host, loader = TokenLoader(data, 2), TokenLoader(data, 2, device=device)
    expected = [next(host) for _ in range(60)]
    assert_equal([next(loader) for _ in range(21)], expected[:21])
    for where in (device, None):
        resumed = TokenLoader(data, 2, device=where)
        resumed.load_state_dict(loader.state_dict())
        assert_equal([next(resumed) for _ in range(39)], expected[21:])
        resumed.close()


def test_a_loader_that_is_closed_while_copies_wait_continues_where_it_was(reference: str, device: str) -> None:
    data = TokenDataset(reference, seq_len=12)
    loader, batches = TokenLoader(data, 2, device=device), []
    for count in (1, 3, 40, 5):
        for _ in range(count):
            torch.cuda._sleep(_MILLISECOND)  # type: ignore[no-untyped-call]
            batches.append(next(loader))
        loader.close()
    host = TokenLoader(data, 2, prefetch=0)
    assert_equal(batches, [next(host) for _ in range(49)])


@pytest.mark.parametrize("prefetch", [0, 16])
def test_no_batch_on_a_device_is_an_inference_tensor(reference: str, device: str, prefetch: int) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8, fields=FIELDS), 2, device=device, prefetch=prefetch)
    with torch.inference_mode():
        batches = [next(loader) for _ in range(20)]
    batches += [next(loader) for _ in range(20)]
    assert not any(value.is_inference() for batch in batches for value in batch.values() if torch.is_tensor(value))


@cuda_only
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch 2.11's own compiler
def test_attention_within_documents_is_the_same_in_three_ways(reference: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # late: a second of imports
    from torch.nn.attention.varlen import varlen_attn

    fields = ("document_ids", "position_ids", "cu_seqlens")
    data = TokenDataset(reference, seq_len=128, packing="best_fit", fields=fields)
    batch = next(TokenLoader(data, 2, device="cuda"))
    query, key, value = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    mask = document_mask(batch["document_ids"])
    dense = scaled_dot_product_attention(query, key, value, attn_mask=mask.dense())
    blocks = create_block_mask(mask.mask_mod, 2, None, 128, 128, device="cuda")
    torch.testing.assert_close(
        torch.compile(flex_attention)(query, key, value, block_mask=blocks), dense, atol=0.02, rtol=0.02
    )
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
    ends, longest = batch["cu_seqlens"], batch["max_seqlen"]
    varlen: Any = varlen_attn(flat[0], flat[1], flat[2], ends, ends, longest, longest, window_size=(-1, 0))
    torch.testing.assert_close(varlen.unflatten(0, (2, -1)).transpose(1, 2), dense, atol=0.02, rtol=0.02)


@cuda_only
def test_a_default_device_does_not_disturb_the_loader(reference: str) -> None:
    data = TokenDataset(reference, seq_len=12)
    with torch.device("cuda"):
        batch = next(TokenLoader(data, 2, device="cuda", prefetch=0))
    assert_equal([batch], [next(TokenLoader(data, 2, prefetch=0))])


@pytest.mark.skipif(not _HAS_CUDA or torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_batches_go_to_a_device_other_than_the_current_one(reference: str) -> None:
    data = TokenDataset(reference, seq_len=12)
    host, loader = TokenLoader(data, 2), TokenLoader(data, 2, device="cuda:1")
    batches = [next(loader) for _ in range(40)]
    assert {batch["labels"].device.index for batch in batches} == {1}
    assert torch.cuda.current_device() == 0
    assert_equal(batches, [next(host) for _ in range(40)])


_FORK = """
import os, sys
import pytest
from tests.builders.late_cuda import pretend_cuda
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
if sys.argv[2] != "cuda":
    pretend_cuda(pytest.MonkeyPatch())
data = TokenDataset(sys.argv[1], seq_len=8)
loader, host = TokenLoader(data, 2, device="cuda"), TokenLoader(data, 2, prefetch=0)
for _ in range(3):
    assert next(loader)["labels"].tolist() == next(host)["labels"].tolist()
child = os.fork()
if child == 0:
    for _ in range(2):
        try:
            next(loader)
        except RuntimeError as error:
            assert "spawn" in str(error), error
    next(TokenLoader(data, 2))
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for _ in range(60):
    assert next(loader)["labels"].tolist() == next(host)["labels"].tolist()
sys.exit(code)
"""


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=cuda_only), "late copies"])
def test_a_forked_child_is_refused_the_device_and_reads_in_host_memory(reference: str, device: str) -> None:
    command = [sys.executable, "-c", _FORK, reference, device]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 7, done.stderr
