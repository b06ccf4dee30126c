"""What a node leaves behind: processes that carry its job and name in their environment, and its shared memory.

A killed agent takes its workers along (parent-death signals), but not the workers' own children: those are found here.
"""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from everstep.runtime.system import processes

SHARED_MEMORY = Path("/dev/shm")


def memory_prefix(job: str, node: str) -> str:
    """The prefix of the names of a node's shared memory; with a dot before it, the agent's private folder."""
    return f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-{node}-"


def processes_of(job: str, node: str) -> Iterator[int]:
    """Live processes that were started with this node in their environment, except the caller."""
    return processes.find_processes(_marks(job, node).issubset)


def end_processes(job: str, node: str) -> int:
    """SIGKILL all of them, repeatedly until none is left (they may be forking). Returns how many were killed."""
    return processes.kill_processes(_marks(job, node).issubset)


def remove_memory(job: str, node: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the node's shared memory; returns the removed names."""
    prefix, names_removed = memory_prefix(job, node), []
    for path in [*folder.glob(f"{prefix}*"), *folder.glob(f".{prefix}*")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        names_removed.append(path.name)
    return names_removed


def remove_debris(job: str, node: str, folder: Path = SHARED_MEMORY) -> None:
    """Remove everything of a node whose agent is gone."""
    end_processes(job, node)
    remove_memory(job, node, folder)


def _marks(job: str, node: str) -> set[bytes]:
    """The variables that a process of the node has in its environment."""
    return {f"EVERSTEP_JOB={job}".encode(), f"EVERSTEP_NODE={node}".encode()}
