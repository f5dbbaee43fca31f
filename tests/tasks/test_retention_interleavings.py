"""Collectors beside builds, readers and movers of tags, in controlled interleavings: nothing that is used is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.builders.retention_actors import Lost, Scenario, built_files
from tests.counts import SUMMARY, count, full_only
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import leases, retirement
from tokenloom.storage.versions.leases import Lease
from tokenloom.tasks.retention import deletion, policy


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a dataset of two versions."""
    return built_files(tmp_path_factory.mktemp("built"))


def test_nothing_that_is_used_is_lost(files: dict[str, bytes]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(count(200, 5000)):
        scenario = Scenario(files, seed)
        scenario.run()
        seen[scenario.state] += 1
    SUMMARY.append(f"collectors beside users, {seen.total()} interleavings: nothing that was used was lost")


# ---- the same scenarios must find a protocol that is wrong


def collect_without_a_second_look(patch: pytest.MonkeyPatch) -> None:
    """The collector deletes what it retired, and looks at neither leases nor tags again."""
    used = policy._used
    patch.setattr(policy, "_used", lambda status: "" if status.state == retirement.RETIRED else used(status))
    patch.setattr(deletion, "_look_again", lambda *_: None)


def look_before_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A user looks whether its version is retired, then writes its lease."""
    renew = Lease.renew

    def look_then_write(self: Lease) -> None:
        retirement.cancel_retirement(self.store, self.version, "", builds=self.purpose == leases.BUILD)
        renew(self)

    patch.setattr(Lease, "renew", look_then_write)
    patch.setattr(leases, "cancel_retirement", lambda *_, **__: None)


def leases_without_un_retiring(patch: pytest.MonkeyPatch) -> None:
    """A user of a retired version relies on its lease alone."""
    cancel = retirement.cancel_retirement

    def lean(store: Store, version: str, reason: str, *, builds: bool = False) -> None:
        entry = retirement.newest_retirement(store, version)
        if entry is None or entry.state != retirement.RETIRED:
            cancel(store, version, reason, builds=builds)

    patch.setattr(leases, "cancel_retirement", lean)


def build_during_a_deletion(patch: pytest.MonkeyPatch) -> None:
    """A build writes the files of a version while a collector deletes them."""
    patch.setattr(retirement, "_may_use", lambda *_, builds: builds)


def tag_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    """A mover looks whether the version is retired, and names it without a lease."""

    class Unleased:
        def __init__(self, store: Store, version: str, *_: object) -> None:
            retirement.cancel_retirement(store, version, "")

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    patch.setattr(leases, "leasing", Unleased)  # tags.py imports it when a tag moves


@pytest.mark.parametrize(
    ("mutate", "user", "state"),
    [
        (collect_without_a_second_look, "leased reader", "published"),
        (look_before_the_lease, "leased reader", "published"),
        (leases_without_un_retiring, "leased reader", "retired"),
        pytest.param(build_during_a_deletion, "builder", "retired", marks=full_only),  # the last that is found
        (tag_without_a_lease, "mover", "published"),
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
        for seed in range(0, 6000, 2):  # with one collector
            Scenario(files, seed, [user], state).run()
    SUMMARY.append(f"{mutate.__name__}: found by interleaving {seed}")
