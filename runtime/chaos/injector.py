"""What an injector is, and the kinds of faults."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    """What happens. The value is its name in flags."""

    CRASH = "crash"
    """A training process is killed (SIGKILL)."""
    FORK_SERVER = "fork-server"
    """The process that a node's training processes are forked from is killed."""
    NODE = "node"
    """A node is killed with all its processes; a pod is deleted by force."""
    PREEMPT = "preempt"
    """A node is asked to end (SIGTERM); a pod is deleted with its grace period."""
    EVICT = "evict"
    """A pod is evicted by the API, as `kubectl drain` does it."""
    FREEZE = "freeze"
    """A node's processes are stopped (SIGSTOP) and continued after `seconds`."""
    SLOW = "slow"
    """A node's training processes are stopped for `share` of the time, for `seconds`."""
    FAULTY = "faulty"
    """A node fails the check before the training: its measurements are killed until the node is lost."""
    NETWORK = "network"
    """All packets of a node are lost, for `seconds` or until the node is gone."""
    OOM = "oom"
    """A node's memory is filled until the kernel kills one of its processes."""
    MEMORY = "memory"
    """A node's memory is filled to `share` of its limit, for `seconds`."""
    CPU = "cpu"
    """Each core that a node may use is busy for `share` of the time, for `seconds`."""
    RESIZE = "resize"
    """The job gets one node more, and when that trains, one less again."""
    MASTER = "master"
    """The train step's own process is killed; its pod is deleted by force."""
    STORE = "store"
    """The job cannot read or write its store, for `seconds`."""
    DISK = "disk"
    """The file system of the job's store has no room left, for `seconds`."""
    EVERYTHING = "everything"
    """The train step and all nodes are killed at once."""
    CLOCK = "clock"
    """The wall clock of a node's processes is an hour ahead, for `seconds`."""
    SLOW_DISK = "slow-disk"
    """A node's processes read and write 1 MiB a second on the disk of the job's store, for `seconds`."""
    CONTAINER = "container"
    """The first process of a pod's container is told to end, from inside; the pod stays."""
    CORDON = "cordon"
    """A node's machine takes no new pods, and its pod is deleted; uncordoned after `seconds`."""
    TAINT = "taint"
    """A node's machine gets a NoExecute taint that evicts its pod, removed after `seconds`."""


OF_THE_JOB = (Kind.RESIZE, Kind.MASTER, Kind.STORE, Kind.DISK, Kind.EVERYTHING)
"""What happens to no node in particular."""
BY_CHAOSBLADE = (Kind.PREEMPT, Kind.FORK_SERVER, Kind.CPU, Kind.MEMORY, Kind.NETWORK)
"""What ChaosBlade's operator can do."""
_NO_DISK = "the store of pods is no disk of their machine"
NOT_IN_PODS: Mapping[Kind, str] = {
    Kind.DISK: _NO_DISK,
    Kind.SLOW_DISK: _NO_DISK,
    Kind.FREEZE: "no process can stop the first one of its container; `slow` stops the training processes",
}
"""What cannot be done to pods, and why."""


@dataclass(frozen=True)
class Fault:
    """A fault that is to happen."""

    kind: Kind
    node: str = ""
    """Empty: one of the nodes that train, by chance."""
    seconds: float = 10.0
    share: float = 0.9
    """From 0 to 1."""


@dataclass(frozen=True)
class FiredFault:
    """A fault that has happened."""

    kind: Kind
    node: str
    """Empty for a fault that is not of one node."""
    time: float
    """When it began (Unix time)."""
    evidence: str
    """What was seen of it, in one line."""


class NotPossibleError(RuntimeError):
    """This kind of fault cannot be injected here: one line that says why, and what would be needed."""


class NotFiredError(RuntimeError):
    """It was tried, and there is no sign that it took effect. This is a failure of the experiment."""


class Injector(Protocol):
    """Injects faults into one job. Used from one event loop."""

    def refusal(self, kind: Kind) -> str:
        """Why this kind cannot be injected here, in one line; empty if it can."""
        ...

    async def prepare(self, kind: Kind) -> None:
        """Do what has to be done before the nodes start; runs until it is cancelled."""
        ...

    async def inject(self, fault: Fault) -> FiredFault:
        """Inject it, and undo what does not undo itself. Raises NotPossibleError, NotFiredError."""
        ...
