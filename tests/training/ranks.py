"""The ranks of a world in one process, one thread each, of which one runs at a time: they share random generators."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Ranks:
    """They take turns at each exchange."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._turns = [threading.Semaphore(0) for _ in range(world)]
        self._told: list[list[Sequence[int]]] = [[] for _ in range(world)]
        self._errors: list[BaseException] = []

    def exchange(self, rank: int) -> Callable[[Sequence[int], Sequence[int]], Sequence[int]]:
        """That rank's exchange, as of `everstep.dataset_streams`."""

        def exchange(wanted: Sequence[int], read: Sequence[int]) -> Sequence[int]:
            number = len(self._told[rank])
            self._told[rank].append(read)
            self._next(rank)
            self._turns[rank].acquire()
            return [sum(counts) for counts in zip(*(told[number] for told in self._told), strict=True)]

        return exchange

    def run(self, work: Callable[[int], T]) -> list[T]:
        """What `work` returns on each rank. Raises what one of them raises."""
        results: dict[int, T] = {}

        def rank_of(rank: int) -> None:
            self._turns[rank].acquire()
            try:
                results[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001 - raised again by `run`
                self._errors.append(error)
            finally:
                self._next(rank)

        threads = [threading.Thread(target=rank_of, args=(rank,), daemon=True) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return [results[rank] for rank in range(self.world)]

    def _next(self, rank: int) -> None:
        self._turns[(rank + 1) % self.world].release()
