"""What an agent is given beside its settings, and how it ends."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everstep.runtime.agent.client import JobEnd
from everstep.runtime.agent.output import Outputs
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.protocol.messages import Holding, Refusal, Seat


@dataclass(frozen=True)
class Dependencies:
    """What an agent is given beside its settings."""

    credentials: Credentials
    make_keeper: Callable[[Callable[[Holding], None], Callable[[tuple[Refusal, ...]], None]], Keeper]
    """Gets what to call when a shard is in the store, and when no source gives what a round begins from."""
    find_master: Callable[[], tuple[int, str] | None]
    """The newest master's epoch and address, where that is known; blocking."""
    make_outputs: Callable[[Path], Outputs]
    """Gets the agent's private folder."""
    keep_log: Callable[[str, bytes], None]
    """Puts a named log of this node where it outlives the node; blocking."""
    say: Callable[[str], None]
    """One line for whoever watches this node."""
    note: Callable[[str], None]
    """One line of the usual course of things."""
    on_seat: Callable[[Seat, float], None] = lambda seat, seconds: None
    """A place in a round was given, after so many seconds of asking."""
    on_start: Callable[[int, int], None] = lambda local_rank, pid: None
    """A worker runs."""


class Leave(Exception):  # noqa: N818 (a name that reads well in `raise`)
    """The agent ends, with this exit code."""

    def __init__(self, code: int, reason: str, told: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.told = told


@dataclass(frozen=True)
class Ending:
    """Why and how the agent ended."""

    code: int
    """0 as told, 2 not understood or not allowed, 75 no master any more, 128 + the signal that ended it."""
    reason: str
    by_master: bool = False
    """The master said so."""
    job: JobEnd | None = None
    """How the job ended, where it did and the master told."""
