"""The gang schedulers that a job's pods may use. A step declares one without a cluster, so imports are light."""

from enum import StrEnum


class Gang(StrEnum):
    """The scheduler that admits the minimum of a job all at once or not at all."""

    NONE = "none"
    """None: pods come one by one, as Kubernetes' own scheduler finds room."""
    VOLCANO = "volcano"
    KOORDINATOR = "koordinator"
    COSCHEDULING = "coscheduling"
    KUEUE = "kueue"
    """No scheduler: it holds the pods back until a queue has the quota for all of them."""

    @property
    def has_queues(self) -> bool:
        """Can a job be put into one of several queues?"""
        return self in (Gang.VOLCANO, Gang.KOORDINATOR, Gang.KUEUE)
