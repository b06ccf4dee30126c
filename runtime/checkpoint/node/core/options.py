"""The configuration of a node's keeper."""

from dataclasses import dataclass

UNREACHABLE_S = 30.0
"""A source that does not answer is asked again for this long, if no other source supplies the right bytes."""
STORE_PATIENCE_S = 60.0
"""A store that fails is asked again for this long, if somebody waits for the state. The master retries for longer."""
DEATH_S, RESTORE_S = 3.0, 30.0
"""Nothing goes to the store for so long after a worker's death, and after the round that follows begins, so that the
store takes no bandwidth from the restore. The first stage of that round, and whoever waits for the store, end both."""


@dataclass(frozen=True)
class KeeperOptions:
    """The configuration of a node's keeper."""

    job: str
    node: str
    persist_interval: int
    """Iterations between two states that go to the store."""
    overhead: float = 0.0
    """Share of the training time; if set, the interval follows from measurements (see `persist_interval`)."""
    workers: int = 1
    """Local ranks of this node."""
    persists: bool = True
    """Whether other nodes can read the store."""
    unreachable_s: float = UNREACHABLE_S
    store_patience_s: float = STORE_PATIENCE_S
    death_s: float = DEATH_S
