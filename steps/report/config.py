"""The report step's parameters."""

import math
from dataclasses import dataclass

from everstep.steps.entry import StepError


@dataclass(frozen=True)
class Config:
    """Write the report of a run: report.html."""

    store: str = "runs/store"
    """URI of the store: a directory, or s3://bucket/prefix."""
    run: str = "by-hand"
    """Name of the run to report on."""
    task: str = "report"
    """Name of the task in that run."""
    outputs: str = "outputs"
    """Folder for report.html."""
    uid: str = ""
    """Uid of the workflow: its jobs are jobs/<uid>-<step>. Empty: as workflow.json says."""
    status: str = ""
    """Phase of the workflow: Succeeded, Failed, Error. Empty: as workflow.json says."""
    failures: str = ""
    """Argo's workflow.failures: a JSON list of failed nodes, quoted or not."""
    duration: str = ""
    """Argo's workflow.duration: seconds."""
    graph: str = ""
    """JSON: the tasks that each task of the run follows. Empty: as workflow.json says."""

    def check(self) -> None:
        """Raise StepError if the duration is not a number; a variable that Argo left unresolved counts as absent."""
        try:
            good = not self.duration or self.duration.startswith("{{") or math.isfinite(float(self.duration))
        except ValueError:
            good = False
        if not good:
            raise StepError(f"--duration {self.duration}: not a number of seconds")
