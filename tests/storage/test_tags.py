"""The tag log: one entry per move, one winner per number, and the rules by which a build moves `latest`."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.canonical import sign, sign_record
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tags

A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "news")


def history(store: LocalStore, *moves: tuple[str, str]) -> int:
    """Move `latest` by (version, reason); return the number of its newest entry."""
    for number, (version, reason) in enumerate(moves):
        tags.move(store, "latest", version, number, reason)
    return len(moves)


def named(store: LocalStore) -> str | None:
    entry = tags.newest(store, "latest")
    return entry.version if entry else None


def test_a_tag_that_was_never_set_has_no_entry(store: LocalStore) -> None:
    assert tags.newest(store, "latest") is None
    assert tags.newest_number(store, "latest") == 0
    assert tags.log(store, "latest") == []


def test_the_entry_with_the_highest_number_counts(store: LocalStore) -> None:
    history(store, *[(A if i % 2 else B, "tag") for i in range(12)])
    assert tags.newest_number(store, "latest") == 12
    assert named(store) == A
    assert store.names("tags/latest") == [f"{i:08d}.json" for i in range(1, 13)]


def test_the_log_keeps_every_move_with_its_previous_version(store: LocalStore) -> None:
    history(store, (A, "build"), (B, "build"), (A, "rollback"))
    moves = [(entry.number, entry.version, entry.previous, entry.reason) for entry in tags.log(store, "latest")]
    assert moves == [(1, A, None, "build"), (2, B, A, "build"), (3, A, B, "rollback")]
    assert all(entry.by and entry.at.endswith("+00:00") for entry in tags.log(store, "latest"))


def test_entry_has_the_fields_of_the_format_and_a_checksum(store: LocalStore) -> None:
    history(store, (A, "build"))
    value = json.loads(store.read("tags/latest/00000001.json"))
    assert sorted(value) == ["at", "by", "checksum", "number", "previous", "reason", "version"]


def test_names_that_are_not_entries_are_ignored(store: LocalStore) -> None:
    history(store, (A, "build"))
    for name in ("00000009.json.tmp", "9.json", "notes.txt"):
        store.replace(f"tags/latest/{name}", b"")
    assert tags.newest_number(store, "latest") == 1


def test_of_two_movers_with_the_same_base_one_is_refused(store: LocalStore) -> None:
    history(store, (A, "build"))
    tags.move(store, "latest", B, 1, "tag")
    with pytest.raises(FileExistsError):
        tags.move(store, "latest", C, 1, "tag")
    assert [entry.version for entry in tags.log(store, "latest")] == [A, B]


def test_exactly_one_of_racing_movers_wins_each_number(store: LocalStore) -> None:
    history(store, (A, "build"))
    barrier = threading.Barrier(8)
    won: list[str] = []
    refused: list[str] = []

    def mover(version: str) -> None:
        barrier.wait()
        try:
            tags.move(store, "latest", version, 1, "tag")
            won.append(version)
        except FileExistsError:
            refused.append(version)

    threads = [threading.Thread(target=mover, args=(f"{i:016x}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 7)
    assert [entry.version for entry in tags.log(store, "latest")] == [A, *won]


def test_first_build_sets_the_tag(store: LocalStore) -> None:
    assert tags.move_by_build(store, "latest", A, 0) is None
    assert named(store) == A
    assert tags.log(store, "latest")[0].reason == tags.BUILD_REASON


def test_a_build_moves_a_tag_that_did_not_move_since_it_planned(store: LocalStore) -> None:
    seen = history(store, (A, "build"))
    assert tags.move_by_build(store, "latest", B, seen) is None
    assert named(store) == B


def test_a_build_does_not_move_a_tag_that_moved_since_it_planned(store: LocalStore) -> None:
    # A slow old build does not win over a newer one.
    history(store, (A, "build"), (B, "build"))
    note = tags.move_by_build(store, "latest", C, 1)
    assert note is not None
    assert B in note
    assert named(store) == B
    assert tags.newest_number(store, "latest") == 2


def test_a_build_does_not_move_a_tag_whose_log_was_deleted_since_it_planned(store: LocalStore) -> None:
    assert tags.move_by_build(store, "latest", C, 1) == "latest was moved to nothing while this build ran"
    assert tags.newest_number(store, "latest") == 0


def test_a_build_does_not_move_a_tag_that_was_first_set_since_it_planned(store: LocalStore) -> None:
    history(store, (A, "tag"))
    assert tags.move_by_build(store, "latest", C, 0) is not None
    assert named(store) == A


@pytest.mark.parametrize("reason", ["rollback", "tag"])
def test_a_rollback_survives_a_build(store: LocalStore, reason: str) -> None:
    # B was rolled back by hand; building B again, from the newest state of the tag, must not bring it back.
    seen = history(store, (A, "build"), (B, "build"), (A, reason))
    note = tags.move_by_build(store, "latest", B, seen)
    assert note is not None
    assert reason in note
    assert B in note
    assert named(store) == A
    assert tags.newest_number(store, "latest") == seen


@pytest.mark.parametrize("reason", ["rollback", "tag"])
def test_a_build_of_a_new_version_moves_a_tag_that_was_set_by_hand(store: LocalStore, reason: str) -> None:
    seen = history(store, (A, "build"), (B, "build"), (A, reason))
    assert tags.move_by_build(store, "latest", C, seen) is None
    assert named(store) == C


def test_a_build_can_return_to_a_version_that_a_build_left(store: LocalStore) -> None:
    # A build made the newest entry, so this undoes nobody's decision: the inputs are those of A again.
    seen = history(store, (A, "build"), (B, "build"))
    assert tags.move_by_build(store, "latest", A, seen) is None
    assert named(store) == A


def test_a_rollback_no_longer_applies_after_a_build_has_moved_the_tag(store: LocalStore) -> None:
    seen = history(store, (A, "build"), (B, "build"), (A, "rollback"), (C, "build"))
    assert tags.move_by_build(store, "latest", B, seen) is None
    assert named(store) == B


def test_a_build_of_the_tagged_version_adds_no_entry(store: LocalStore) -> None:
    history(store, (A, "build"), (B, "tag"))
    for seen in (0, 1, 2):
        assert tags.move_by_build(store, "latest", B, seen) is None
    assert tags.newest_number(store, "latest") == 2


def test_a_build_that_loses_the_race_reports_it(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = history(store, (A, "build"))
    create = LocalStore.create

    def create_late(self: LocalStore, path: str, data: bytes) -> None:
        monkeypatch.setattr(LocalStore, "create", create)
        tags.move(self, "latest", B, seen, "tag")
        create(self, path, data)

    monkeypatch.setattr(LocalStore, "create", create_late)
    note = tags.move_by_build(store, "latest", C, seen)
    assert note is not None
    assert "same moment" in note
    assert named(store) == B


def test_tags_move_independently(store: LocalStore) -> None:
    tags.move(store, "prod", A, 0, "tag")
    tags.move(store, "latest", B, 0, "build")
    assert [tags.log(store, name)[0].version for name in ("prod", "latest")] == [A, B]


def test_damaged_entry_is_refused_and_named(store: LocalStore) -> None:
    history(store, (A, "build"), (B, "build"))
    path = "tags/latest/00000002.json"
    good = store.read(path)
    for position in range(len(good)):
        store.replace(path, good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :], durable=False)
        with pytest.raises(FormatError, match=r"00000002\.json"):
            tags.newest(store, "latest")
    store.replace(path, good)
    assert named(store) == B


def test_damaged_entry_stops_the_next_move(store: LocalStore) -> None:
    history(store, (A, "build"))
    store.replace("tags/latest/00000001.json", b"{}")
    with pytest.raises(FormatError):
        tags.move(store, "latest", B, 1, "tag")
    with pytest.raises(FormatError):
        tags.move_by_build(store, "latest", B, 1)
    assert store.names("tags/latest") == ["00000001.json"]


@pytest.mark.parametrize("fields", [{"version": A}, {"version": A, "previous": None, "at": "", "by": "", "number": 1}])
def test_entry_with_other_fields_is_refused(store: LocalStore, fields: dict[str, str | None]) -> None:
    store.replace("tags/latest/00000001.json", sign(fields))
    with pytest.raises(FormatError, match="must be given"):
        tags.newest(store, "latest")


def test_gap_in_the_log_is_refused_and_named(store: LocalStore) -> None:
    history(store, (A, "build"), (B, "build"), (C, "build"))
    store.remove("tags/latest/00000002.json")
    assert named(store) == C
    with pytest.raises(FormatError, match=r"00000002\.json: .*missing"):
        tags.log(store, "latest")


@pytest.mark.parametrize("number", [3, 9, 99_999_999])
def test_a_copy_under_another_number_is_no_entry(store: LocalStore, number: int) -> None:
    history(store, (A, "build"), (B, "build"))
    path = f"tags/latest/{number:08d}.json"
    store.replace(path, store.read("tags/latest/00000001.json"))
    assert (named(store), tags.newest_number(store, "latest"), len(tags.log(store, "latest"))) == (B, 2, 2)
    entries, problems = tags.tag_log(store, "latest").read_all()
    assert [entry.version for entry in entries] == [A, B]
    (problem,) = problems.values()
    assert str(problem).endswith(f"{path}: it is not an entry of this log, as it says number 1; remove it")
    if number == 3:
        with pytest.raises(FormatError, match=r"00000003\.json: it is in the place of the next entry"):
            tags.move_by_build(store, "latest", C, 2)
        return
    assert tags.move_by_build(store, "latest", C, 2) is None
    assert named(store) == C


def test_a_log_whose_numbers_are_used_up_is_named(store: LocalStore) -> None:
    history(store, (A, "build"))
    last = tags.TagEntry(B, A, "", "", "build", 99_999_999)
    store.replace("tags/latest/99999999.json", sign_record(last))
    assert named(store) == B  # a lost entry does not make an older one current
    with pytest.raises(FormatError, match=r"00000002\.json: .*missing, and those up to tags/latest/99999998\.json"):
        tags.log(store, "latest")
    with pytest.raises(FormatError, match=r"99999999\.json: no number is left after it; remove it"):
        tags.move(store, "latest", C, 99_999_999, "tag")
    assert store.names("tags/latest") == ["00000001.json", "99999999.json"]


def test_a_move_that_is_not_there_when_it_is_read_back_is_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(store, (A, "build"))
    create = LocalStore.create
    monkeypatch.setattr(LocalStore, "create", lambda self, path, data: create(self, f"{path}.lost", data))
    with pytest.raises(StoreError, match=r"00000002\.json: it was written, and is not there"):
        tags.tag_log(store, "latest").append(tags.TagEntry(B, A, "", "", "tag", 2))
