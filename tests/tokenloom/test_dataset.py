"""The reader: what a sample is, how shards are opened and dropped, which arguments are refused."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.datasets import build, lines_spec
from tests.reader.oracle import PACKINGS, Oracle, make_store
from tests.without_torch import needs_torch
from tokenloom import EvaluationPass, TokenDataset, TokenLoader
from tokenloom.errors import StoreError, TokenizerError
from tokenloom.storage import open_shard

_ROOT = Path(__file__).parent.parent.parent
_EOT = 255


class _Built:
    """A small dataset: its spec, its reference, and the train shards in order."""

    def __init__(self, folder: Path) -> None:
        texts = [f"text number {i}: " + "abc " * (i % 13) for i in range(300)]
        self.spec = lines_spec(folder, texts, shard_tokens=1500)
        self.version = build(self.spec).version
        self.reference = f"{self.spec.store}/data"
        self.folder = Path(self.spec.store) / "data" / "versions" / self.version
        self.train = sorted((self.folder / "train").glob("*.tok"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> _Built:
    return _Built(tmp_path_factory.mktemp("reader"))


def test_indices_are_those_of_a_list(built: _Built) -> None:
    data = TokenDataset(built.reference, seq_len=50)
    samples = [sample["labels"].tolist() for sample in iter(data)]  # the old protocol: until an IndexError
    assert len(samples) == len(data) > 20
    for index in (-1, -len(data), np.int64(3)):
        assert data[index]["labels"].tolist() == samples[index]
    for part in (slice(0, 3), slice(-2, None), slice(4, 1, -1), slice(3, 3)):
        assert [sample["labels"].tolist() for sample in data[part]] == samples[part]
    several = [3, 0, len(data) - 1, 3]
    assert [sample["labels"].tolist() for sample in data.__getitems__(several)] == [samples[i] for i in several]


def test_indices_outside_of_a_dataset_and_other_values_are_refused(built: _Built) -> None:
    data = TokenDataset(built.reference, seq_len=50)
    for index in (len(data), -len(data) - 1, 2**63, 10**30, -(10**30)):
        for read in (data.__getitem__, data.trace, lambda index: data.__getitems__([0, index])):
            with pytest.raises(IndexError, match=f"sample {index} is outside of a dataset with {len(data)} samples"):
                read(index)
    for other in ([0, 1], 1.0, "0", None):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            data[other]  # type: ignore[call-overload]


def test_a_split_without_documents_says_so_wherever_it_is_read(tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, ["one text", "another"])
    build(spec)
    message = "split 'test': no samples: the split is empty; read another one, or build"
    for packing in PACKINGS:
        with pytest.warns(UserWarning, match=message):
            data = TokenDataset(f"{spec.store}/data", "test", seq_len=4, packing=packing)
        for read in (lambda data: EvaluationPass(data, 1), lambda data: TokenLoader(data, 1), TokenDataset.iterable):
            with pytest.raises(ValueError, match=message):
                read(data)


def test_split_without_a_whole_sample_is_empty(built: _Built) -> None:
    with pytest.warns(
        UserWarning, match="split 'test': no samples: .* seq_len=1000000 cut none from .* smaller seq_len"
    ):
        data = TokenDataset(built.reference, "test", seq_len=10**6)
    assert len(data) == 0
    pickle.loads(pickle.dumps(data))  # noqa: S301  (our own bytes; it warns once)
    with pytest.raises(IndexError):
        data[0]


def test_opening_warns_of_documents_that_are_too_short_for_a_sample(built: _Built) -> None:
    with pytest.warns(UserWarning, match="cut none from .* or packing='document_padded'") as caught:
        TokenDataset(built.reference, seq_len=2000, packing="document")
    assert [Path(one.filename).name for one in caught] == [Path(__file__).name]
    assert len(TokenDataset(built.reference, seq_len=2000, packing="document_padded")) > 0


def test_samples_belong_to_the_caller(built: _Built) -> None:
    data = TokenDataset(built.reference, seq_len=16)
    before = data[2]["input_ids"].copy()
    data[2]["input_ids"][:] = -1
    np.testing.assert_array_equal(data[2]["input_ids"], before)


def test_splits_have_the_counts_of_the_manifest(built: _Built) -> None:
    for split in ("train", "validation", "test"):
        data = TokenDataset(f"{built.reference}@{built.version}", split, seq_len=1)
        assert data.manifest["version"] == built.version
        assert data.num_tokens == data.manifest["splits"][split]["tokens"]
    with pytest.raises(StoreError, match=r"no split 'dev'; it has: .*validation"):
        TokenDataset(built.reference, "dev")
    with pytest.raises(ValueError, match="seq_len must be at least 1, not 0"):
        TokenDataset(built.reference, seq_len=0)


def test_pickled_dataset_is_small_and_gives_the_same_samples(built: _Built) -> None:
    data = TokenDataset(built.reference, seq_len=32)
    data[0]
    pickled = pickle.dumps(data)
    again = pickle.loads(pickled)  # noqa: S301  (our own bytes)
    total = sum(path.stat().st_size for path in built.train)
    assert len(pickled) < total / 2
    assert len(again) == len(data)
    for i in range(0, len(data), 7):
        np.testing.assert_array_equal(again[i]["labels"], data[i]["labels"])


@pytest.mark.parametrize("max_open_shards", [1, 2])
def test_a_limited_number_of_shards_stays_open_and_views_of_closed_ones_stay_valid(
    built: _Built, max_open_shards: int
) -> None:
    data = TokenDataset(built.reference, seq_len=64, max_open_shards=max_open_shards)
    first = np.frombuffer(data.shards[0].bytes[0:1000], np.uint8)  # a view of the map
    copy = first.copy()
    for i in range(len(data)):
        data[i]
        ours = mapped_shards(built.folder)
        assert len(ours - {str(built.train[0])}) <= max_open_shards
    assert str(built.train[0]) in ours
    np.testing.assert_array_equal(first, copy)


def test_opening_reads_only_the_manifest(built: _Built) -> None:
    data = TokenDataset(built.reference, seq_len=64)
    assert len(data) > 0
    assert [*data.shards.opened] == []
    data[0]
    data[1]
    assert [*data.shards.opened] == [0]


def test_decode_returns_the_text(built: _Built) -> None:
    data = TokenDataset(built.reference, seq_len=32)
    tokens = open_shard(built.train[0]).tokens
    end = int(np.flatnonzero(tokens == _EOT)[0])
    text = data.decode(tokens[:end])
    assert text.startswith("text number ")
    assert text.encode() == bytes(tokens[:end].tolist())
    assert data.decode(list(b"plain list")) == "plain list"
    for ids in ([-1], [256], [65, 10**9]):
        with pytest.raises(TokenizerError, match=r"vocabulary \[0, 256\)"):
            data.decode(ids)
    for shaped in (np.array(65), np.array([[65, 66]])):
        with pytest.raises(ValueError, match="must have one dimension"):
            data.decode(shaped)


_WITHOUT_EXTRAS = """
import sys

BLOCKED = {"prefect", "pydantic", "datasets", "yaml", "rich", "tiktoken", "fastapi", "torch"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
import tokenloom
from tokenloom import Mixture, TokenDataset

data = TokenDataset(sys.argv[1], seq_len=16, packing="best_fit", fields=["cu_seqlens", "document_ids", "position_ids"])
mixture = Mixture({"one": (data, 1)})
print(len(data), data[0]["input_ids"].sum(), data.decode(data[0]["input_ids"])[:4])
BLOCKED.remove("torch")
from tokenloom import EvaluationPass, TokenLoader

batches = [next(TokenLoader(data, 2)), next(TokenLoader(mixture, 2)), next(iter(EvaluationPass(data, 2)))]
tokenloom.document_mask(batches[0]["document_ids"]).dense()
print(next(iter(data.iterable()))["labels"].shape, len(batches), sorted(BLOCKED & set(sys.modules)))
"""


@needs_torch
def test_datasets_and_mixtures_need_no_extra_and_loaders_need_only_torch(built: _Built) -> None:
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, built.reference]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = TokenDataset(built.reference, seq_len=16, packing="best_fit")
    ids = data[0]["input_ids"]
    assert done.stdout.splitlines() == [f"{len(data)} {ids.sum()} {data.decode(ids)[:4]}", "torch.Size([16]) 3 []"]


_LOCAL_READER = """
import sys

import numpy

before = set(sys.modules)
from tokenloom import TokenDataset

print(*(set(sys.modules) - before))
TokenDataset(sys.argv[1], seq_len=16)[0]
print(*(set(sys.modules) - before))
"""
_NOT_FOR_LOCAL_READING = {"concurrent.futures", "difflib", "filelock", "fsspec", "logging", "pyarrow", "tempfile"}


def test_reading_a_local_dataset_imports_only_what_it_needs(built: _Built) -> None:
    command = [sys.executable, "-c", _LOCAL_READER, built.reference]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    imported, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert "tokenloom.storage.versions.references" in imported
    assert "tokenloom.storage.stores.local" in loaded
    assert not (imported | loaded) & _NOT_FOR_LOCAL_READING


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("labels", ["shifted", "same"])
@pytest.mark.parametrize("fields", [(), ("document_ids", "position_ids")])
@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_samples_of_every_packing_follow_from_tokens_and_offsets(
    synthetic: str, packing: str, labels: str, fields: tuple[str, ...], access: str
) -> None:
    data = TokenDataset(synthetic, seq_len=12, packing=packing, labels=labels, fields=fields, access=access)
    oracle = Oracle(synthetic, 12, packing, labels, fields)
    assert len(data) == len(oracle) > 10
    samples = data.__getitems__(list(range(len(data))))
    assert [{name: values.tolist() for name, values in sample.items()} for sample in samples] == [
        oracle.sample(i) for i in range(len(oracle))
    ]
    assert {name: values.dtype.name for name, values in samples[0].items()} == {
        "input_ids": "int64",
        "labels": "int64",
    } | dict.fromkeys(fields, "int32")
    assert data.__getitems__([]) == []


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version of three small shards of uint16 tokens."""
    return make_store(tmp_path_factory.mktemp("synthetic"), (300, 90, 200))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "dense"}, "packing: one of concat, document, document_padded, best_fit, .*, not 'dense'"),
        ({"fields": ("mask",)}, "fields must be one of classes, cu_seqlens, document_ids, .*, member, not 'mask'"),
        ({"overlong": "drop"}, "overlong='drop' is of the packing best_fit, not of 'concat'; omit it"),
        ({"learn": "first"}, 'learn is "assistant", "last", "all" or a list of roles .*, not \'first\''),
        ({"learn": ["user", 5]}, r"learn is .* or a list of roles .*, not \['user', 5\]"),
        ({"learn": ["assistant"]}, "learn=\\['assistant'\\] leaves out text, and this version holds nothing else"),
        ({"access": "read"}, "access must be one of mmap, pread, range, not 'read'"),
        ({"access": "range", "verify": "full"}, 'reads whole shards, which access="range" never downloads'),
        ({"max_open_shards": 0}, "max_open_shards must be at least 1, not 0"),
    ],
)
def test_options_out_of_range_are_refused(synthetic: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenDataset(synthetic, **options)


def mapped_shards(folder: Path) -> set[str]:
    """Return the shards below a folder that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if ".tok" in line and str(folder) in line}


def test_a_dropped_dataset_releases_its_shards_without_the_garbage_collector(synthetic: str) -> None:
    gc.disable()
    try:
        data = TokenDataset(synthetic, seq_len=12, packing="best_fit")
        data[0]
        assert len(mapped_shards(Path(synthetic))) == 1
        del data
        assert mapped_shards(Path(synthetic)) == set()
    finally:
        gc.enable()
