"""The agent's side of the protocol with its master, without IO, so that tests drive it in virtual time.

It numbers joins and heartbeats, tracks the agent's round and the directives it has carried out, and returns the action
of each new directive. The agent carries the action out.
"""

from typing import Any

import msgspec

from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.protocol.holdings import Refusal
from everstep.runtime.protocol.messages import (
    Action,
    Directive,
    Dumped,
    Finished,
    Heartbeat,
    Join,
    Leaving,
    Unrestored,
    WorkerExit,
)
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.watch.hang_culprit import Standing

_LONGEST_WHY, _MOST_REFUSALS = 1000, 64


class MasterDialogue:
    """The protocol state of one agent."""

    def __init__(self, node: str, life: int) -> None:
        """`life`: the agent's start as Unix time in ms."""
        self.node = node
        self.life = life
        self.round = 0
        """The last round in which it took a seat."""
        self.seen = 0
        """The number of the last directive that was carried out."""
        self.waits = False
        """Whether a join is not answered yet."""
        self.is_known = False
        """Whether a join was answered: the master has a place for the node."""
        self._joins = self._beats = 0

    def next_join(self, draft: Join) -> Join:
        """The next join: asks for a seat in a later round. Send it only after the previous join was answered."""
        self.waits, self._joins = True, self._joins + 1
        return msgspec.structs.replace(
            draft, node=self.node, after_round=self.round, life=self.life, number=self._joins
        )

    def take_seat(self, seat: Seat) -> None:
        """Begin the seat's round."""
        self.round, self.waits = seat.round, False

    def next_heartbeat(self, **signals: Any) -> Heartbeat:
        """The next heartbeat; `signals` are its fields from the beacons and telemetry."""
        self._beats += 1
        return Heartbeat(
            self.node, self.round, seen=self.seen, life=self.life, number=self._beats, join=self._joins,
            waits=self.waits, **signals,
        )  # fmt: skip

    def finished_message(self, round_: int) -> Finished:
        """The report that all workers finished that round."""
        return Finished(self.node, round_)

    def leaving_message(self, reason: str, grace_s: float) -> Leaving:
        """The announcement that the node leaves within `grace_s`."""
        return Leaving(self.node, reason, grace_s, self.life)

    def dumped_message(self, directive: Directive, standings: tuple[Standing, ...] = ()) -> Dumped:
        """The report that the stacks this directive asked for are written, and where the ranks stand."""
        return Dumped(self.node, self.round, directive.number, standings)

    def accept(self, directive: Directive | None) -> Action:
        """The action to carry out now; CONTINUE if there is nothing new.

        If the master takes another agent for this node's, this one joins again with a higher life: an agent that still
        sends messages is the live one.
        """
        if directive is None:
            return Action.CONTINUE
        if directive.life > self.life:
            self.life = directive.life + 1
            return Action.REJOIN
        if directive.number <= self.seen:
            return Action.CONTINUE
        self.seen = directive.number
        return directive.action

    def is_over(self, round_: int) -> bool:
        """Whether the end of that round ends the round that this node is in."""
        return round_ >= self.round


def fault_message(
    node: str,
    seat: Seat,
    end: WorkerEnd,
    failed: frozenset[int],
    iteration: int,
    oom: bool,
    kernel: tuple[str, ...],
) -> WorkerExit:
    """The report of the first worker of a round that failed, at its iteration. `failed`: all local ranks that did."""
    return WorkerExit(
        node=node,
        round=seat.round,
        rank=seat.first_rank + end.local_rank,
        local_rank=end.local_rank,
        exit_code=end.exit_code,
        iteration=iteration,
        error=end.error,
        oom=oom,
        kernel=kernel,
        failed=tuple(seat.first_rank + local_rank for local_rank in sorted(failed)),
    )


def unrestored_message(node: str, round_: int, refusals: tuple[Refusal, ...]) -> Unrestored:
    """The report of sources that could not restore a state, within a message's bounds."""
    few = tuple(
        msgspec.structs.replace(refusal, why=refusal.why[:_LONGEST_WHY]) for refusal in refusals[:_MOST_REFUSALS]
    )
    return Unrestored(node, round_, few)
