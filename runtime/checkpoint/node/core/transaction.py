"""One call of `handle`: its time, and the actions decided so far. All parts of the core share it."""

from itertools import count

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core.actions import Action, Answer, Refuse, Reply


class Transaction:
    """One at a time; `begin` starts the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self.actions: list[Action] = []
        self._work_numbers = count()

    def begin(self, now: float) -> None:
        """Start with no actions at that time, in seconds."""
        self.now, self.actions = now, []

    def act(self, action: Action) -> None:
        """Decide on an action."""
        self.actions.append(action)

    def answer(self, ticket: int, reply: Reply = None) -> None:
        """Answer a question."""
        self.act(Answer(ticket, reply))

    def refuse(self, ticket: int, error: KeeperError | SegmentError) -> None:
        """Answer a question with an error."""
        self.act(Refuse(ticket, error))

    def number_work(self) -> int:
        """Return the number of a new work; none is used twice."""
        return next(self._work_numbers)
