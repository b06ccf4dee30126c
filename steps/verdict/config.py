"""The parameters of the verdict."""

from dataclasses import dataclass

import msgspec

from everstep.steps.entry import StepError


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training that meets a fault, and what the fault may cost."""

    name: str
    """Its train step is the task train-NAME, its fault the task chaos-NAME; an Argo task's name has no spaces."""
    seconds: float
    """How long no new iteration may be done after the fault; 0: no limit."""
    lost: int
    """Iterations that may be computed again."""
    starts: bool = False
    """A node must start anew before the training goes on: it may take as long again as the reference's nodes took."""
    same: bool = True
    """The final state must be that of the reference, bit for bit. With another number of nodes, sums are rounded
    differently: it may then differ by `tolerance`."""
    reference: str = "reference"
    """The undisturbed training: the task train-REFERENCE."""


@dataclass(frozen=True)
class Config:
    """Compare the final state, the order of the samples, iterations and seconds of each training with the reference.

    Writes one page, drill.html. Exit code 1 if any line does not hold, or no fault could be injected.
    """

    experiments: str = "[]"
    """JSON list of experiments: name, seconds, lost, same, reference."""
    tolerance: float = 0.02
    """How far the final state may be from the reference's where another number of nodes trained, relative to it."""
    uid: str = ""
    """Uid of the workflow: its jobs are jobs/<uid>-<task>."""
    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run."""
    task: str = "verdict"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for drill.html."""

    def check(self) -> None:
        """Raise StepError for experiments that cannot be read."""
        self.parse_experiments()
        if not self.tolerance >= 0:
            raise StepError(f"--tolerance {self.tolerance:g}: cannot be negative")

    def parse_experiments(self) -> list[Experiment]:
        """The experiments. Raises StepError."""
        try:
            return msgspec.json.decode(self.experiments, type=list[Experiment])
        except msgspec.DecodeError as error:
            raise StepError(f"--experiments: {error}") from None
