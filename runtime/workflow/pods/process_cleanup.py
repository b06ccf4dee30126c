"""Ends processes that pods have left running, including daemons that they started."""

from pathlib import Path

from everstep.runtime.system import processes


def kill_leftovers(run_dir: Path) -> None:
    """SIGKILL every process that a pod of this run has left."""
    run = f"EVERSTEP_RUN_DIR={run_dir}".encode()
    processes.kill_processes(
        lambda variables: run in variables and any(one.startswith(b"ARGO_NODE_ID=") for one in variables)
    )
