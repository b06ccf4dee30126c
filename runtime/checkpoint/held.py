"""The segments of a node: files and slots by local rank. The keeper holds its lock around every call."""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from runtime.checkpoint.segment import SegmentFile, rounded
from runtime.checkpoint.slots import Identity, SlotTable


def segment_prefix(job: str, node: str) -> str:
    """What the names of a node's shared memory begin with; a local rank follows."""
    return f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-{node}-"


@dataclass(eq=False)
class Held:
    """One segment and what its slots are worth."""

    local_rank: int
    file: SegmentFile
    table: SlotTable
    sharded: bool = False
    """Does its worker stage its own rank's shard?"""

    def data(self, slot: int) -> memoryview:
        """The bytes of the whole state in a slot."""
        return self.file.slot(slot)[: self.table[slot].size]

    def idle(self) -> bool:
        """Nothing worth keeping, nobody at work."""
        return not self.table.whole() and not self.table.writing()


@dataclass
class Segments:
    """All segments of a node. A rank has a second one for a while when its state changed its size: the first keeps what
    can be restored until the second holds a whole state."""

    directory: Path
    prefix: str
    slots: int
    _held: dict[int, list[Held]] = field(default_factory=dict)
    _made: int = 0

    def reclaim(self) -> None:
        """Remove what an earlier incarnation of this node left."""
        for path in self.directory.glob(f"{self.prefix}*"):
            if re.fullmatch(r"\d+(\.\d+)?", path.name.removeprefix(self.prefix)):
                path.unlink(missing_ok=True)

    def all(self) -> list[Held]:
        """Every segment."""
        return [held for every in self._held.values() for held in every]

    def current(self, local_rank: int) -> Held | None:
        """The segment that the rank writes to."""
        return next(reversed(self._held.get(local_rank, ())), None)

    def serve(self, round: int, iteration: int, shard: int) -> tuple[Held, int] | None:  # noqa: A002
        """Where a shard lies whole, as those name it who do not know how many there are."""
        for held in self.all():
            for slot in held.table.whole():
                identity = held.table[slot].identity
                if identity and identity[:3] == (round, iteration, shard):
                    return held, slot
        return None

    def find(self, identity: Identity, local_rank: int | None = None) -> tuple[Held, int] | None:
        """Where a state lies whole."""
        for held in self.all():
            slot = held.table.find(identity)
            if slot is not None and local_rank in (None, held.local_rank):
                return held, slot
        return None

    def ensure(self, local_rank: int, capacity: int) -> Held:
        """A segment with slots of exactly that capacity (0: a control page only). Raises SegmentError: no room."""
        held = self.current(local_rank)
        if held is not None and held.file.capacity == rounded(capacity):
            return held
        if held is not None and held.idle():
            self._held[local_rank].remove(held)
            held.file.unlink()
        self._made += 1
        suffix = f".{self._made}" if self._held.get(local_rank) else ""
        path = self.directory / f"{self.prefix}{local_rank}{suffix}"
        file = SegmentFile.create(path, self.slots if capacity else 0, capacity)
        made = Held(local_rank, file, SlotTable(self.slots))
        self._held.setdefault(local_rank, []).append(made)
        return made

    def forget_earlier(self, local_rank: int) -> None:
        """The current segment holds a whole state: let go of the earlier ones that nobody reads.

        Of a sharded state it must hold two: when this rank has staged the second, every rank has staged the first.
        """
        *earlier, current = self._held[local_rank]
        if current.sharded and len(current.table.whole()) < 2:
            return
        kept = [held for held in earlier if any(held.table[slot].pins for slot in range(len(held.table)))]
        for held in earlier:
            if held not in kept:
                held.file.unlink()
        self._held[local_rank] = [*kept, current]

    def unlink(self) -> None:
        """Remove every file."""
        for held in self.all():
            held.file.unlink()
        self._held.clear()
