"""A collector beside builds, readers and movers of tags, in controlled interleavings: nothing that is used is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.builders import retention_actors
from tests.builders.retention_actors import Lost, Scenario, built_files
from tests.counts import SUMMARY, count
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import published, tag_moves
from tokenloom.storage.work import plans
from tokenloom.tasks import retention


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a dataset of two versions."""
    return built_files(tmp_path_factory.mktemp("built"))


def test_nothing_that_is_used_is_lost(files: dict[str, bytes]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(count(200, 5000)):
        scenario = Scenario(files, seed)
        results = scenario.run()
        seen[scenario.state] += 1
        seen.update(name for name, result in results.items() if not isinstance(result, Exception))
    assert all(seen[name] for name in ("reader", "mover", "builder", "mover of latest"))
    SUMMARY.append(f"a collector beside users, {seen['collector']} interleavings: nothing that was used was lost")


# ---- the same scenarios must find a protocol that is wrong


def collect_without_a_second_look(patch: pytest.MonkeyPatch) -> None:
    """The collector reads tags and plans before it deletes a manifest, and not after."""
    look = retention._find_used

    def once(store: Store, versions: Iterable[str], before: float) -> dict[str, str]:
        return look(store, [version for version in versions if published.is_published(store, version)], before)

    patch.setattr(retention, "_find_used", once)


def tag_without_a_second_look(patch: pytest.MonkeyPatch) -> None:
    """A mover does not read the manifest again after it tagged."""
    patch.setattr(tag_moves, "refuse_deleted", lambda *_: None)


def build_without_a_plan(patch: pytest.MonkeyPatch) -> None:
    """A build writes no plan, so a collector does not know what it makes."""
    patch.setattr(plans, "write_work_record", lambda *_: None)


def build_without_a_last_look(patch: pytest.MonkeyPatch) -> None:
    """A build does not look whether its files are there before it writes the manifest."""
    patch.setattr(retention_actors, "missing_file", lambda *_: None)


@pytest.mark.parametrize(
    ("mutate", "user", "state"),
    [
        (collect_without_a_second_look, "mover", "published"),
        (tag_without_a_second_look, "mover", "published"),
        (build_without_a_plan, "builder", "unfinished"),
        (build_without_a_last_look, "builder", "killed collector"),
    ],
)
def test_a_wrong_protocol_is_found(
    files: dict[str, bytes],
    mutate: Callable[[pytest.MonkeyPatch], None],
    user: str,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(Lost):
        for seed in range(6000):
            Scenario(files, seed, [user], state).run()
    SUMMARY.append(f"{mutate.__name__}: found by interleaving {seed}")
