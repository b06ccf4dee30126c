"""Exit codes of steps, verbs and nodes: they tell whoever started one whether to try again.

A program that a signal ended counts as 128 + the signal's number, as in a shell.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Argo's retryStrategy of our templates retries all but FAILED, BAD_INPUT and NO_QUORUM."""

    DONE = 0
    FAILED = 1
    """The training's own error."""
    BAD_INPUT = 2
    """Nothing was written."""
    NO_QUORUM = 3
    """Too few nodes are healthy; of one node: it is not fit."""
    TRY_AGAIN = 75
    """Nothing was wrong with what was asked: a machine or a service failed (EX_TEMPFAIL of sysexits)."""
    DIVERGED = 76
    """Of a worker: the loss is not finite right after a restore (see `everstep.runtime.job.fault_policy`)."""
    FENCED = 77
    """Of a launched job's master: another master has taken the job over, and no new one is to be started."""
