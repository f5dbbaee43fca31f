"""Run several actors on one store, one operation at a time, in an order that a seed determines."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping

from tests.builders.memory_store import SteppingStore
from tokenloom.storage.stores.store import Store

Actor = Callable[[Store], object]


class _Thread(threading.Thread):
    """An actor, which runs only while the scheduler lets it."""

    def __init__(self, name: str, actor: Actor, schedule: Schedule) -> None:
        super().__init__(name=name, daemon=True)
        self._actor, self._schedule = actor, schedule
        self.may_go, self.is_over = threading.Semaphore(0), False
        self.result: object = None

    def run(self) -> None:
        """Run the actor, and keep what it returned or raised."""
        self.may_go.acquire()
        try:
            self.result = self._actor(self._schedule.store)
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            self.result = error
        self.is_over = True
        self._schedule.arrived.release()


class Schedule:
    """One interleaving: the actors take turns, and in each do a random number of operations.

    Args:
        store: the store that the actors share.
        seed: determines the order. For a fifth of the seeds the actors change after few operations.
        longest: the most operations in a row of each actor, by its name.
    """

    def __init__(self, store: Store, seed: int, longest: Mapping[str, int]) -> None:
        self.store = SteppingStore(store, self._step)
        self.arrived = threading.Semaphore(0)
        self.trace: list[str] = []
        self._random = random.Random(seed)
        self._longest = dict.fromkeys(longest, 3) if seed % 5 == 4 else longest

    def run(self, actors: Mapping[str, Actor]) -> dict[str, object]:
        """Run all actors to their ends; return what each returned or raised."""
        threads = [_Thread(name, actor, self) for name, actor in actors.items()]
        for thread in threads:
            thread.start()
        self._random.shuffle(threads)
        turn = 0
        while living := [thread for thread in threads if not thread.is_over]:
            current = living[turn % len(living)]
            turn += 1
            for _ in range(self._random.randint(1, self._longest[current.name])):
                current.may_go.release()
                assert self.arrived.acquire(timeout=60), f"stuck: {self.trace[-5:]}"
                if current.is_over:
                    break
        for thread in threads:
            thread.join()
        return {thread.name: thread.result for thread in threads}

    def _step(self, operation: str) -> None:
        thread = threading.current_thread()
        if isinstance(thread, _Thread):
            self.arrived.release()
            thread.may_go.acquire()
            self.trace.append(f"{thread.name}: {operation}")
