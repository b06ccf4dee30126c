"""What one round of a node starts from: brought into its own memory, from the nearest place that has the right bytes.

State that is the same on every rank is one shard, which all local ranks read. Of a sharded state each local rank gets
the shard of its rank; where another number of ranks cut it, workers read what they need themselves (see `reshard`).
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from everstep.runtime.checkpoint.errors import KeeperError, RestoreError, SegmentError
from everstep.runtime.checkpoint.node.segments import Held, Segments
from everstep.runtime.checkpoint.node.slots import Identity
from everstep.runtime.checkpoint.shard.digests import check_shard
from everstep.runtime.checkpoint.shard.fetch import describe, fetch, refusal
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.keeper import Place
from everstep.runtime.protocol.messages import Flaw, Holding, Refusal, Restore, Seat
from everstep.runtime.protocol.worker_link import Fetched
from everstep.runtime.store import Store

UNREACHABLE_S = 30.0
"""So long a source that does not answer is asked again, when no other one gives the right bytes."""
_AGAIN_S = 1.0
_PARALLEL = 4
"""Shards of local ranks that are fetched at once: one connection alone is slower than a network."""
_log = logging.getLogger("everstep.checkpoint")


class Around(NamedTuple):
    """What the keeper lends to each beginning."""

    changed: threading.Condition
    """The keeper's lock."""
    segments: Segments
    store: Store
    credentials: Credentials
    node: str
    workers: int
    """Local ranks of this node."""
    digest: Callable[[Held, int], str]
    """Of a pinned slot, computed when it is not known."""
    send: Callable[[int, Held, int], None]
    """Have a whole shard of that local rank copied into a peer's memory."""
    refuse: Callable[[tuple[Refusal, ...]], None]
    """Tell the master that none of these sources gives what the round begins from: it begins another."""
    unreachable_s: float = UNREACHABLE_S


class Beginning:
    """Fetches in a thread of its own. `answer`, `staged` and `end` are called holding the keeper's lock."""

    def __init__(self, seat: Seat, around: Around) -> None:
        self.seat = seat
        self.error = ""
        """Why this node cannot start, whatever the sources have."""
        self.over = False
        self._around = around
        self._shown = (around.credentials.token, around.credentials.authority)
        self._near: dict[int | None, Place] = {}
        """What is being looked at, by local rank; None: for all of them."""
        self._fetched: dict[int | None, Fetched] = {}
        self._pinned: dict[int, tuple[Held, int]] = {}
        self._stages: dict[int, int] = {}
        threading.Thread(target=self._run, name="everstep-fetch", daemon=True).start()

    def answer(self, local_rank: int) -> Fetched | None:
        """What that worker shall read; None while it is not there."""
        return self._fetched.get(local_rank) or self._fetched.get(None)

    def near(self, local_rank: int) -> Place | None:
        """Where in memory that is, or will be if its bytes are right."""
        return self._near.get(local_rank) or self._near.get(None)

    def staged(self, local_rank: int) -> int:
        """A worker of this round has staged; returns how often it has in this round.

        What it started from is kept by its place in the slots from then on; of a sharded state from the second time on:
        then all ranks have staged the first.
        """
        stages = self._stages[local_rank] = self._stages.get(local_rank, 0) + 1
        if self._is_past(local_rank):
            self._unpin(local_rank)
        return stages

    def end(self) -> None:
        """Another round begins."""
        self.over = True
        for local_rank in list(self._pinned):
            self._unpin(local_rank)

    def _is_past(self, local_rank: int) -> bool:
        """Is what that rank started from not needed any more? A worker that never asked for it may be that far before
        it is there."""
        restore = self.seat.restore
        needed = 1 if restore is None or restore.sources[0].shards == 1 else 2
        return self.over or self._stages.get(local_rank, 0) >= needed

    def _unpin(self, local_rank: int) -> None:
        if local_rank in self._pinned:
            self._around.segments.unpin(*self._pinned.pop(local_rank))

    def _run(self) -> None:
        restore = self.seat.restore
        if restore is None:
            self._begun(None, Fetched("", 0, 0, 0, 0, "", ""))
            return
        shards = restore.sources[0].shards
        if shards == 1:
            self._bring(restore, 0, None)
        elif shards == self.seat.world_size:
            own = range(self._around.workers)
            with ThreadPoolExecutor(min(_PARALLEL, len(own)), "everstep-fetch") as threads:
                for _ in threads.map(lambda rank: self._bring(restore, self.seat.first_rank + rank, rank), own):
                    pass
        else:
            place = ("", 0, 0, restore.round, restore.iteration)
            told = Fetched(*place, "", f"{shards} shards", restore.sources, *self._shown)
            self._begun(None, told)

    def _bring(self, restore: Restore, shard: int, reader: int | None) -> None:
        """One shard for this local rank; None: for all."""
        sources = [source for source in restore.sources if source.shard == shard]
        identity = Identity(restore.round, restore.iteration, shard, restore.sources[0].shards)
        what = f"iteration {identity.iteration} of round {identity.round}"
        what += f", shard {shard} of {identity.shards}" if identity.shards > 1 else ""
        refused: list[Refusal] = []
        try:
            found = self._from_memory(identity, reader, refused) or self._patiently(identity, reader, sources, refused)
        except (SegmentError, KeeperError) as error:
            with self._around.changed:
                self.error = f"{what} cannot be restored: {error}"
                self._around.changed.notify_all()
            return
        why = [refusal.why for refusal in refused]
        for line in why:
            _log.warning("restoring %s: %s", what, line)
        if found is None:
            self._around.refuse(tuple(refused))  # Workers wait until the master has begun another round.
            return
        held, slot, source = found
        facts = held.table[slot]
        place, of = _place(held, slot, facts.size), (restore.round, restore.iteration)
        everywhere = restore.sources if identity.shards > 1 else ()
        told = Fetched(*place, *of, facts.digest, source, everywhere, *self._shown, "; ".join(why))
        self._begun(reader, told, (held, slot))

    def _begun(self, reader: int | None, fetched: Fetched, pinned: tuple[Held, int] | None = None) -> None:
        with self._around.changed:
            self._fetched[reader] = fetched
            if pinned:
                self._pinned[reader or 0] = pinned
                if self._is_past(reader or 0):
                    self._unpin(reader or 0)
                elif reader is not None:
                    self._around.send(reader, *pinned)
            self._around.changed.notify_all()

    def _from_memory(
        self, identity: Identity, reader: int | None, refused: list[Refusal]
    ) -> tuple[Held, int, str] | None:
        """The shard in own memory, pinned, when its bytes are still what they were."""
        changed = self._around.changed
        while True:
            with changed:
                found = self._around.segments.find(identity)
                if found is None:
                    return None
                held, slot = found
                held.table.pin(slot)
                self._near[reader] = _place(held, slot, held.table[slot].size)
            try:
                check_shard(held.data(slot), self._around.digest(held, slot))
                return held, slot, "memory"
            except RestoreError as error:
                refused.append(self._own(identity, f"own memory: {error}"))
            with changed:
                self._around.segments.unpin(held, slot)
                changed.wait_for(lambda held=held, slot=slot: not held.table[slot].pins)
                if held.table.find(identity) == slot:
                    held.table.drop(slot)

    def _own(self, identity: Identity, why: str) -> Refusal:
        return Refusal(identity.round, identity.iteration, why, node=self._around.node, shard=identity.shard)

    def _patiently(
        self, identity: Identity, reader: int | None, sources: list[Holding], refused: list[Refusal]
    ) -> tuple[Held, int, str] | None:
        """From elsewhere, asking those again that do not answer; not for ever."""
        until, left, last = time.monotonic() + self._around.unreachable_s, sources, list[Refusal]()
        while True:
            last = []
            if found := self._from_elsewhere(identity, reader, left, last):
                refused += last
                return found
            refused += (one for one in last if one.flaw is Flaw.DAMAGED)
            again = [one for one in last if one.flaw is not Flaw.DAMAGED]
            left = [source for source in left if any(one.covers(source) for one in again)]
            with self._around.changed:
                if not left or self.over or time.monotonic() >= until:
                    refused += again
                    return None
                self._around.changed.wait_for(lambda: self.over, _AGAIN_S)

    def _from_elsewhere(
        self, identity: Identity, reader: int | None, sources: list[Holding], refused: list[Refusal]
    ) -> tuple[Held, int, str] | None:
        """The shard from the first source that gives the right bytes, in a slot of that local rank, pinned. Raises
        SegmentError, KeeperError: it has no room here."""
        around = self._around
        for source in sources:
            if source.node == around.node and not source.key:
                if not any(one.covers(source) for one in refused):
                    refused.append(self._own(identity, "own memory: it is held no more"))
                continue
            held, slot = self._slot_for(identity, reader, source.size)
            try:
                held.file.populate(held.file.slot_offset(slot), source.size)
                fetch(source, held.file.slot(slot)[: source.size], around.store, around.credentials)
            except RestoreError as error:
                refused.append(refusal(source, error))
                with around.changed:
                    held.table.abandon(slot)
                    around.changed.notify_all()
                continue
            with around.changed:
                held.table.stage(slot, source.size)
                whole = held.table.find(identity)
                assert whole is not None
                held.table.pin(whole)
                if source.digest:  # What came was checked against it.
                    held.table.digested(whole, source.digest)
                around.changed.notify_all()
            around.digest(held, whole)
            return held, whole, describe(source)
        return None

    def _slot_for(self, identity: Identity, reader: int | None, size: int) -> tuple[Held, int]:
        """A slot to fetch into, of a segment whose slots are made for this very shard."""
        with self._around.changed:
            held: Held | None = None
            while not self.over:
                if held is not None and held.broken:
                    raise SegmentError(held.broken)
                held = self._around.segments.to_fetch_into(reader or 0, size, identity.shards > 1)
                slot = held.table.acquire(identity)
                if slot is not None:
                    self._near[reader] = _place(held, slot, size)
                    return held, slot
                self._around.changed.wait()
            raise KeeperError("the round ended while its state was fetched")


def _place(held: Held, slot: int, size: int) -> Place:
    return Place(str(held.file.path), held.file.slot_offset(slot), size)
