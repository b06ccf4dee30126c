"""The brain: events in, decisions out, in virtual or real time.

`handle` turns an event into records (to be journaled in this order before anything is done about them) and advances
the state by them: `reports` says what an event means, `consequences` what follows from the state it leads to.
Everything else (seats, directives, nodes wanted) follows from a state. Only signs of life need no journal.
"""

from everstep.runtime.job.events import Event, HeartbeatSeen
from everstep.runtime.job.liveness import stands_still
from everstep.runtime.job.on_event import handle_event
from everstep.runtime.job.records import MasterAway
from everstep.runtime.job.settle import next_deadline, settle
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.state import JobPhase, State
from everstep.runtime.job.transaction import Refused, Transaction, UnknownNode, WriteManifest, WriteRecord

__all__ = ["Brain", "Refused", "UnknownNode", "WriteManifest", "WriteRecord"]


class Brain:
    """Decides for one job. Never asks for the time: each event brings its own, and a clock that jumps back is held."""

    def __init__(self, spec: JobSpec, state: State, now: float) -> None:
        self.spec = spec
        self.reason = state.reason
        """Why nothing more is being done right now, in one line."""
        self._case = Transaction(spec, state, now)
        self._deadline: float | None = None
        self._away_s = 0.0
        """For how long this master was away, while no record says so."""

    @property
    def state(self) -> State:
        """Where all events so far have led to."""
        return self._case.state

    def handle(self, event: Event, now: float) -> list[WriteRecord | WriteManifest]:
        """What follows from the event. Raises Refused (and decides nothing) for what may not be asked."""
        case = self._case
        before, case.now = case.now, max(now, case.now, case.state.time)
        if case.now - before > self.spec.patience.silence_s / 2:
            # The master itself was away (stopped, suspended): silence proves nothing about the nodes.
            case.liveness.rearm(case.state, case.now)
            self._away_s = case.now - before
        case.decisions = []
        known = case.state
        try:
            if self._away_s and known.phase is not JobPhase.ENDED:
                case.record(MasterAway(time=case.now, away_s=self._away_s))
            handle_event(case, event)
        except Refused:
            case.state, case.decisions = known, []
            raise
        self._away_s = 0.0
        if case.state is known and isinstance(event, HeartbeatSeen) and self._changes_nothing(event):
            return []
        verdict = settle(case)
        self.reason = verdict.reason
        self._deadline = next_deadline(case, verdict)
        return case.decisions

    def _changes_nothing(self, event: HeartbeatSeen) -> bool:
        """Most heartbeats: the node lives, trains, and nobody waits for just that."""
        if self._deadline is not None and self._case.now >= self._deadline:
            return False
        state = self.state
        return not (stands_still(event.heartbeat, self.spec) or state.hang or state.nodes.any_leaving())

    def next_deadline(self) -> float | None:
        """When to send a Tick although nothing happened; None: never.

        While nodes live it is never far away, so that a gap between two calls tells that the master was away.
        """
        return self._deadline
