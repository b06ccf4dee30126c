"""A keeper for tests: slots in ordinary files, nothing in the store. Run as a program: an agent that has it."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.dependencies import Dependencies
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.settings import settings_of
from everstep.runtime.checkpoint.stored.reports import leave_report
from everstep.runtime.journal.journal import find_master
from everstep.runtime.net.tls import credentials_of
from everstep.runtime.platform.debris import memory_prefix
from everstep.runtime.protocol.holdings import CopyRequest, Holding, Tier
from everstep.runtime.protocol.keeper import MemoryRange
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import Fetched, Segment, Slot, Staged
from everstep.runtime.store import open_store


class FakeKeeper:
    """Holds the newest stage of each worker; commits at once when asked to persist."""

    def __init__(self, job: str, node: str, on_persisted: Callable[[Holding], None]) -> None:
        self.path = Path("/dev/shm") / f"{memory_prefix(job, node)}0"
        self.node = node
        self.on_persisted = on_persisted
        self.seat: Seat | None = None
        self.held: dict[tuple[int, int, int], bytes] = {}
        self.manifests: dict[int, str] = {}
        self.died: list[int] = []
        self.drained = 0
        self.wanted = False
        self.certified: list[Evidence] = []

    def new_round(self, seat: Seat) -> None:
        self.seat = seat

    def announce(self, local_rank: int, capacity: int, is_sharded: bool = False) -> Segment:
        self.path.write_bytes(bytes(capacity))
        return Segment(str(self.path), 1, capacity)

    def reserve(self, capacity: int) -> None:
        self.announce(0, capacity)

    def acquire(self, local_rank: int, iteration: int) -> Slot:
        return Slot(0, 0, 0.25)

    def try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        return None if iteration == 13 else Slot(0, 0, 0.0)

    def commit_stage(self, local_rank: int, stage: Staged) -> None:
        if stage.slot:
            raise RuntimeError("there is one slot only")
        assert self.seat is not None
        self.held[local_rank, self.seat.round, stage.iteration] = self.path.read_bytes()[: stage.size]
        if stage.persist:
            self.on_persisted(Holding(self.seat.round, stage.iteration, key="k"))

    def want_stages(self) -> None:
        self.wanted = True

    def interval(self) -> tuple[int, str]:
        return 50, "every 50 iterations"

    def worker_died(self, local_rank: int) -> None:
        self.died.append(local_rank)

    def wait_for_restore(self, local_rank: int) -> Fetched:
        if self.seat is None or self.seat.restore is None:
            return Fetched("", 0, 0, 0, 0, "", None)
        return Fetched("/some/where", 0, 0, self.seat.restore.round, self.seat.restore.iteration, "", Tier.MEMORY)

    def expected_range(self, local_rank: int) -> MemoryRange | None:
        return MemoryRange("/some/where", 0, 0) if self.seat and self.seat.restore else None

    def flush(self, local_rank: int, iteration: int) -> str:
        return f"manifest-{iteration}"

    def persist_newest(self) -> None:
        for _, round_, iteration in self.held:
            self.on_persisted(Holding(round_, iteration, key="newest"))

    def drain(self) -> None:
        self.drained += 1

    def note_commit(self, holding: Holding, manifest: str) -> None:
        self.manifests[holding.iteration] = manifest

    def note_certified(self, evidence: Evidence) -> None:
        self.certified.append(evidence)

    def holdings(self, address: str) -> tuple[Holding, ...]:
        return tuple(
            Holding(round_, iteration, node=self.node, address=address, index=index)
            for index, round_, iteration in self.held
        )

    def copy_shard(self, request: CopyRequest, on_progress: Callable[[], None]) -> None:
        raise RuntimeError("no room")

    @contextmanager
    def open_shard(self, round: int, iteration: int, shard: int) -> Iterator[memoryview]:  # noqa: A002
        yield memoryview(self.held[shard, round, iteration])

    def beacon(self, local_rank: int) -> tuple[int, str]:
        return (0, "")

    def changes(self, local_rank: int) -> tuple[int, float]:
        return (0, 0.0)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


async def _run() -> int:
    settings, _ = settings_of(sys.argv[1:], os.environ)
    os.environ["EVERSTEP_NODE"] = settings.node
    store = open_store(settings.store)
    around = Dependencies(
        credentials=credentials_of(settings.token, settings.job, tls=settings.tls),
        make_keeper=lambda callbacks, *_: FakeKeeper(settings.job, settings.node, callbacks),
        find_master=lambda: find_master(store, settings.job),
        make_outputs=lambda folder: NodeLog(1, folder),
        keep_log=lambda name, data: store.put(f"jobs/{settings.job}/logs/{settings.node}/{name}", data),
        leave_report=partial(leave_report, store),
        say=lambda text: print(text, flush=True),
        note=lambda text: print(text, flush=True),
    )
    agent = Agent(settings, around, random.Random())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.leave)
    return (await agent.run()).code


if __name__ == "__main__":
    os._exit(asyncio.run(_run()))
