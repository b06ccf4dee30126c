"""What an agent needs besides its settings, what others may read of it, and how it ends."""

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from everstep.runtime.agent.client import JobEnd
from everstep.runtime.agent.forkserver_process import ForkServerProcess
from everstep.runtime.agent.master_watch import NextMaster
from everstep.runtime.agent.output import Outputs
from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Seat


@dataclass(frozen=True)
class Dependencies:
    """What an agent needs besides its settings."""

    credentials: Credentials
    make_keeper: Callable[
        [Callable[[Holding], None], Callable[[tuple[Refusal, ...]], None], Callable[[Evidence], None]], Keeper
    ]
    """Called with the callbacks for a persisted shard, for a restore that failed at every source, and for the digests
    of a state that is to be compared."""
    find_master: Callable[[], tuple[int, str] | None]
    """Returns the newest master's epoch and address, None if unknown. Blocking."""
    make_outputs: Callable[[Path], Outputs]
    """Called with the agent's private folder."""
    keep_log: Callable[[str, bytes], None]
    """Writes a named log of this node to where it outlives the node. Blocking."""
    leave_report: Callable[[Holding], None]
    """Leaves in the store that a shard is complete there, for a master to come. Blocking. Raises StoreError."""
    say: Callable[[str], None]
    """Prints a line that people should see."""
    note: Callable[[str], None]
    """Prints a line about normal operation."""
    on_seat: Callable[[Seat, float], None] = lambda seat, seconds: None
    """Called with a new seat and the seconds it took to get it."""
    on_start: Callable[[int, int], None] = lambda local_rank, pid: None
    """Called with the local rank and process id of a started worker."""
    next_master: NextMaster | None = None
    """Makes the next master if the job's does not answer. None: it is made again where it was."""
    fork_server: ForkServerProcess | None = None
    """One that was started for the script already."""


@dataclass
class AgentStatus:
    """What the owner of an agent may read while it runs."""

    checked_s: float = 0.0
    """Seconds that this node's check took; 0: no check was made."""
    failures: list[WorkerEnd] = field(default_factory=list)
    """Workers of this node that failed in its last round, in order of failure."""
    seat: Seat | None = None
    """The newest seat."""


@dataclass(frozen=True)
class LocalResources:
    """The machine's resources that an agent uses."""

    address: str
    """HOST:PORT of its server."""
    folder: Path
    """The node's private folder: its socket, the workers' error files."""
    threads: Executor
    """Runs blocking calls."""
    chance: random.Random


class Leave(Exception):  # noqa: N818 (a name that reads well in `raise`)
    """Ends the agent with this exit code."""

    def __init__(self, code: int, reason: str, by_master: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.by_master = by_master


@dataclass(frozen=True)
class Ending:
    """Why and how the agent ended."""

    code: int
    """0 left as the master said, 2 rejected by the master, 3 not fit to train, 75 without a master or a place in
    time, 128 + the signal that ended it."""
    reason: str
    by_master: bool = False
    """The master told the agent to leave."""
    job: JobEnd | None = None
    """How the job ended, if it did and the master reported it."""
