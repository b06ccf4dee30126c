"""What the agent needs of the keeper of this node's staged shards (everstep.runtime.checkpoint.node.keeper is one)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from everstep.runtime.protocol.messages import Holding, Seat
from everstep.runtime.protocol.worker_link import Fetched, Segment, Slot, Staged


class Place(NamedTuple):
    """Some bytes of shared memory."""

    path: str
    offset: int
    size: int


class Keeper(Protocol):
    """Slots in shared memory, their digests, the copy to the store and the state that a round starts from.

    Methods that may block are called in a thread: announce, acquire, fetched, flush, holdings, keep,
    committed, persist_newest. What cannot be done raises RuntimeError or OSError with a line for the worker.
    """

    def new_round(self, seat: Seat) -> None:
        """A round begins: start to fetch `seat.restore` in a thread."""
        ...

    def announce(self, local_rank: int, capacity: int, sharded: bool = False) -> Segment:
        """Make room for a worker's slots; `sharded`: what it stages is its own rank's."""
        ...

    def acquire(self, local_rank: int, iteration: int) -> Slot:
        """Blocks until a slot may be overwritten."""
        ...

    def try_acquire(self, local_rank: int, iteration: int) -> Slot | None:
        """A slot that may be overwritten now, or None. Never blocks."""
        ...

    def staged(self, local_rank: int, message: Staged) -> None:
        """The commit of a stage. Never blocks."""
        ...

    def interval(self) -> tuple[int, str]:
        """Iterations between two states that go to the store, and why so many; 0 for never. Does not block."""
        ...

    def worker_died(self, local_rank: int) -> None:
        """What it was writing is free again."""
        ...

    def fetched(self, local_rank: int) -> Fetched:
        """Blocks until the state that the round starts from lies in this node's memory."""
        ...

    def near(self, local_rank: int) -> Place | None:
        """Where that will be, if its bytes are right; None while nobody knows. Never blocks."""
        ...

    def flush(self, local_rank: int, iteration: int) -> str:
        """Blocks until the iteration is committed in the store; the key of its manifest."""
        ...

    def persist_newest(self) -> None:
        """Copy what is staged to the store now, whoever persists this round. Does not wait for the copy."""
        ...

    def committed(self, holding: Holding, manifest: str) -> None:
        """The master made the checkpoint visible."""
        ...

    def holdings(self, address: str) -> tuple[Holding, ...]:
        """What can be served now."""
        ...

    def keep(self, source: Holding, came: Callable[[], None]) -> None:
        """Fetch a copy of a peer's shard into this node's memory. Blocks until it is held; `came` is called, in that
        thread, whenever it gets on."""
        ...

    def open_shard(self, round: int, iteration: int, shard: int) -> AbstractContextManager[memoryview]:  # noqa: A002
        """A held shard's bytes, pinned while open. Raises KeyError when it is not held."""
        ...

    def beacon(self, local_rank: int) -> tuple[int, str]:
        """Iteration and phase that the worker shows."""
        ...

    def changes(self, local_rank: int) -> tuple[int, float]:
        """How often that worker has changed its beacon, and the Unix time of the last change; zeros before it did."""
        ...

    def close(self) -> None:
        """Remove all shared memory."""
        ...
