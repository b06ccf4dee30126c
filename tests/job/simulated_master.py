"""A master of `simulated`: what `runtime.master` does around the brain. One batch of records is written after another,
by compare and set; nobody is answered, and nothing is done, before what it follows from is written.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everstep.runtime.job import assignments
from everstep.runtime.job.brain import Brain, Refused, UnknownNode, WriteManifest, WriteRecord
from everstep.runtime.job.events import (
    DeletionDue,
    Event,
    HeartbeatSeen,
    Joined,
    LeaveAnnounced,
    ManifestWritten,
    NodeChecked,
    NodeCreated,
    NodeFinishedRound,
    NodeGone,
    Opened,
    RankDisconnected,
    ShardStored,
    StacksDumped,
    Tick,
    WorkerExited,
)
from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import (
    MasterClaimed,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Record,
    RoundBroken,
    RoundFormed,
)
from everstep.runtime.job.replicas import desired_nodes
from everstep.runtime.job.spec import Placement
from everstep.runtime.job.state import State, restore_point
from everstep.runtime.protocol.messages import Action, Heartbeat, Join

if TYPE_CHECKING:
    from tests.job.simulated import Simulation

JOIN_POLL_S, HEARTBEAT_POLL_S, LOOK_AGAIN_S = 20.0, 5.0, 5.0
_STIRRING = (NodeJoined, NodeLost, NodeReleased, RoundBroken, RoundFormed)


class Violation(AssertionError):  # noqa: N818 (a name that reads well in `raise`)
    """What must never happen."""


class Segments:
    """The journal: a segment is made by one `create`."""

    def __init__(self) -> None:
        self.segments: list[list[Record]] = []
        self.states: dict[int, State] = {}
        """What a master took the first n segments to lead to."""
        self.masters: list[Master] = []
        """Who claimed the job, in this order."""

    def create(self, number: int, records: list[Record]) -> bool:
        if number != len(self.segments):
            return False
        self.segments.append(records)
        return True


class Master:
    """One process with a brain. Dead or fenced, it says nothing more."""

    def __init__(self, sim: "Simulation", skew: float) -> None:
        journal = sim.journal
        self.sim, self.alive, self.frozen_until, self.skew = sim, True, 0.0, skew
        state = fold(record for segment in journal.segments for record in segment)
        claim = MasterClaimed(time=max(sim.now + skew, state.time), epoch=state.epoch + 1, address="m:1")
        journal.create(len(journal.segments), [claim])
        journal.masters.append(self)
        self.number, self.state = len(journal.segments), fold([claim], state)
        self.brain = Brain(sim.plan.spec, self.state, sim.now + skew)
        self.epoch = claim.epoch
        self._batch: list[Record] = []
        self._crowd: list[tuple[Event, Callable[[Refused | None], None]]] = []
        self._manifests: list[WriteManifest] = []
        self._decided = self._durable = 0
        self._writing: tuple[int, list[Record], State, int, list[WriteManifest]] | None = None
        self._waiters: list[tuple[int, Callable[[State], bool], float, Callable[[], None]]] = []
        self._alarm = float("inf")
        self._seen: set[str] = set()
        self._met: set[str] = set()
        self.reconcile()
        self.feed(Opened())
        self._look()

    def feed(self, event: Event) -> None:
        """Raises Refused."""
        for refusal in self._feed_all([event]).values():
            raise refusal

    def feed_soon(self, event: Event, told: Callable[[Refused | None], None] = lambda _: None) -> None:
        """With what else comes before the crowd is fed."""
        if not self._crowd:
            self.sim.at(self.sim.random.random() / 50, self, self._feed_crowd)
        self._crowd.append((event, told))

    def _feed_crowd(self) -> None:
        crowd, self._crowd = self._crowd, []
        refusals = self._feed_all([event for event, _ in crowd])
        for place, (_, told) in enumerate(crowd):
            told(refusals.get(place))

    def _feed_all(self, events: Sequence[Event]) -> Mapping[int, Refused]:
        decisions, refusals = self.brain.handle_together(events, self.sim.now + self.skew)
        for decision in decisions:
            if isinstance(decision, WriteRecord):
                self._batch.append(decision.record)
                self._decided += 1
            else:
                self._manifests.append(decision)
        self._write()
        deadline = self.brain.next_deadline()
        if deadline is not None and (at := max(deadline - self.skew, self.sim.now) + 1e-6) < self._alarm:
            self._alarm = at
            self.sim.at(at - self.sim.now, self, self._tick)
        return refusals

    def _tick(self) -> None:
        self._alarm = float("inf")
        self.feed(Tick())

    def _write(self) -> None:
        if self._writing is None and (self._batch or self._manifests):
            self._writing = self.number, self._batch, self.brain.state, self._decided, self._manifests
            self._batch, self._manifests = [], []
            self.sim.at(self.sim.latency(), self, self._on_written)

    def _on_written(self, is_repeated: bool = False) -> None:
        assert self._writing
        number, records, state, decided, manifests = self._writing
        if records and not is_repeated and not self.sim.journal.create(number, records):
            self.alive = False  # Fenced.
            return
        self._writing = None
        self.number += bool(records)
        self.state, self._durable = state, decided
        self.sim.journal.states[self.number] = state
        self._answer()
        for wish in manifests:
            self.sim.at(self.sim.latency(), self, self._commit, wish)
        if records:
            self.reconcile()
        if any(isinstance(record, _STIRRING) for record in records):
            self.sim.stir()
        self._write()

    def stop(self, chance: float) -> None:
        """It dies. What it was writing may have become durable."""
        self.alive = False
        if self._writing and chance < 0.5 and self._writing[1]:
            self.sim.journal.create(self._writing[0], self._writing[1])

    def _commit(self, wish: WriteManifest) -> None:
        place = wish.round, wish.iteration
        there = [(h.shard, h.shards) for h in wish.shards if (*place, h.shard, h.shards) in self.sim.store]
        if len(there) < len(wish.shards):
            return  # Deleted, for a newer one is there.
        if [shard for shard, _ in there] != list(range(len(there))) or {of for _, of in there} != {len(there)}:
            raise Violation(f"a commit of {place} with the shards {there}")
        self.sim.committed.add(place)
        self.feed(ManifestWritten(*place, "manifest"))
        whole = sorted(place for place, checkpoint in self.state.checkpoints.items() if checkpoint.manifest)
        if len(whole) > 2:
            begun = restore_point(self.state)
            self.feed(DeletionDue(tuple(old for old in whole[:-2] if old != begun)))
            self._when(lambda _: True, self._tidy)

    def _tidy(self) -> None:
        checkpoints_kept, newest = self.state.checkpoints, max(self.sim.committed)
        self.sim.store = {key for key in self.sim.store if key[:2] in checkpoints_kept or key[:2] > newest}

    def reconcile(self) -> None:
        """The platform's nodes become those that are wanted."""
        sim, spec = self.sim, self.sim.plan.spec
        if spec.placement is Placement.JOINED:
            return
        observed = {name for name, agent in sim.agents.items() if agent.exists}
        self._seen |= observed
        want = {node.name: node for node in desired_nodes(self.state, spec, sim.now + self.skew)}
        for name, node in want.items():
            if name in self._seen:
                continue
            if not node.create:
                self.feed(NodeGone(name, "it ended while no master was running"))
            elif self.confirm():
                self._seen.add(name)
                sim.start_agent(name, node.role, node.host)
                self.feed_soon(NodeCreated(name))
        for name in sorted(observed - want.keys()):
            if name in self.state.nodes and self.confirm():
                sim.agents[name].end(143)

    def confirm(self) -> bool:
        """Is it still the job's master? One that is not ends."""
        self.alive &= self.number + (self._writing is not None) >= len(self.sim.journal.segments)
        return self.alive

    def _look(self) -> None:
        if self.confirm():
            self.reconcile()
            self.sim.at(LOOK_AGAIN_S, self, self._look)

    def take(self, message: Any, answer: Callable[[int, Any], None]) -> None:
        """A request arrives."""

        def joined(refusal: Refused | None) -> None:
            if refusal:
                answer(409 if isinstance(refusal, UnknownNode) else 400, None)
            else:
                self._poll(message.node, self._joined(message), JOIN_POLL_S, lambda: self._seat(message, answer))

        try:
            match message:
                case Join():
                    self.feed_soon(Joined(message), joined)
                case Heartbeat():
                    self.feed(HeartbeatSeen(message))
                    limit = HEARTBEAT_POLL_S if message.node in self._met and not message.telemetry else 0.0
                    directive = self._directive(message)
                    self._poll(message.node, directive, limit, lambda: self._direct(message, answer), durable=False)
                case _:
                    self.feed(_EVENTS[type(message).__name__](message))
                    self._when(lambda _: True, lambda: answer(200, None))
        except UnknownNode:
            answer(409, None)
        except Refused:
            answer(400, None)

    def _joined(self, join: Join) -> Callable[[State], bool]:
        return lambda state: (
            _leaves(state, join) or assignments.seat_for(state, join) is not None or assignments.is_spent(state, join)
        )

    def _seat(self, join: Join, answer: Callable[[int, Any], None]) -> None:
        seat = assignments.seat_for(self.state, join)
        if seat:
            self._met.add(join.node)
        answer(200 if seat else 409 if _leaves(self.state, join) else 204, seat)

    def _directive(self, beat: Heartbeat) -> Callable[[State], bool]:
        def ready(state: State) -> bool:
            directive = assignments.directive(state, beat.node, beat.life)
            return directive is not None and (directive.number > beat.seen or directive.life > beat.life)

        return ready

    def _direct(self, beat: Heartbeat, answer: Callable[[int, Any], None]) -> None:
        directive = assignments.directive(self.state, beat.node, beat.life)
        if directive:
            self._met.add(beat.node)
        answer(200 if directive else 204, directive)

    def _poll(
        self, node: str, ready: Callable[[State], bool], limit_s: float, then: Callable[[], None], durable: bool = True
    ) -> None:
        self._when(ready, then, limit_s, self._decided if durable else 0)

    def _when(
        self, ready: Callable[[State], bool], then: Callable[[], None], limit_s: float = 1e9, after: int | None = None
    ) -> None:
        """Once all that was decided by now (or by `after`) is durable, and `ready`, or the time is over."""
        after = self._decided if after is None else after
        if self._durable >= after and (limit_s <= 0 or ready(self.state)):
            then()
            return
        self._waiters.append((after, ready, self.sim.now + limit_s, then))
        if limit_s < 1e9:
            self.sim.at(limit_s, self, self._answer)

    def _answer(self) -> None:
        now, state, durable = self.sim.now, self.state, self._durable
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if durable >= waiter[0] and (now >= waiter[2] or waiter[1](state)):
                waiter[3]()
            else:
                self._waiters.append(waiter)


_EVENTS: dict[str, Callable[[Any], Event]] = {
    "WorkerExit": WorkerExited,
    "Disconnected": RankDisconnected,
    "Finished": NodeFinishedRound,
    "Persisted": ShardStored,
    "Leaving": LeaveAnnounced,
    "Dumped": StacksDumped,
    "SelfTest": NodeChecked,
}


def _leaves(state: State, join: Join) -> bool:
    directive = assignments.directive(state, join.node, join.life)
    return directive is not None and directive.action is Action.LEAVE
