"""The parameters of the node check."""

from dataclasses import dataclass

from steps.entry import StepError


@dataclass(frozen=True)
class Config:
    """Check the nodes of a job in pairs (matrix products, all-reduce) and name the hosts that training should avoid."""

    nodes: int = 2
    """Nodes to check: local-0, local-1...; each is a process of this machine."""
    min_nodes: int = 1
    """With fewer usable nodes the step ends with exit code 3."""
    time_limit_s: float = 60.0
    """Seconds until a node that has not ended its check counts as faulty."""
    store: str = "runs/store"
    """URI of the store: a directory."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "check"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for avoid_hosts and verdict.json."""

    def check(self) -> None:
        """Raise StepError for numbers that contradict themselves."""
        if self.nodes < 1:
            raise StepError(f"--nodes {self.nodes}: at least 1 is needed")
        if self.min_nodes < 1:
            raise StepError(f"--min-nodes {self.min_nodes}: at least 1 is needed")
        if self.min_nodes > self.nodes:
            raise StepError(f"--min-nodes {self.min_nodes}: more than --nodes {self.nodes}; lower it")
        if self.time_limit_s <= 0:
            raise StepError(f"--time-limit-s {self.time_limit_s:g}: must be above 0")
