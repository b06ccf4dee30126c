"""The parameters of an injected fault."""

from dataclasses import dataclass

from everstep.steps.entry import StepError


@dataclass(frozen=True)
class Config:
    """Inject one fault into a training that runs beside this step, at a random moment, and say when it fired.

    Exit code 1: it did not fire. What cannot be injected here is refused, with the reason; then nothing happens.
    """

    kind: str = "crash"
    """What happens: crash, fork-server, node, preempt, evict, container, freeze, slow, faulty, network, oom, memory,
    cpu, clock, slow-disk, resize, master, store, disk, everything, cordon or taint."""
    chaosblade: bool = False
    """Let ChaosBlade's operator do it, on a cluster that has it: preempt, fork-server, cpu, memory or network."""
    target: str = "train"
    """Name of the train step's task in this run."""
    node: str = ""
    """The node that it hits; empty: a random one of those that train."""
    seconds: float = 10.0
    """How long it lasts, for faults that last."""
    share: float = 0.9
    """Share of the CPU, of the memory limit, or of the time that a slow node stands still."""
    iterations: int = 200
    """Iterations of the training: the fault comes after 10 to 60 % of them."""
    seed: int = 0
    """Decides the moment and the node."""
    patience_s: float = 900.0
    """Seconds to wait for that moment while the training does not get on: no node starts, no iteration is done."""
    job: str = "by-hand-train"
    """Name of the training's job."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "chaos"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for fired."""

    def check(self) -> None:
        """Raise StepError for an unknown kind and impossible numbers."""
        from everstep.runtime.chaos.injector import Kind

        if self.kind not in tuple(Kind):
            raise StepError(f"--kind {self.kind}: not known; use {', '.join(Kind)}")
        if not 0 < self.share <= 1:
            raise StepError(f"--share {self.share:g}: must be above 0 and at most 1")
        for name in ("seconds", "patience_s", "iterations"):
            if not getattr(self, name) > 0:
                raise StepError(f"--{name.replace('_', '-')} {getattr(self, name):g}: must be above 0")
