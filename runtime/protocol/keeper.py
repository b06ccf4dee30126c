"""The interface of the keeper of a node's staged shards; everstep.runtime.checkpoint.node.keeper implements it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from everstep.runtime.protocol.holdings import CopyRequest, Holding
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import Fetched, Segment, Slot, Staged


class MemoryRange(NamedTuple):
    """A range of bytes in a shared memory file."""

    path: str
    offset: int
    size: int


class Keeper(Protocol):
    """Owns the slots in shared memory, their digests, their copies in the store, and the state a round starts from.

    These methods may block and are called in a thread: announce, reserve, acquire, wait_for_restore, flush, holdings,
    copy_shard, note_commit, persist_newest. On failure they raise RuntimeError or OSError with one line for the worker.
    """

    def new_round(self, seat: Seat) -> None:
        """Begin a round: start fetching `seat.restore` in a thread."""
        ...

    def announce(self, local_rank: int, capacity: int, is_sharded: bool = False) -> Segment:
        """Allocate a worker's slots of `capacity` bytes; `is_sharded`: the worker stages its own shard of the state."""
        ...

    def reserve(self, capacity: int) -> None:
        """Allocate the slots of the first local rank before its worker runs. Returns when all have their memory, or
        there is none for more."""
        ...

    def acquire(self, local_rank: int, iteration: int) -> Slot:
        """Block until a slot may be overwritten, and return it."""
        ...

    def try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        """Return a slot that may be overwritten now, or None. Never blocks."""
        ...

    def commit_stage(self, local_rank: int, stage: Staged) -> None:
        """The worker's slot is complete: offer it, copy it to the peers, persist it if it is due. Never blocks."""
        ...

    def want_stages(self) -> None:
        """Ask the workers to stage each iteration from now on, however rarely they do, if all ranks have the same
        state. Never blocks."""
        ...

    def interval(self) -> tuple[int, str]:
        """Iterations from one persisted state to the next (0: never), and the reason. Never blocks."""
        ...

    def worker_died(self, local_rank: int) -> None:
        """Free the slot that the worker was writing."""
        ...

    def wait_for_restore(self, local_rank: int) -> Fetched:
        """Block until the state that the round starts from is in this node's memory."""
        ...

    def expected_range(self, local_rank: int) -> MemoryRange | None:
        """Where that state will be if its bytes are verified; None while this is unknown. Never blocks."""
        ...

    def flush(self, local_rank: int, iteration: int) -> str:
        """Block until the iteration is committed in the store, and return the key of its manifest."""
        ...

    def persist_newest(self) -> None:
        """Start copying the staged state to the store, even if another node persists this round. Does not wait for
        the copy."""
        ...

    def drain(self) -> None:
        """Block until nothing is on its way to the store any more, and the callback for each persisted shard was
        called. Ask when the workers have ended."""
        ...

    def note_commit(self, holding: Holding, manifest: str) -> None:
        """Note that the master has committed the checkpoint."""
        ...

    def note_certified(self, evidence: Evidence) -> None:
        """Note that the master has compared that state, and it is sound. Never blocks."""
        ...

    def holdings(self, address: str) -> tuple[Holding, ...]:
        """The shards that this node can serve now from `address`."""
        ...

    def copy_shard(self, request: CopyRequest, on_progress: Callable[[], None]) -> None:
        """Fetch a copy of a peer's shard into this node's memory, blocking until it is complete. Calls `on_progress` in
        a thread whenever memory or bytes have arrived."""
        ...

    def open_shard(self, round: int, iteration: int, shard: int) -> AbstractContextManager[memoryview]:  # noqa: A002
        """The bytes of a shard in memory, pinned while open. Raises KeyError if it is not there."""
        ...

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """The iteration and phase in the worker's beacon."""
        ...

    def changes(self, local_rank: int) -> tuple[int, float]:
        """How often that worker has changed its beacon, and the Unix time of the last change; zeros before any."""
        ...

    def close(self) -> None:
        """Remove all shared memory."""
        ...
