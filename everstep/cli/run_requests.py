"""What the verbs ask of the process that runs a workflow."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.cli import run_views
from everstep.errors import BadInput

if TYPE_CHECKING:
    from everstep.runtime.workflow.run.control_requests import ControlRequest


def send(runs: Path, name: str, verb: str, wish: "ControlRequest") -> int:
    """Send the wish to the run's launcher and wait until it has followed it; returns the exit code. Raises BadInput."""
    from everstep.runtime.workflow.run.control_requests import ControlRequestError, submit_request, take_refusal
    from everstep.runtime.workflow.run.run_folder import launcher_pid

    folder = run_views.run_folder(runs, name)
    holder = launcher_pid(folder)
    if holder is None:
        raise BadInput(f"{name}: no process runs it; `everstep workflow resume {name}` resumes it")
    try:
        request = submit_request(folder, wish)
    except ControlRequestError as error:
        raise BadInput(str(error)) from None
    while request.exists():
        if launcher_pid(folder) is None and _withdraw(folder, request):
            raise BadInput(f"{name}: process {holder} has already ended")
        time.sleep(0.05)
    if why := take_refusal(request):
        raise BadInput(f"{name}: {why}")
    print(f"{name}: asked process {holder} to {verb}", file=sys.stderr)
    return 0


def _withdraw(folder: Path, request: Path) -> bool:
    """Remove the request, so that no later launcher follows it. False: a launcher has followed it, or will."""
    from everstep.runtime.workflow import ManifestError
    from everstep.runtime.workflow.run.run_folder import lock

    try:
        with lock(folder):
            request.unlink()
    except (ManifestError, FileNotFoundError):
        return False
    return True
