"""What one agent says to its master, and what it makes of the answers: pure, so that tests drive it in virtual time.

It numbers joins and heartbeats, knows which round the agent is in and which directives it has carried out, and tells
what a directive asks for. The agent does so.
"""

from typing import Any

import msgspec

from everstep.runtime.protocol.messages import Action, Directive, Dumped, Finished, Heartbeat, Join, Leaving, Seat


class MasterDialogue:
    """Of one agent."""

    def __init__(self, node: str, life: int) -> None:
        """`life`: the Unix time in ms."""
        self.node = node
        self.life = life
        self.round = 0
        """The last one it took a seat in."""
        self.seen = 0
        """The number of the last directive that it carried out."""
        self.waits = False
        """It has asked for a seat and has none."""
        self._joins = self._beats = 0

    def next_join(self, draft: Join) -> Join:
        """Ask for a seat in a later round. One at a time: the next when this one was answered."""
        self.waits, self._joins = True, self._joins + 1
        return msgspec.structs.replace(
            draft, node=self.node, after_round=self.round, life=self.life, number=self._joins
        )

    def take_seat(self, seat: Seat) -> None:
        """The round begins for this node."""
        self.round, self.waits = seat.round, False

    def next_heartbeat(self, **shown: Any) -> Heartbeat:
        """The next sign of life, with what else a Heartbeat has."""
        self._beats += 1
        return Heartbeat(
            self.node, self.round, seen=self.seen, life=self.life, number=self._beats, join=self._joins,
            waits=self.waits, **shown,
        )  # fmt: skip

    def finished_message(self, round_: int) -> Finished:
        """All workers ended that round well."""
        return Finished(self.node, round_)

    def leaving_message(self, reason: str, grace_s: float) -> Leaving:
        """The node will go."""
        return Leaving(self.node, reason, grace_s, self.life)

    def dumped_message(self, directive: Directive) -> Dumped:
        """The stacks that it asked for are written."""
        return Dumped(self.node, self.round, directive.number)

    def accept(self, directive: Directive | None) -> Action:
        """What is to be done now; CONTINUE for nothing new.

        Where the master takes another agent for this node's, this one joins again with a higher life: whichever of the
        two is there in truth is the one that says so.
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
        """Does the end of that round end the one that this node is in?"""
        return round_ >= self.round
