"""What a simulated job achieved."""

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """All seconds of the job, by what they were spent on, weighted with the nodes where it says so."""

    policy: str
    seconds: float
    nodes: int
    """Nodes that the job asks for."""
    machines: int
    """With the spares."""
    useful_s: float = 0.0
    """Work that was kept, in seconds of a job with all its nodes."""
    wasted_s: float = 0.0
    """Work that was computed again, in the same unit."""
    stall_s: float = 0.0
    """Waits for copies to memory, in the same unit."""
    down_s: float = 0.0
    """Seconds without training, after the first round."""
    node_s: float = 0.0
    """Node-seconds that trained."""
    failures: int = 0
    """Of the trace that met the job."""
    rounds: int = 0
    recoveries: list[float] = field(default_factory=list)
    """Seconds from each failure that ended a round to the first iteration after it."""
    store_restores: int = 0
    events: int = 0
    """Events that the brain has handled."""
    samples: list[tuple[float, int]] = field(default_factory=list)
    """(Time, nodes that train) whenever that changes: 0 while nothing trains."""
    result: str = ""
    """How the job ended, if it did not last."""

    @property
    def goodput(self) -> float:
        """Useful work / what all nodes could have done, 0 to 1."""
        return self.useful_s / self.seconds if self.seconds else 0.0

    @property
    def mean_nodes(self) -> float:
        """Nodes that trained, on average."""
        return self.node_s / self.seconds if self.seconds else 0.0

    @property
    def median_recovery_s(self) -> float:
        """Median of the recoveries; 0: none."""
        every = sorted(self.recoveries)
        return every[len(every) // 2] if every else 0.0
