"""Why a worker, a node or a round ended, what follows from it, and how a job ended: the words of the journal."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a worker, a node or a round ended. `fault_policy.TABLE` says what follows from each."""

    KILLED = "killed"
    USER_ERROR = "user error"
    OOM = "out of memory"
    HARDWARE = "hardware"
    DIVERGED = "no number after a restore"
    DAMAGED = "checkpoint passed over"
    UNSOUND = "unsound state"
    NODE_LOST = "node lost"
    START_FAILED = "start failed"
    NO_HEARTBEAT = "no heartbeat"
    NEVER_JOINED = "never joined"
    SUSPECTED = "silent to its neighbours"
    STRAGGLER = "straggler"
    HANG = "hang"
    DISCONNECTED = "connections failed"
    PREEMPTED = "preempted"
    REJOINED = "joined again"
    RESTARTED = "restarted with another"
    GROW = "grow"
    SCALED = "scaled"


CALM = (Reason.GROW, Reason.SCALED)
"""A round that ends for these has lost no rank."""
UNEXPLAINED = (Reason.USER_ERROR, Reason.DISCONNECTED)
"""A round that ends for these may have a cause that is told later: the end of another rank, or of a node."""


class Decision(StrEnum):
    """What follows from a fault."""

    RESTART = "restart in place"
    """The node joins the next round."""
    RELAUNCH = "relaunch"
    """The node leaves; another takes its place."""
    RELAUNCH_ELSEWHERE = "relaunch on another host"
    """As RELAUNCH, on another host if there is one."""
    EXCLUDE = "relaunch on another host, avoid this one"
    """As RELAUNCH_ELSEWHERE, and its host gets no more nodes of this job."""
    HAND_OVER = "hand over, then leave"
    """A replacement is requested at once; the node trains on until that has joined or its grace period is nearly
    over."""
    DUMP = "write all stacks, then restart, fail or only report"
    MEMBERSHIP = "form a round with other nodes"
    STEP_BACK = "begin from an older checkpoint"
    REPORT = "report"
    GIVE_UP = "give the node up"
    """It leaves and is not replaced."""
    FAIL = "fail the job"


class JobResult(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    NO_QUORUM = "no_quorum"
