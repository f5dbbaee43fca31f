"""Builds with a fast encoder have the bytes of builds without; a wrong one ends the build."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tokenizers import normalizers

from tests.builders import proofs
from tests.builders.datasets import make_spec, write_parquet
from tests.builders.observing import messages_of_builds
from tests.counts import full_only
from tests.tokenloom.test_fast_encoders import changed, loaded, train
from tests.tokenloom.test_sentencepiece_encoder import train as train_sentencepiece
from tokenloom.errors import EncoderMismatch, WorkerLost
from tokenloom.flows.direct import build_directly, share_from_spec
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.building.outcome import encoding_line
from tokenloom.tasks.building.publish import BuildResult
from tokenloom.tasks.running.steps import Share
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.fast.tokenizer import NO_OVERLAP, make_encoder

_NUM_TEXTS = 3000
Change = Callable[[str, list[int]], list[int]]


class Builds:
    """Builds of one input into fresh stores, and what they reported."""

    def __init__(self, folder: Path, model: bytes | None = None) -> None:
        """Prepare builds with a tokenizer.json, or with a model of SentencePiece."""
        self.folder = folder
        kind, name = ("huggingface", "tokenizer.json") if model is None else ("sentencepiece", "tokenizer.model")
        (folder / name).write_bytes(train() if model is None else model)
        self.definition = {"kind": kind, "path": str(folder / name)}
        texts = [f"text {i}: lorem ipsum, it's naïve" for i in range(_NUM_TEXTS)]
        for i in range(3):
            write_parquet(folder / f"{i}.parquet", texts[i::3])
        self.messages: list[str] = []
        self.reference = load_tokenizer(self.definition)
        self.encoder = make_encoder(self.reference)

    def trust(self) -> None:
        """Write a proof of the encoder."""
        proofs.trust(self.reference)

    def spec(self, store: str, backend: str = "auto", **fields: Any) -> BuildSpec:
        source = {"kind": "parquet", "path": str(self.folder / "*.parquet")}
        return make_spec(self.folder / store, [source], tokenizer=self.definition | {"backend": backend}, **fields)

    def build(self, spec: BuildSpec, num_workers: int = 0) -> BuildResult:
        with messages_of_builds() as messages:
            result = build_directly(spec, num_workers)
        self.messages += messages
        return result

    def shards(self, store: str) -> dict[str, bytes]:
        found = sorted((self.folder / store).rglob("versions/*/*/*.tok"))
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in found}

    def assert_same_as_slow(self, store: str) -> None:
        """Compare the shards of a store with those that the reference encodes."""
        self.build(self.spec("slow", "reference"))
        assert self.shards(store) == self.shards("slow")

    def build_unchecked(self, store: str, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
        """Build with an encoder that is wrong unnoticed, and be killed before the check."""
        with monkeypatch.context() as patch:
            patch.setattr("tokenloom.tokenizers.fast.tokenizer._choose", lambda offsets, num_bytes: offsets[:0])
            break_encoder(patch, self, change)
            patch.setattr("tokenloom.flows.build_steps.check_jobs", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                self.build(self.spec(store))

    def used(self, store: str) -> dict[str, Any]:
        """Return the fast encoders of build.json."""
        (path,) = (self.folder / store).rglob("versions/*/build.json")
        return dict(json.loads(path.read_bytes())["encoders"])

    def assert_rejected(self, store: str, match: str) -> str:
        """Build into a store, which the encoder's wrong ids must end; return the message."""
        with pytest.raises(EncoderMismatch, match=match) as raised:
            self.build(self.spec(store))
        assert raised.value.encoders == (self.encoder.library,)
        return str(raised.value)

    def spills(self, store: str) -> list[str]:
        return sorted(path.name for path in (self.folder / store).glob("data/work/spills/*"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own; small builds use a fast encoder too."""
    monkeypatch.setattr("tokenloom.tasks.building.plan.MIN_FAST_BYTES", 0)
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    """Builds in whose cache the encoder is trusted."""
    made = Builds(tmp_path)
    made.trust()
    return made


def break_encoder(monkeypatch: pytest.MonkeyPatch, builds: Builds, change: Change) -> None:
    wrong = changed(builds.encoder, change)
    monkeypatch.setattr("tokenloom.tasks.building.documents.make_encoder", lambda tokenizer: wrong)


def test_the_bytes_of_a_sentencepiece_model_do_not_depend_on_the_encoder(tmp_path: Path) -> None:
    builds = Builds(tmp_path, train_sentencepiece())
    builds.trust()
    test_the_bytes_do_not_depend_on_the_encoder(2, builds)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_bytes_do_not_depend_on_the_encoder(num_workers: int, builds: Builds) -> None:
    fast, slow = builds.build(builds.spec("fast"), num_workers), builds.build(builds.spec("slow", "reference"))
    assert fast.version == slow.version
    assert builds.shards("fast") == builds.shards("slow")
    spills = [list((builds.folder / name).glob("data/work/spills/*.spill")) for name in ("fast", "slow")]
    of_fast, of_slow = ({path.name: path.read_bytes() for path in paths} for paths in spills)
    assert of_fast == of_slow  # machines with and without a fast encoder may share a build
    ((library, use),) = builds.used("fast").items()
    assert (library, use["partitions"]) == (builds.encoder.library, 3)
    assert use["compared"] > 50_000
    assert fast.to_json()["encoders"] == builds.used("fast")
    backend = builds.reference.backend
    assert encoding_line(fast.to_json()) == f"encoded by {library} (gives the ids of {backend})"
    assert encoding_line(slow.to_json()) == f"encoded by {backend}"
    assert builds.used("slow") == {}
    assert builds.messages == []


def test_each_build_of_a_process_compares_a_sample_of_its_own(builds: Builds) -> None:
    compared = []
    for seed in range(4):
        builds.build(builds.spec(f"store-{seed}", seed=seed))
        compared += [use["compared"] for use in builds.used(f"store-{seed}").values()]
    assert len(compared) == 4
    assert len(set(compared)) == 1  # the fourth would have none left of a sample of all


@pytest.mark.parametrize("wrong_text", ["text 31: lorem ipsum, it's naïve", "text 2980: lorem ipsum, it's naïve"])
def test_a_wrong_id_in_the_sample_ends_the_build(
    wrong_text: str, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds.build(builds.spec("fast", "reference", seed=2))
    of_reference = builds.spills("fast")
    break_encoder(monkeypatch, builds, lambda text, ids: [*ids[:-1], 9] if text == wrong_text else ids)
    with monkeypatch.context() as patch:  # an earlier build did not notice
        patch.setattr("tokenloom.tokenizers.fast.tokenizer._choose", lambda offsets, num_bytes: offsets[:0])
        earlier = builds.build(builds.spec("fast", seed=1)).version
    before = builds.shards("fast")
    message = builds.assert_rejected("fast", "give different ids for ")
    assert f"{builds.encoder.library} and {builds.reference.backend} give different ids for {wrong_text!a}" in message
    assert builds.shards("fast") == before
    assert builds.spills("fast") == of_reference
    assert f"it also encoded {earlier}: verify them with `tokenloom verify --deep`" in message
    assert "set tokenizer: {backend: reference} and build again, and please report this message at https://" in message
    assert builds.build(builds.spec("fast", "reference")).num_encoded == 3


def test_a_wrong_id_in_the_sample_ends_a_share_which_deletes_the_spills(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_encoder(monkeypatch, builds, lambda text, ids: ids[::-1] if text.startswith("text 2") else ids)
    with monkeypatch.context() as patch:  # the share before did not notice
        patch.setattr("tokenloom.tokenizers.fast.tokenizer._choose", lambda offsets, num_bytes: offsets[:0])
        share_from_spec(builds.spec("fast").with_workers(0), Share(0, 3))
    assert builds.spills("fast")
    with pytest.raises(EncoderMismatch, match="1 partition that"):
        share_from_spec(builds.spec("fast").with_workers(0), Share(1, 3))
    assert builds.spills("fast") == []


def test_wrong_ids_that_only_the_last_check_finds_are_not_published(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_wrong(text: str, ids: list[int]) -> list[int]:
        return ids[::-1] if text.startswith("text 1") else ids

    monkeypatch.setattr("tokenloom.tasks.building.plan.Overlap", lambda share: NO_OVERLAP)
    break_encoder(monkeypatch, builds, is_wrong)
    assert "3 partitions that" in builds.assert_rejected("fast", 'give different ids for "text 1')
    builds.build_unchecked("fast", monkeypatch, is_wrong)
    monkeypatch.undo()
    assert "it also encoded" not in builds.assert_rejected("fast", "encoded again, its ids differ from shard train/")
    assert (builds.spills("fast"), list(builds.folder.rglob("fast/**/manifest.json"))) == ([], [])
    assert builds.build(builds.spec("fast", "reference")).published
    builds.assert_same_as_slow("fast")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("crash", "killed"),
        ("hang", r"hung in native code .*set tokenizer: {backend: reference}"),
        ("leak", r"while encoding .*: out of memory; run the same command again"),
    ],
)
def test_an_encoder_that_never_returns_or_leaks_memory_ends_the_build(way: str, said: str, builds: Builds) -> None:
    transform = {"function": f"tests.builders.wrong_encoders:{way}", "version": "1"}
    with pytest.raises(WorkerLost, match=said):
        builds.build(builds.spec("fast", documents={"transform": transform}), 1)
    assert builds.shards("fast") == {}


def test_the_reference_reuses_nothing_that_a_fast_encoder_left(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    builds.build_unchecked("mixed", monkeypatch, lambda text, ids: ids[::-1] if text.startswith("text 7:") else ids)
    result = builds.build(builds.spec("mixed", "reference"))
    assert (result.published, result.num_encoded) == (True, 3)
    builds.assert_same_as_slow("mixed")


@pytest.fixture
def shipped(request: pytest.FixtureRequest, tmp_path: Path, tiktoken_cache: Path, data_dir: Path) -> Builds:
    """Builds with a vocabulary whose proof the package has."""
    builds, name = Builds(tmp_path), request.param
    path = str(data_dir / "tokenizers" / name / "tokenizer.json")
    builds.definition = {"kind": "huggingface", "path": path} if "-" in name else {"kind": "tiktoken", "name": name}
    builds.reference = load_tokenizer(builds.definition)
    return builds


@pytest.mark.parametrize(
    ("shipped", "num_workers"),
    [
        pytest.param("gpt2", 0, marks=full_only),
        ("gpt2", 2),
        *(pytest.param(name, 2, marks=full_only) for name in ("o200k_base", "gpt-neox-20b")),
    ],
    indirect=["shipped"],
)
def test_a_first_build_in_an_empty_home_without_network_uses_the_fast_encoder(
    num_workers: int, shipped: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENLOOM_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("socket.getaddrinfo", Mock(side_effect=OSError("no network")))
    shipped.build(shipped.spec("fast"), num_workers)
    ((library, use),) = shipped.used("fast").items()
    assert (library, use["partitions"], shipped.messages) == (shipped.encoder.library, 3, [])
    shipped.assert_same_as_slow("fast")


@pytest.mark.parametrize("false", ["a merge", "a code point"])
def test_a_false_proof_is_found_in_the_sample(false: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds(tmp_path)
    content = json.loads(train(normalizers.NFC()))
    if false == "a code point":  # that the reference does not reorder
        write_parquet(tmp_path / "1.parquet", ["plain", "\u07f3\u07fd"])
    Path(builds.definition["path"]).write_text(json.dumps(content))
    builds.reference = load_tokenizer(builds.definition)
    builds.trust()
    if false == "a merge":
        merges = content["model"]["merges"]
        merges.remove(next(pair for pair in merges if "".join(pair) == "\u0120ipsum"))
    wrong = make_encoder(loaded(json.dumps(content).encode()))
    monkeypatch.setattr("tokenloom.tasks.building.documents.make_encoder", lambda tokenizer: wrong)
    builds.assert_rejected("fast", "give different ids for ")


def test_a_build_without_a_proof_says_in_one_line_what_encodes(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    assert builds.build(builds.spec("slow")).published
    assert builds.messages == [
        f"encoded by {builds.reference.backend}: {builds.encoder.library} is not proven for this vocabulary; "
        "`tokenloom tokenizer SPEC` proves it in about a minute"
    ]
    builds.messages.clear()
    assert builds.build(builds.spec("reference", "reference")).published
    assert not builds.build(builds.spec("slow")).published
    assert builds.messages == []


def test_a_build_of_little_text_makes_no_fast_encoder(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TOKENLOOM_CACHE", str(builds.folder / "cache"))
    builds.build(builds.spec("slow"))
    assert (builds.used("slow"), builds.messages) == ({}, [])


def test_a_worker_with_another_release_uses_the_reference(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.tasks.building.documents.installed_library", lambda: "gigatoken 0.9")
    builds.build(builds.spec("slow"))
    assert builds.used("slow") == {}
