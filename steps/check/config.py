"""The parameters of the node check."""

from dataclasses import dataclass

from everstep.steps.entry import MOST, StepError, require_count, require_number


@dataclass(frozen=True)
class Config:
    """Check the nodes of a job in small groups and name the hosts that training should avoid.

    Up to three rounds of matrix products (all CPU cores) and all-reduces (gloo): the faulty nodes are named
    exactly, if at most a quarter is faulty. In a pod of Argo's the nodes are pods with the training's own requests, one
    a machine; elsewhere processes of this machine.

    Examples:
      python -m everstep.steps.check --nodes 4 --timeout 120
      python -m everstep.steps.check --nodes 8 --min-nodes 6 --exclude-straggler True
      python -m everstep.steps.check --switchbox-check True --box-pairs "0:1 2:3" --min-bandwidth 20000
    """

    nodes: int = 2
    """Nodes to check. On a cluster one per machine; here local-0, local-1..., each a process of this machine."""
    min_nodes: int = 1
    """With fewer usable nodes (on a cluster: machines, of those with a pod) the step ends with exit code 3."""
    check_spare: int = 1
    """On a cluster: machines to check beyond nodes, if there are more."""
    job_spec: str = ""
    """On a cluster: the training's YAML file, whose largest role says what the pods request."""
    training: str = ""
    """On a cluster: the task of the training whose nodes the checked pods become; empty: they end with the check."""
    hold_s: float = 120.0
    """On a cluster: seconds that they wait for it, then they end; 0: they end with the check."""
    timeout: float = 300.0
    """Seconds for a node's part in one round; a node that takes longer (it hangs) is faulty."""
    exclude_straggler: bool = False
    """Avoid stragglers (best time above twice the median) too; else they are only reported."""
    switchbox_check: bool = False
    """Also measure the links between each machine's own CUDA devices; refused where there are none."""
    box_pairs: str = "0:1 2:4 3:5 6:7"
    """Switch box pairs, DEVICE:DEVICE."""
    min_bandwidth: float = 10000.0
    """MB/s; a pair below it is a faulty link."""
    min_channels: int = 2
    """With fewer working pairs the node is faulty."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "check"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for avoid_hosts and verdict.json."""

    def check(self) -> None:
        """Raise StepError for contradictory numbers and unreadable pairs."""
        from everstep.runtime.diagnosis.switchbox import SwitchboxError, parse_switchbox

        require_count("--nodes", self.nodes, 1)
        require_count("--min-nodes", self.min_nodes, 1)
        require_count("--check-spare", self.check_spare, 0)
        if self.min_nodes > self.nodes and not self.job_spec:
            raise StepError(f"--min-nodes {self.min_nodes}: more than --nodes {self.nodes}; lower it")
        require_number("--hold-s", self.hold_s)
        require_count("--min-channels", self.min_channels, 0)
        require_number("--min-bandwidth", self.min_bandwidth)
        if not 0 < self.timeout <= MOST:
            raise StepError(f"--timeout {self.timeout:g}: must be above 0 (seconds)")
        if self.switchbox_check:
            try:
                parse_switchbox(self.box_pairs, self.min_bandwidth, self.min_channels)
            except SwitchboxError as error:
                raise StepError(str(error)) from None
