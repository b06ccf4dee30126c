"""The state that a round of this node starts from, brought into its memory.

A state that is the same on every rank is one shard, which all local ranks read. Of a sharded state each local rank gets
the shard of its rank. If it was sharded over another number of ranks, workers read the parts they need themselves (see
`reshard`).

Invariant: what a round starts from is not overwritten while it is needed, which is until a newer state is complete on
all ranks.
"""

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core.actions import Location, StartState
from everstep.runtime.checkpoint.node.core.events import CheckEnded, FetchEnded, WaitForRestore
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.core.peer_copies import SentCopies
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segments
from everstep.runtime.checkpoint.node.core.shard_restore import ShardRestore, Stage
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.holdings import Restore
from everstep.runtime.protocol.rounds import Seat

PARALLEL = 4
"""Shards that are fetched at once: a single connection is slower than a network."""
_OVERWRITTEN = "the state that this round started from is no longer in memory: load it before the first save"
_ROUND_ENDED = "the round ended while its state was fetched"


class RoundRestore:
    """The restore of the present round."""

    def __init__(self, tx: Transaction, segments: Segments, options: KeeperOptions, sent_copies: SentCopies) -> None:
        self._tx, self._segments, self._options, self._sent_copies = tx, segments, options, sent_copies
        self._shards: list[ShardRestore] = []
        self._cancelled: list[ShardRestore] = []
        """Of earlier rounds, with work under way."""
        self._answers: dict[int | None, StartState] = {}
        """By local rank; None: for all."""
        self._error = ""
        """Why this node cannot start, whatever the sources have."""
        self._waiting: list[WaitForRestore] = []
        self._pins: dict[int, Pin] = {}
        """What a local rank started from and still needs."""
        self._stages: dict[int, int] = {}
        """Stages of this round, by local rank."""
        self._needed_stages = 1
        """Stages of a rank after which it does not need what it started from."""

    def begin(self, seat: Seat) -> None:
        """A round begins: start to restore, and end the restore of the one before."""
        self.end_round()
        restore = seat.restore
        shards = restore.sources[0].shards if restore else 1
        # When a rank stages a sharded state for the second time, all ranks have staged the first.
        self._needed_stages = 1 if shards == 1 else 2
        if restore is None:
            self._answers[None] = StartState()
        elif shards == 1:
            self._restore_shard(restore, 0, None)
        elif shards == seat.world_size:
            for local_rank in range(self._options.workers):
                self._restore_shard(restore, seat.first_rank + local_rank, local_rank)
        else:
            self._answers[None] = StartState(None, restore.round, restore.iteration, shards=restore.sources)

    def end_round(self) -> None:
        """End every wait. What is being read or written goes on to its end."""
        for question in self._waiting:
            self._tx.refuse(question.ticket, KeeperError(_ROUND_ENDED))
        for local_rank in list(self._pins):
            self._unpin(local_rank)
        for shard in self._shards:
            shard.cancel()
        self._cancelled += [shard for shard in self._shards if shard.work is not None]
        self._shards, self._waiting, self._error = [], [], ""
        self._answers.clear()
        self._stages.clear()

    def _restore_shard(self, restore: Restore, shard: int, reader: int | None) -> None:
        identity = Identity(restore.round, restore.iteration, shard, restore.sources[0].shards)
        sources = [source for source in restore.sources if source.shard == shard]
        self._shards.append(ShardRestore(self._tx, self._segments, self._options, identity, sources, reader))

    def expected_location(self, local_rank: int) -> Location | None:
        """Where the state is, or will be if its bytes are right."""
        for shard in self._shards:
            location = shard.location
            if shard.reader in (local_rank, None) and location and self._segments.get(location.segment):
                return location
        return None

    def wait(self, event: WaitForRestore) -> None:
        """A worker wants the state."""
        self._waiting.append(event)

    def advance(self) -> bool:
        """Go on with every shard and answer every question that can be answered. Returns whether there was one."""
        has_moved = False
        for shard in [shard for shard in self._shards if shard.stage is not Stage.END][:PARALLEL]:
            try:
                has_moved |= shard.advance()
            except SegmentError as error:
                self._error = f"{shard} cannot be restored: {error}"
                shard.cancel()
            if shard.stage is Stage.READY:
                self._start_from(shard)
                has_moved = True
        return has_moved | self._answer_waiting()

    def next_deadline(self) -> float | None:
        """When sources are asked again."""
        return min((shard.retry_at for shard in self._shards if shard.stage is Stage.REST), default=None)

    def end_check(self, event: CheckEnded) -> None:
        """A shard in memory was compared with its digest."""
        for shard in [*self._cancelled, *self._shards]:
            if shard.work == event.work:
                shard.end_check(event.flaw)
        self._cancelled = [shard for shard in self._cancelled if shard.work is not None]

    def end_fetch(self, event: FetchEnded) -> None:
        """A shard has arrived, or not."""
        for shard in [*self._cancelled, *self._shards]:
            if shard.work == event.work:
                shard.end_fetch(event.refusal)
        self._cancelled = [shard for shard in self._cancelled if shard.work is not None]

    def note_stage(self, local_rank: int) -> int:
        """A worker has staged: it may not need what it started from any more. Returns its stages in this round."""
        stages = self._stages[local_rank] = self._stages.get(local_rank, 0) + 1
        if stages >= self._needed_stages:
            self._unpin(local_rank)
        return stages

    def _start_from(self, shard: ShardRestore) -> None:
        """The shard is in memory and right: workers may read it. A worker that never asks for it may have staged
        enough before."""
        seat, of, local_rank = self._segments.seat, shard.identity, shard.reader or 0
        assert seat is not None
        assert seat.restore is not None
        why = "; ".join(refusal.why for refusal in shard.refused)
        pin = shard.hand_over()
        shards = seat.restore.sources if of.shards > 1 else ()
        state = StartState(pin.location, of.round, of.iteration, pin.digest, shard.source, shards, why)
        self._answers[shard.reader] = state
        if self._stages.get(local_rank, 0) < self._needed_stages:
            self._pins[local_rank] = self._segments.pin(pin.segment, pin.slot, Reader.START)
            if shard.reader is not None:
                self._sent_copies.send(local_rank, pin.segment, pin.slot)
        self._segments.unpin(pin)

    def _answer_waiting(self) -> bool:
        questions, self._waiting = self._waiting, []
        for question in questions:
            state = self._answers.get(question.local_rank) or self._answers.get(None)
            if state and self._is_overwritten(state):
                self._tx.refuse(question.ticket, KeeperError(_OVERWRITTEN))
            elif state:
                self._tx.answer(question.ticket, state)
            elif self._error:
                self._tx.refuse(question.ticket, KeeperError(self._error))
            else:
                self._waiting.append(question)
        return len(self._waiting) < len(questions)

    def _is_overwritten(self, state: StartState) -> bool:
        """Whether those bytes are gone, as they may be once the workers have staged enough."""
        if state.location is None:
            return False
        segment, slot = self._segments.get(state.location.segment), state.location.slot
        identity = segment.table[slot].identity if segment and slot in segment.table.complete() else None
        return identity is None or identity[:2] != (state.round, state.iteration)

    def _unpin(self, local_rank: int) -> None:
        if pin := self._pins.pop(local_rank, None):
            self._segments.unpin(pin)
