"""The gangs that a job's pods may come in; light, for a step is declared by it where no cluster is."""

from enum import StrEnum


class Gang(StrEnum):
    """Whose scheduler admits the minimum of a job all at once or not at all."""

    NONE = "none"
    """Nobody's: pods come one by one, as Kubernetes' own scheduler finds room."""
    VOLCANO = "volcano"
    KOORDINATOR = "koordinator"
    COSCHEDULING = "coscheduling"

    @property
    def has_queues(self) -> bool:
        """Can a job be put into one of several queues?"""
        return self in (Gang.VOLCANO, Gang.KOORDINATOR)
