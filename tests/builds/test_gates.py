"""Gates before publication: a version that fails one leaves the store as it was, until it is forced or relaxed."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, build_record, listed_files, local_store, make_spec, write_jsonl
from tests.servers.s3_server import BUCKET
from tokenloom.cli.main import main
from tokenloom.errors import GateFailed, StoreError, WorkError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.canonical import sign_record
from tokenloom.storage.formats.manifest import MANIFEST
from tokenloom.storage.formats.version_files import EncoderUse
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import hand_moves, tags
from tokenloom.storage.versions.distrust import distrust
from tokenloom.storage.versions.published import published_versions, version_path
from tokenloom.storage.versions.references import dataset_store
from tokenloom.storage.work.assignment import candidate_path
from tokenloom.storage.work.candidates import find_candidates, read_candidate
from tokenloom.tasks.publishing.candidates import publish_candidate
from tokenloom.tasks.publishing.gates import evaluate_published
from tokenloom.tasks.publishing.version_facts import facts_of

# Before: 100 documents of 9 bytes. After: 64 of them, 16 documents of 360 bytes, 24 copies, 16 empty rows, 5 bad rows.
BEFORE = [f"doc {i:05}" for i in range(100)]
AFTER = [*BEFORE[:64], *(f"{i:03}{'x' * 357}" for i in range(16)), *[BEFORE[0]] * 24, *[""] * 16]
NUM_BAD = 5
# The limit that the second version just keeps, and the next one that it does not.
EDGES = {
    "min_documents": (80, 81),
    "min_tokens": (64 * 10 + 16 * 361, 6417),
    "max_duplicate_share": (24 / 125, 0.1919),
    "max_quarantined_share": (5 / 125, 0.0399),
    "max_filtered_share": (16 / 125, 0.1279),
    "max_token_drift": (5.416, 5.4159),  # 1,000 tokens -> 6,416
    "max_document_drift": (0.2, 0.1999),
    "max_bytes_per_token_drift": (0.09375, 0.0937),  # 9/10 -> 63/64: (63/64) / (9/10) is 1.09375
    "max_length_drift": (0.2, 0.1999),  # 16 of 80 documents are in a bin of their own
}
STRICT = {"min_documents": 81, "max_token_drift": 5.0}
REASON = "the copies are intended"


def spec_of(folder: Path, name: str, **checks: float) -> BuildSpec:
    source = {"kind": "jsonl", "path": str(folder / f"{name}.jsonl"), "name": "docs"}
    return make_spec(folder / "store", [source], documents={"on_error": "skip"}, checks=checks)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both inputs, and a store in which `latest` names the version of the first."""
    folder = tmp_path_factory.mktemp("made")
    write_jsonl(folder / "before.jsonl", BEFORE)
    path = write_jsonl(folder / "after.jsonl", AFTER)
    path.write_text(path.read_text() + '{"text": 3}\n' * NUM_BAD)
    build(spec_of(folder, "before"))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of `made`."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def store_of(folder: Path) -> LocalStore:
    return local_store(str(folder / "store"), "data")


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, ...]:
    """Return what a store shows: its versions, the log of its tag, and `ls --json`."""
    capsys.readouterr()
    assert main(["ls", str(folder / "store" / "data"), "--json"]) == 0
    store = store_of(folder)
    return published_versions(store), tags.log(store, "latest"), json.loads(capsys.readouterr().out)


def fail(spec: BuildSpec) -> GateFailed:
    with pytest.raises(GateFailed) as caught:
        build(spec)
    return caught.value


@pytest.mark.parametrize("name", EDGES)
def test_each_gate_fails_beyond_its_limit_and_passes_at_it(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, outside = EDGES[name]
    before = shown(folder, capsys)
    error = fail(spec_of(folder, "after", **{name: outside}))
    assert [(gate["name"], gate["passed"]) for gate in error.gates] == [(name, False)]
    assert f"{name}: expected {error.gates[0]['expected']}, found {error.gates[0]['found']}" in str(error)
    assert (error.exit_code, "\n" in str(error)) == (3, False)
    assert shown(folder, capsys) == before
    result = build(spec_of(folder, "after", **{name: inside}))
    assert (result.version, result.published, result.tag_moved, result.num_encoded) == (error.version, True, True, 0)
    assert [gate.passed for gate in result.gates] == [True]
    assert build_record(store_of(folder), result.version).gates == result.gates
    assert find_candidates(store_of(folder)) == {}


def test_the_same_build_fails_again_without_encoding_or_shuffling(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fail(spec_of(folder, "after", **STRICT))

    def refuse(*args: object) -> None:
        raise AssertionError("this was made before")

    monkeypatch.setattr("tokenloom.tasks.encoding.tokenization._encode_partition", refuse)
    monkeypatch.setattr("tokenloom.tasks.shuffling.shuffle._write_shard", refuse)
    again = fail(spec_of(folder, "after", **STRICT))
    assert (again.version, again.gates) == (first.version, first.gates)


def test_a_forced_version_has_the_bytes_of_one_without_checks(folder: Path) -> None:
    error = fail(spec_of(folder, "after", **STRICT))
    plain = spec_of(folder, "after").model_copy(update={"store": str(folder / "plain")})
    wanted = listed_files(plain, build(plain).version)
    (folder / "after.jsonl").unlink()  # publication needs no inputs
    done = publish_candidate(store_of(folder), error.version, REASON)
    assert (done.published, done.forced, done.tag_moved) == (True, True, True)
    assert listed_files(spec_of(folder, "after"), error.version) == wanted
    newest = tags.log(store_of(folder), "latest")[-1]
    assert (newest.version, newest.reason) == (error.version, REASON)
    record = build_record(store_of(folder), error.version)
    assert (record.forced, [gate.passed for gate in record.gates or []]) == (REASON, [False, False])
    assert find_candidates(store_of(folder)) == {}


def test_a_published_version_is_not_published_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, (version,) = store_of(folder), published_versions(store_of(folder))
    before = shown(folder, capsys)
    done = publish_candidate(store, version, REASON)
    assert (done.published, done.tag_moved, done.forced) == (False, False, False)
    assert shown(folder, capsys) == before


def test_a_publication_that_is_interrupted_at_any_write_can_be_repeated(folder: Path, tmp_path: Path) -> None:
    version = fail(spec_of(folder, "after", **STRICT)).version
    num_writes = 0
    while True:
        store = LocalStore(Path(shutil.copytree(folder / "store" / "data", tmp_path / f"interrupted-{num_writes}")))
        if not interrupted(partial(publish_candidate, store, version, REASON), num_writes):
            break
        publish_candidate(store, version, REASON)
        entries = tags.log(store, "latest")
        assert [(entry.version, entry.reason) for entry in entries[1:]] == [(version, REASON)]
        assert (build_record(store, version).forced, find_candidates(store)) == (REASON, {})
        num_writes += 1
    # build.json, manifest, tag, the candidate's two files; two leases, each written and deleted
    assert num_writes == 9


def interrupted(call: Callable[[], object], num_writes: int) -> bool:
    """Return whether `call` was interrupted before its write `num_writes`, counted from 0."""
    num_left = num_writes

    def counting(write: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: Any, **kwargs: Any) -> object:
            nonlocal num_left
            num_left -= 1
            if num_left < 0:
                raise KeyboardInterrupt
            return write(*args, **kwargs)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("create", "replace", "remove"):
            patch.setattr(LocalStore, name, counting(getattr(LocalStore, name)))
        try:
            call()
        except KeyboardInterrupt:
            return True
    return False


def test_a_publication_whose_tag_moves_meanwhile_says_so_and_can_be_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (first,) = store_of(folder), published_versions(store_of(folder))
    version = fail(spec_of(folder, "after", **STRICT)).version
    with monkeypatch.context() as patch:
        patch.setattr(hand_moves, "check_lengths", lambda *args: tags.move(store, "latest", first, 1, "again"))
        with pytest.raises(StoreError, match=f"latest was moved to {first} by .* at the same moment"):
            publish_candidate(store, version, REASON)
    assert publish_candidate(store, version, REASON).tag_moved
    assert [entry.reason for entry in tags.log(store, "latest")] == ["build", "again", REASON]


@pytest.mark.usefixtures("s3_proxy")
def test_on_s3_a_candidate_is_checked_by_its_bytes_and_published(made: Path) -> None:
    spec = spec_of(made, "after", min_documents=81).model_copy(update={"store": f"s3://{BUCKET}/{uuid.uuid4().hex}"})
    version, store = fail(spec).version, dataset_store(spec.store, "data")
    path = version_path(version, "train/000000.tok")
    store.replace(path, store.read(path)[:-9] + bytes(9))
    with pytest.raises(WorkError, match=r"train/000000\.tok: its SHA-256 is not that of the manifest"):
        publish_candidate(store, version, REASON)
    assert published_versions(store) == []
    assert fail(spec).version == version
    assert publish_candidate(store, version, REASON).tag_moved
    assert (published_versions(store), find_candidates(store)) == ([version], {})


@pytest.mark.parametrize("damage", ["shard", "cut", "table", "missing", "manifest", "record"])
def test_a_damaged_candidate_is_refused_until_it_is_built_again(
    damage: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, store, before = spec_of(folder, "after", **STRICT), store_of(folder), shown(folder, capsys)
    version = fail(spec).version
    shard = store.local(version_path(version, "train/000000"))
    path = {
        "shard": shard.with_suffix(".tok"),
        "cut": shard.with_suffix(".tok"),
        "table": shard.with_suffix(".docs"),
        "missing": shard.with_suffix(".docs"),
        "manifest": store.local(candidate_path(version, MANIFEST)),
        "record": store.local(candidate_path(version, "candidate.json")),
    }[damage]
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    else:
        flip_bit(path, -300)
    with pytest.raises(WorkError, match=r"build again from the same spec") as caught:
        publish_candidate(store, version, REASON)
    assert path.name in str(caught.value)
    assert shown(folder, capsys) == before
    fail(spec)
    assert publish_candidate(store, version, REASON).published
    assert main(["verify", f"{folder}/store/data@{version}", "--workers", "0"]) == 0


def test_a_candidate_that_a_distrusted_encoder_encoded_is_refused(folder: Path) -> None:
    store = store_of(folder)
    version = fail(spec_of(folder, "after", **STRICT)).version
    candidate = read_candidate(store, version)
    build = replace(candidate.record.build, encoders={"swift 1.0": EncoderUse(1, 10)})
    store.replace(candidate_path(version, "candidate.json"), sign_record(replace(candidate.record, build=build)))
    distrust(store, "swift 1.0", candidate.manifest.tokenizer.fingerprint, "a wrong id")
    with pytest.raises(WorkError, match=r"swift 1\.0 was distrusted .* build again from the same spec"):
        publish_candidate(store, version, REASON)
    assert version not in published_versions(store)


def test_an_unknown_candidate_is_refused_with_those_that_wait(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"no candidate 0{16}; no candidate waits"):
        publish_candidate(store_of(folder), "0" * 16)
    version = fail(spec_of(folder, "after", **STRICT)).version
    with pytest.raises(StoreError, match=f"no candidate 0{{16}}; candidates are: {version}"):
        publish_candidate(store_of(folder), "0" * 16)


def test_without_force_a_candidate_is_checked_against_the_version_that_latest_names_today(folder: Path) -> None:
    version = fail(spec_of(folder, "after", max_token_drift=0.5)).version
    with pytest.raises(GateFailed):
        publish_candidate(store_of(folder), version)
    write_jsonl(folder / "between.jsonl", AFTER[:80])
    build(spec_of(folder, "between"))
    done = publish_candidate(store_of(folder), version)
    assert (done.published, done.forced, done.tag_moved) == (True, False, True)
    assert build_record(store_of(folder), version).forced is None


def test_the_first_version_has_nothing_to_drift_from(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "before.jsonl", BEFORE)
    result = build(spec_of(tmp_path, "before", max_token_drift=0.0, max_length_drift=0.0))
    assert result.published
    assert {gate.found for gate in result.gates} == {"not compared: latest names no version"}


def test_a_try_out_is_not_checked(folder: Path) -> None:
    tryout = build(spec_of(folder, "after", min_documents=1000).model_copy(update={"limit": 10}))
    assert (tryout.published, tryout.gates) == (True, [])


def test_a_published_version_is_checked_by_its_recorded_figures_and_no_tag_moves(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shown(folder, capsys)
    error = fail(spec_of(folder, "before", min_documents=1000, max_token_drift=0.1))
    assert (error.exit_code, [gate["passed"] for gate in error.gates]) == (3, [False, True])
    assert f"{error.version} was published before, and latest names it: 1 of 2 checks failed: min_" in str(error)
    assert error.gates[1]["found"] == "not compared: latest names this version"
    assert str(error).endswith("Correct the data or `checks` and build again")  # there is no version to go back to
    assert shown(folder, capsys) == before
    assert [gate.passed for gate in build(spec_of(folder, "before", min_documents=100)).gates] == [True]
    build(spec_of(folder, "after"))
    moved = shown(folder, capsys)
    error = fail(spec_of(folder, "before", max_document_drift=0.2))  # 80 -> 100
    assert f"{error.version} was published before, and latest was not moved to it" in str(error)
    again = fail(spec_of(folder, "after", min_documents=1000))
    assert f"or let latest name the version before: `tokenloom rollback {store_of(folder).root}`" in str(again)
    assert shown(folder, capsys) == moved
    assert build(spec_of(folder, "before", max_document_drift=0.25)).tag_moved


def test_each_gate_finds_the_same_in_a_version_that_exists_as_before_its_publication(folder: Path) -> None:
    store, (old,) = store_of(folder), published_versions(store_of(folder))
    new = build(spec_of(folder, "after", **{name: inside for name, (inside, _) in EDGES.items()}))
    tags.move(store, "latest", old, 2, "back")
    facts = facts_of(store, new.version)
    for strict in (False, True):
        limits = {name: edges[strict] for name, edges in EDGES.items()}
        found = evaluate_published(facts, "latest", limits)
        assert [gate.passed for gate in found] == [not strict] * len(EDGES)
        assert strict or found == new.gates
    results = evaluate_published(replace(facts, build=None), "latest", limits)
    unknown = {gate.name for gate in results if not gate.compared}
    assert unknown == {"max_bytes_per_token_drift", "max_length_drift"}


def test_what_a_person_accepted_passes_until_its_limit_changes(folder: Path) -> None:
    version = fail(spec_of(folder, "after", **STRICT)).version
    publish_candidate(store_of(folder), version, REASON)
    again = build(spec_of(folder, "after", **STRICT))
    assert (again.version, again.published) == (version, False)
    assert again.gates[0].found == f"80, accepted when it was published: {REASON}"
    assert not fail(spec_of(folder, "after", **STRICT | {"min_documents": 82})).gates[0]["passed"]
