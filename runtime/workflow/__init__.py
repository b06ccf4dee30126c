"""The embedded executor: runs an Argo Workflow manifest as processes of this machine, with Argo's semantics.

The story begins in `manifest` (what is understood, and what is refused by name), which `lint` checks and whose texts
`expressions` evaluates. `engine` decides what happens next and is pure. `run.executor` carries that out: it starts
`local_pods`, passes `artifacts` between them, and writes the event log and `workflow.json`.
"""

from everstep.runtime.workflow.manifest.parse import Manifest, ManifestError, parse, problems
from everstep.runtime.workflow.run.executor import RunOptions, RunResult, execute, run_workflow
from everstep.runtime.workflow.run.run_folder import CannotWriteError, check_name

__all__ = [
    "CannotWriteError",
    "Manifest",
    "ManifestError",
    "RunOptions",
    "RunResult",
    "check_name",
    "execute",
    "parse",
    "problems",
    "run_workflow",
]
