"""The tag log: one entry per move, one winner per number, how a build moves `latest`, where a rollback goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import FormatError
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves, tags

A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "news")


def history(store: LocalStore, *moves: tuple[str, str]) -> int:
    """Move `latest` by (version, reason); return the number of its newest entry."""
    for number, (version, reason) in enumerate(moves):
        tag_moves.move(store, "latest", version, number, reason)
    return len(moves)


def named(store: LocalStore) -> str | None:
    entry = tags.newest(store, "latest")
    return entry.version if entry else None


def test_the_entry_with_the_highest_number_counts_and_other_names_are_ignored(store: LocalStore) -> None:
    assert (named(store), tag_moves.newest_number(store, "latest"), tags.log(store, "latest")) == (None, 0, [])
    history(store, *[(A if i % 2 else B, "tag") for i in range(12)])
    for name in ("00000099.json.tmp", "99.json", "notes.txt"):
        store.replace(f"tags/latest/{name}", b"")
    assert (named(store), tag_moves.newest_number(store, "latest")) == (A, 12)
    assert [entry.number for entry in tags.log(store, "latest")] == list(range(1, 13))


@pytest.mark.parametrize(
    ("moves", "version", "seen", "why_not"),
    [
        ("", "A", 0, None),
        ("A", "B", 1, None),
        ("AB", "C", 1, f"moved to {B}"),  # a slow old build does not win over a newer one
        ("", "C", 1, "latest was moved to nothing while this build ran"),  # its log was deleted
        ("a", "C", 0, f"moved to {A}"),
        ("ABa", "B", 3, f"set to {A} by hand (rollback) after it named {B}"),  # a rollback survives a build
        ("ABa", "C", 3, None),
        ("AB", "A", 2, None),  # a build made the newest entry, so this undoes nobody's decision
        ("ABaC", "B", 4, None),  # the rollback no longer applies
        *(("Ab", "B", seen, None) for seen in (0, 1, 2)),
    ],
)
def test_a_build_moves_a_tag_unless_that_undoes_a_newer_move(
    store: LocalStore, moves: str, version: str, seen: int, why_not: str | None
) -> None:
    # An upper-case letter is a build of that version, a lower-case one a move by hand.
    history(store, *[(move.lower() * 16, "build" if move.isupper() else "rollback") for move in moves])
    before, name = named(store), version.lower() * 16
    note = tag_moves.move_by_build(store, "latest", name, seen)
    if why_not is not None:
        assert why_not in str(note)
        assert (named(store), tag_moves.newest_number(store, "latest")) == (before, len(moves))
        return
    assert (note, named(store)) == (None, name)
    assert tag_moves.newest_number(store, "latest") == len(moves) + (before != name)
    assert before == name or tags.log(store, "latest")[-1].reason == tags.BUILD_REASON


def test_a_build_that_loses_the_race_reports_it(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = history(store, (A, "build"))
    create = LocalStore.create

    def create_late(self: LocalStore, path: str, data: bytes) -> None:
        monkeypatch.setattr(LocalStore, "create", create)
        tag_moves.move(self, "latest", B, seen, "tag")
        create(self, path, data)

    monkeypatch.setattr(LocalStore, "create", create_late)
    note = tag_moves.move_by_build(store, "latest", C, seen)
    assert note is not None
    assert "same moment" in note
    assert named(store) == B


def test_damaged_entry_is_named_and_stops_the_next_move(store: LocalStore) -> None:
    history(store, (A, "build"))
    store.replace("tags/latest/00000001.json", b"{}")
    with pytest.raises(FormatError, match=r"00000001\.json"):
        tags.newest(store, "latest")
    with pytest.raises(FormatError):
        tag_moves.move(store, "latest", B, 1, "tag")
    with pytest.raises(FormatError):
        tag_moves.move_by_build(store, "latest", B, 1)
    assert store.names("tags/latest") == ["00000001.json"]


def test_gap_in_the_log_is_refused_and_named(store: LocalStore) -> None:
    history(store, (A, "build"), (B, "build"), (C, "build"))
    store.remove("tags/latest/00000002.json")
    assert named(store) == C
    with pytest.raises(FormatError, match=r"00000002\.json: .*missing"):
        tags.log(store, "latest")


@pytest.mark.parametrize("number", [3, 9, 99_999_999])
def test_a_copy_under_another_number_is_refused_and_named(store: LocalStore, number: int) -> None:
    history(store, (A, "build"), (B, "build"))
    path = f"tags/latest/{number:08d}.json"
    store.replace(path, store.read("tags/latest/00000001.json"))
    with pytest.raises(FormatError, match=rf"{path}: it is a copy of entry 1 of latest under another name; remove it"):
        tags.newest(store, "latest")
    problems: dict[str, FormatError] = {}
    entries = tags.log(store, "latest", problems)
    assert [entry.version for entry in entries] == [A, B]
    assert path in problems
    store.remove(path)
    assert named(store) == B


def test_an_entry_that_was_copied_from_another_tag_is_refused_and_named(store: LocalStore) -> None:
    history(store, (A, "build"))
    tag_moves.move(store, "good", B, 0, "tag")
    store.replace("tags/good/00000001.json", store.read("tags/latest/00000001.json"))
    message = r"tags/good/00000001\.json: it is a copy of entry 1 of latest under another name; remove it"
    for look in (tags.newest, tags.log, tag_moves.newest_number):
        with pytest.raises(FormatError, match=message):
            look(store, "good")
    assert named(store) == A


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], None),
        (["A"], None),
        (["A", "B"], "A"),
        (["A", "B", "A"], "B"),  # builds: the inputs were those of A again
        (["A", "B", "C", "b"], "A"),
        (["A", "B", "C", "b", "a"], None),
        (["A", "B", "C", "a"], None),
        (["A", "B", "C", "b", "D"], "B"),
        (["A", "B", "C", "b", "c"], "B"),  # undone
        (["A", "B", "b"], "A"),
        (["A", "x", "B", "x"], "A"),
    ],
)
def test_a_move_by_hand_goes_back_in_the_history_and_a_build_adds_to_it(moves: list[str], expected: str | None) -> None:
    # An upper-case letter is a build of that version, a lower-case one a move by hand.
    assert tag_moves.version_before(entries_of(moves)) == (expected and expected.lower())


def entries_of(moves: Sequence[str]) -> list[tags.TagEntry]:
    return [
        tags.TagEntry(move.lower(), None, "", "", tags.BUILD_REASON if move.isupper() else "rollback", number)
        for number, move in enumerate(moves, start=1)
    ]


@given(st.lists(st.sampled_from("ABCDabcd"), min_size=1, max_size=12))
def test_rollbacks_in_a_row_end_and_never_stay(moves: list[str]) -> None:
    for _ in range(len(moves)):
        before = tag_moves.version_before(entries_of(moves))
        if before is None:
            return
        assert before != moves[-1].lower()
        moves = [*moves, before]
    assert tag_moves.version_before(entries_of(moves)) is None
