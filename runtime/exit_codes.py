"""Exit codes of steps, verbs and nodes. They say whether another try may help.

A program that a signal ended counts as 128 + the signal's number, as in a shell.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The retryStrategy of Everstep's templates retries every code but FAILED, BAD_INPUT and NO_QUORUM three times. It
    retries a pod that was evicted, deleted or lost with its machine without limit."""

    DONE = 0
    FAILED = 1
    """The training's own error."""
    BAD_INPUT = 2
    """Nothing was written."""
    NO_QUORUM = 3
    """Too few nodes are healthy. From a single node: the node is not fit."""
    TRY_AGAIN = 75
    """The request was right, but a machine or a service failed (EX_TEMPFAIL of sysexits)."""
    DIVERGED = 76
    """From a worker: the loss is not finite right after a restore (see `everstep.runtime.job.fault_policy`)."""
    FENCED = 77
    """From the master of a launched job: another master has taken over. Do not start a new one."""
