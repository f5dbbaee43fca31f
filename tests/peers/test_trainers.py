"""The pages on trainers are correct: their code runs with the released trainers, and gives our batches or documents.

A trainer that takes our loader stops after 20 steps; another process resumes it. Both together give what a loader of
ours gives alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.exported import Exportable
from tests.docs.walk import blocks, run_commands
from tests.peers.environments import VISION, run_in, unpacked
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.formats.classes import learned_classes

_ROOT = Path(__file__).parents[2]
_PAGES = ("docs/guides/trainers.md",)
_VOCAB_SIZE = 4096  # of the page
_SEQ_LEN = 64  # of the page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exportable]:
    """The versions that the page names, in a folder with its tokenizer."""
    folder = tmp_path_factory.mktemp("trainers")
    (folder / "store").mkdir()
    made = {name: Exportable(folder / name, _VOCAB_SIZE, with_masks=name == "chat") for name in ("chat", "news")}
    for name in made:
        (folder / "store" / name).symlink_to(folder / name / "store" / "data")
    return made


@pytest.fixture
def folder(made: dict[str, Exportable], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the page's paths are relative to."""
    folder = Path(made["news"].reference).parents[2]
    monkeypatch.chdir(folder)
    return folder


def _headings() -> dict[str, str]:
    """Return the page of each section."""
    texts = {page: (_ROOT / page).read_text(encoding="utf-8") for page in _PAGES}
    return {heading: page for page in _PAGES for heading in re.findall(r"^## (.*)$", texts[page], re.MULTILINE)}


def _blocks(heading: str) -> list[tuple[str, str]]:
    return list(blocks(_headings()[heading], heading))


def _run(environment: str, heading: str, check: str, before: str = "", given: object = None) -> Any:
    """Run the commands of a section here, then its code and a check in an environment; return what that prints last."""
    found = _blocks(heading)
    for language, text in found:
        if language == "console" and given is None:
            run_commands(text)
    code = [text for language, text in found if language == "python"]
    program = "\n".join(["import json, os, sys", "os.chdir(sys.argv[1])", before, *code, check])
    return json.loads(run_in(environment, program, Path.cwd(), given=json.dumps(given)).splitlines()[-1])


# ---- trainers that take our loader

#: Takes 20 steps of what `open_at(state)` returns: pairs of ids and labels, and a function that returns the state.
_TWENTY = """
import numpy
pairs, get_state = open_at(json.load(sys.stdin))
seen = [[numpy.asarray(array).tolist() for array in next(pairs)] for _ in range(20)]
print("\\n" + json.dumps([seen, get_state()]))
"""


def _assert_resumes(environment: str, heading: str, check: str, batch_size: int = 4, before: str = "") -> None:
    """Run 20 steps, and 20 in another process from the state of the first; compare all with our own loader."""
    first, state = _run(environment, heading, check + _TWENTY, before, given={})
    second, _ = _run(environment, heading, check + _TWENTY, before, given=state)
    loader = TokenLoader(TokenDataset("store/news", seq_len=_SEQ_LEN), batch_size, seed=0, device="numpy")
    for step, (ids, labels) in enumerate([*first, *second]):
        expected = loader.batch_at(step)
        assert ids == expected["input_ids"].tolist(), step
        of_document = np.array(labels) >= 0  # where the recipe leaves out the first tokens of documents
        assert of_document.mean() > 0.9
        assert np.array_equal(np.array(labels)[of_document], expected["labels"][of_document]), step


#: megatron-core 0.19.2 is for Python 3.12 and newer, for which there is no torch without CUDA here. Its modules run on
#: 3.11 with the one name of typing that they lack. Its training loop needs a GPU.
_MEGATRON_LM = """
import types, typing, typing_extensions
typing.override = typing_extensions.override
sys.path.insert(0, {folder!r})
import torch.distributed
from megatron.core import mpu
from megatron.training import global_vars
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
mpu.initialize_model_parallel()
args = types.SimpleNamespace(dataloader_type="external", seq_length=64, micro_batch_size=4, seed=0)
global_vars._GLOBAL_ARGS = args
"""
_EXTERNAL = """
from megatron.core.rerun_state_machine import RerunDataIterator
from megatron.training.datasets.data_samplers import build_pretraining_data_loader

def open_at(state):
    args.consumed_train_samples = state.get("consumed", 0)
    train, validation, test = train_valid_test_datasets_provider([320, 0, 0])
    return pairs(RerunDataIterator(build_pretraining_data_loader(train, args.consumed_train_samples))), get_state

def pairs(batches):
    while True:
        batch = next(batches)
        assert batch["tokens"].shape == batch["position_ids"].shape == batch["loss_mask"].shape
        args.consumed_train_samples += len(batch["tokens"])  # as its training loop does
        yield batch["tokens"], batch["labels"].where(batch["loss_mask"] > 0, torch.tensor(-100))

def get_state():
    return {"consumed": args.consumed_train_samples}
"""


def test_megatron_passes_our_loader_through(folder: Path) -> None:
    package = unpacked("megatron-core==0.19.2", "3.12")
    before = _MEGATRON_LM.format(folder=str(package))
    _assert_resumes("torchtitan", "Megatron-LM: our loader as the external one", _EXTERNAL, before=before)


_TORCHTITAN = """
import torch.distributed.checkpoint as dcp
from torchtitan.models.common.attention import create_varlen_metadata_for_document

def build(rank=0, world_size=1):
    others = {"tokenizer": None, "seq_len": 64, "local_batch_size": 4 // world_size, "snapshot_every_n_steps": None}
    return TokenloomDataLoader.Config().build(dp_world_size=world_size, dp_rank=rank, **others)

def open_at(state):
    loaders = [build(rank, 2) for rank in range(2)] if state else [build()]  # it resumes on two ranks
    for loader in loaders if state else []:
        dcp.load({"dataloader": loader}, checkpoint_id="torchtitan-checkpoint")
    return pairs(loaders), lambda: dcp.save({"dataloader": loaders[0]}, checkpoint_id="torchtitan-checkpoint") and True

def pairs(loaders):
    data = TokenDataset("store/news", seq_len=64, fields=["cu_seqlens"])
    plain = TokenLoader(data, 4 // len(loaders), seed=0, world_size=len(loaders), rank=0)
    plain.load_state_dict({**plain.state_dict(), "samples": loaders[0].state_dict()["samples"]})
    for batches in zip(*map(iter, loaders)):
        positions = batches[0][0]["positions"]  # of which torchtitan derives where documents begin
        ends = create_varlen_metadata_for_document(positions).cu_seq_q
        assert ends.tolist() == next(plain)["cu_seqlens"].tolist()
        inputs, labels = ([*batch] for batch in zip(*((inputs["input"], labels) for inputs, labels in batches)))
        yield [torch.stack(parts, 1).flatten(0, 1) for parts in (inputs, labels)]

import torch
"""


def test_torchtitan_resumes_on_another_number_of_ranks(folder: Path) -> None:
    _assert_resumes("torchtitan", "torchtitan: BaseDataLoader", _TORCHTITAN)


_TORCHDATA = """
def open_at(state):
    if state:
        loader.load_state_dict(state)
    return ((batch["input_ids"], batch["labels"]) for batch in loader), loader.state_dict
"""
_WITH_WORKERS = """
data = TokenDataset("store/news", seq_len=64)
loader = StatefulDataLoader(data.iterable(batch_size=4), batch_size=None, num_workers=2)
"""


@pytest.mark.parametrize("change", ["", _WITH_WORKERS], ids=["our state", "workers"])
def test_torchdata_resumes(change: str, folder: Path) -> None:
    _assert_resumes("torchtitan", "torchdata's StatefulDataLoader", change + _TORCHDATA)


_GRAIN = """
assert "torch" not in sys.modules
assert grain.MapDataset.source(loader.source).shuffle(seed=0).batch(4)[0]["input_ids"].shape == (4, 64)

def open_at(state):
    if state:
        batches.set_state(state)
    return ((batch["input_ids"], batch["labels"]) for batch in batches), batches.get_state
"""


def test_grain_resumes_without_torch(folder: Path) -> None:
    _assert_resumes("jax", "Grain, without torch", _GRAIN)


_EIGHT_DEVICES = 'os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"'
_JAX = """
assert "torch" not in sys.modules and jax.device_count() == 8
mean = jax.jit(lambda batch: batch["input_ids"].mean())

def open_at(state):
    if state:
        loader.load_state_dict(state)
    return pairs(state.get("samples", 0) // 8), loader.state_dict

def pairs(step):
    for batch in map(to_devices, loader):
        assert len(batch["labels"].addressable_shards) == 8 and mean(batch).shape == ()
        for name, values in batch.items():
            assert (global_batch(step, name) == values).all()
        step += 1
        yield batch["input_ids"], batch["labels"]
"""


def test_jax_resumes_without_torch(folder: Path) -> None:
    _assert_resumes("jax", "JAX, without torch", _JAX, batch_size=8, before=_EIGHT_DEVICES)


# ---- trainers that read an export

_MEGATRON = """
import numpy
documents = json.load(sys.stdin)
assert [train.dataset[i].tolist() for i in range(len(train.dataset))] == documents
assert sorted(train.document_index.tolist()) == list(range(len(documents)))
stream = numpy.concatenate([documents[i] for i in train.document_index])
for sample, start in enumerate(64 * train.shuffle_index):
    found = [*train[sample]["tokens"].tolist(), int(train[sample]["labels"][-1])]
    assert found == stream[start : start + 65].tolist()
print(json.dumps([len(train), len(stream) // 64]))
"""


def test_megatron_core_reads_our_documents(folder: Path, made: dict[str, Exportable]) -> None:
    run_commands(next(text for language, text in _blocks("Megatron-core on an export") if language == "console"))
    documents = made["news"].documents["train"]
    num_samples, whole = _run("megatron", "Megatron-core on an export", _MEGATRON, given=documents)
    assert num_samples in (whole, whole - 1)
    assert num_samples > 100


_OLMO = """
from olmo_core.data.utils import get_labels
assert loader.total_batches == len(dataset) // 4
seen = {int(index): [ids.tolist(), labels.tolist()]
        for batch in loader for index, ids, labels in zip(batch["index"], batch["input_ids"], get_labels(batch))}
loader.reset()

import torch
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig
from olmo_core.train.train_module import TransformerTrainModuleConfig
model = TransformerConfig.olmo2_1M(vocab_size=4096).build(init_device="cpu")
module = TransformerTrainModuleConfig(rank_microbatch_size=256, max_sequence_length=64, optim=AdamWConfig()).build(
    model, device=torch.device("cpu"))
given, train_batch = [], module.train_batch
module.train_batch = lambda batch, **others: (given.append("label_mask" in batch), train_batch(batch, **others))
how = {"device": "cpu", "max_duration": Duration.steps(20), "no_checkpoints": True, "save_overwrite": True}
trainer = TrainerConfig(save_folder="olmo-run", **how).build(module, loader)
trainer.fit()
assert trainer.global_step == 20 and given[-20:] == [True] * 20
print("\\n" + json.dumps([seen[index] for index in sorted(seen)]))
"""


def _labels(made: Exportable) -> list[list[int]]:
    """Return the label of each token of the split train, not shifted; the first of a conversation has none."""
    learned = learned_classes("assistant")
    pairs = zip(made.documents["train"], made.classes["train"], strict=True)
    return [np.where(learned[classes], ids, -100).tolist() for ids, classes in pairs]


def test_olmo_core_reads_our_masks(folder: Path, made: dict[str, Exportable]) -> None:
    seen = _run("olmo", "OLMo-core on an export, with label masks", _OLMO)
    ids = np.concatenate(made["chat"].documents["train"])
    labels = np.concatenate(_labels(made["chat"]))
    rows = len(ids) // _SEQ_LEN
    assert len(seen) in range(rows - 3, rows + 1)  # its loader drops a batch that is not full
    ids, labels = (values[: rows * _SEQ_LEN].reshape(rows, _SEQ_LEN) for values in (ids, labels))
    left = {(tuple(row), (*of_row[1:], -100)) for row, of_row in zip(ids.tolist(), labels.tolist(), strict=True)}
    assert all((tuple(row), tuple(of_row)) in left for row, of_row in seen)


_TOKENIZER = """
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({"<end>": 0}, "<end>"))
PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<end>", eos_token="<end>").save_pretrained("tokenizer")
"""
_TRL = """
assert trainer.state.global_step == 20
batch = next(iter(trainer.get_train_dataloader()))
of_batch = [[ids[:n].tolist(), labels[:n].tolist()]
            for ids, labels, n in zip(batch["input_ids"], batch["labels"], batch["attention_mask"].sum(1))]
rows = [[row["input_ids"], row["labels"]] for row in trainer.train_dataset]
print("\\n" + json.dumps([rows, of_batch]))
"""


def test_trl_trains_on_our_labels(folder: Path, made: dict[str, Exportable]) -> None:
    rows, of_batch = _run("trl", "TRL's SFTTrainer on an export", _TRL, _TOKENIZER)
    cut = [
        [ids[:_SEQ_LEN], labels[:_SEQ_LEN]]
        for ids, labels in zip(made["chat"].documents["train"], _labels(made["chat"]), strict=True)
    ]
    assert rows == [row for row in cut if set(row[1]) != {-100}]
    assert len(of_batch) == 4
    assert all(row in rows for row in of_batch)


#: Takes 20 batches, and those after them from another loader, with its own state.
_EPOCH = """
if __name__ == "__main__":
    seen, batches = [], iter(loader)
    for _ in range(20):
        seen += ids_of(next(batches)).tolist()
    other = type(loader)({data}, batch_size=4)
    other.load_state_dict(loader.state_dict())
    for batch in other:
        seen += ids_of(batch).tolist()
    print("\\n" + json.dumps(seen))
"""
_STREAMING = """
ids_of = lambda batch: batch["tokens"]
""" + _EPOCH.format(
    data='StreamingDataset(local="exports/mds", split="train", batch_size=4, shuffle=True, shuffle_seed=0)'
)
_LITDATA = """
ids_of = lambda batch: batch
""" + _EPOCH.format(
    data='StreamingDataset("exports/litdata/train", item_loader=TokensLoader(block_size=64), shuffle=True, seed=0)'
)


@pytest.mark.parametrize(
    ("environment", "heading", "check", "before"),
    [
        ("streaming", "MosaicML streaming on an export", _STREAMING, VISION),
        ("litdata", "LitData on an export", _LITDATA, ""),
    ],
    ids=["streaming", "litdata"],
)
def test_an_epoch_is_our_samples(
    environment: str, heading: str, check: str, before: str, folder: Path, made: dict[str, Exportable]
) -> None:
    seen = _run(environment, heading, check, before)
    ids = np.concatenate(made["news"].documents["train"])
    samples = ids[: len(ids) // _SEQ_LEN * _SEQ_LEN].reshape(-1, _SEQ_LEN).tolist()
    assert sorted(seen) == sorted(samples)
    assert seen != samples  # they are shuffled
