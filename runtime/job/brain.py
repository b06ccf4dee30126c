"""The brain: events in, decisions out, in virtual or real time.

`handle` turns an event into records, to be journaled in this order before they are acted on, and applies them to the
state: `on_event` records what an event means, `settle` what follows from the new state. Everything else (seats,
directives, desired nodes) is a function of the state. Only signs of life are not journaled.
"""

from collections.abc import Mapping, Sequence

from everstep.runtime.job.events import Event, HeartbeatSeen
from everstep.runtime.job.liveness import is_blocked, stands_still
from everstep.runtime.job.on_event import handle_event
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import MasterAway
from everstep.runtime.job.settle import next_deadline, settle
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.state import State
from everstep.runtime.job.transaction import Refused, Transaction, UnknownNode, WriteManifest, WriteRecord
from everstep.runtime.protocol.training import Training

__all__ = ["Brain", "Refused", "UnknownNode", "WriteManifest", "WriteRecord"]


class Brain:
    """Decides for one job. It has no clock: each event brings its time, and time that runs backwards is held."""

    def __init__(self, spec: JobSpec, state: State, now: float) -> None:
        self.spec = spec
        self.reason = state.reason
        """What the job waits for now, in one line."""
        self._transaction = Transaction(spec, state, now)
        self._deadline: float | None = None
        self._away_s = 0.0
        """Seconds that this master was suspended and that no record reports yet."""

    @property
    def state(self) -> State:
        """The state after all events so far."""
        return self._transaction.state

    def handle(self, event: Event, now: float) -> list[WriteRecord | WriteManifest]:
        """Decide what follows from the event. Raises Refused, with no decision made, for a request that is invalid."""
        decisions, refusals = self.handle_together((event,), now)
        for refusal in refusals.values():
            raise refusal
        return decisions

    def handle_together(
        self, events: Sequence[Event], now: float
    ) -> tuple[list[WriteRecord | WriteManifest], Mapping[int, Refused]]:
        """Decide what follows from events of one moment, such as the joins of ten thousand survivors: what each means,
        and then once what follows from the new state.

        Returns also, by their places among the events, why some are refused; those change nothing.
        """
        tx, refusals = self._transaction, dict[int, Refused]()
        self._advance(now)
        tx.decisions, old_state = [], tx.state
        if self._away_s and old_state.phase is not JobPhase.ENDED:
            tx.record(MasterAway(time=tx.now, away_s=self._away_s))
        for place, event in enumerate(events):
            before, decided = tx.state, len(tx.decisions)
            try:
                handle_event(tx, event)
            except Refused as refusal:
                tx.state, refusals[place] = before, refusal
                del tx.decisions[decided:]
        if len(refusals) == len(events):
            tx.state, tx.decisions = old_state, []
            return [], refusals
        self._away_s = 0.0
        if tx.state is old_state and all(map(self._changes_nothing, events)):
            return [], refusals
        verdict = settle(tx)
        self.reason = verdict.reason
        self._deadline = next_deadline(tx, verdict)
        return tx.decisions, refusals

    def _advance(self, now: float) -> None:
        """Time passes."""
        tx = self._transaction
        before, tx.now = tx.now, max(now, tx.now, tx.state.time)
        if tx.now - before > self.spec.patience.silence_s / 2:
            # The master itself was suspended: silence proves nothing about the nodes.
            tx.liveness.rearm(tx.state, tx.now)
            self._away_s = tx.now - before

    def _changes_nothing(self, event: Event) -> bool:
        """Whether the event is one of the many heartbeats that only show that a node trains."""
        if not isinstance(event, HeartbeatSeen):
            return False
        if self._deadline is not None and self._transaction.now >= self._deadline:
            return False
        state = self.state
        beat = event.heartbeat
        is_still = stands_still(beat, self.spec) or is_blocked(beat, self.spec)
        is_slow = bool(beat.paces and self._transaction.liveness.slow_nodes.stragglers)
        return not (beat.silent or is_still or is_slow or state.hang or state.nodes.any_leaving())

    def training(self, role: str) -> Training:
        """What a node of that role that has no seat needs to know of the running round."""
        state, liveness = self.state, self._transaction.liveness
        if state.phase is not JobPhase.RUNNING or state.round is None:
            return Training(0)
        members = state.round.members
        slots = {name: sum(member.slots for member in each) for name, each in members.items()}
        nodes, workers = sum(map(len, members.values())), sum(slots.values())
        trains, survives = liveness.all_train(state), liveness.survives(role)
        return Training(state.round.number, nodes, workers, slots.get(role, 0), trains, survives)

    def next_deadline(self) -> float | None:
        """When to send the next Tick (Unix time); None: never.

        While nodes live it is never far away, so a long gap between two events means that the master was suspended.
        """
        return self._deadline
