"""The nodes of a run, as Argo names, numbers and states them."""

from enum import StrEnum
from typing import Any

import msgspec


class Phase(StrEnum):
    """Argo's node phases."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    SKIPPED = "Skipped"
    OMITTED = "Omitted"
    FAILED = "Failed"
    ERROR = "Error"

    @property
    def fulfilled(self) -> bool:
        """It will not change any more."""
        return self not in (Phase.PENDING, Phase.RUNNING)

    @property
    def bad(self) -> bool:
        """Failed or Error."""
        return self in (Phase.FAILED, Phase.ERROR)


class NodeType(StrEnum):
    """Argo's node types, as far as they exist here."""

    POD = "Pod"
    DAG = "DAG"
    RETRY = "Retry"
    SKIPPED = "Skipped"


# What a node may become. An unlisted pair raises.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.RUNNING, Phase.FAILED, Phase.ERROR}),
    Phase.RUNNING: frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.ERROR}),
}


class Node(msgspec.Struct):
    """One node; `name` is its path (`wf.train(0)`)."""

    name: str
    display_name: str
    type: NodeType
    template: str
    boundary: str
    """Name of the DAG node around it; empty for the outermost."""
    phase: Phase
    started: float
    inputs: dict[str, str] = {}
    parameters: dict[str, str] = {}
    """Output parameters."""
    artifacts: dict[str, str] = {}
    exit_code: str = ""
    message: str = ""
    finished: float = 0.0
    children: list[str] = []
    pid: int = 0
    start_time: int = 0
    life: int = 0
    """How often the run had been taken up again when the node was made: nodes of one name differ in it."""

    def become(self, phase: Phase, now: float, message: str = "") -> None:
        """Change the phase. Raises ValueError where the table does not list it."""
        if phase not in TRANSITIONS.get(self.phase, ()):
            raise ValueError(f"{self.name}: {self.phase} cannot become {phase}")
        self.phase = phase
        self.message = message
        if phase.fulfilled:
            self.finished = now


def node_id(workflow: str, name: str) -> str:
    """Argo's id of a node: the workflow's name and the FNV-1a hash (32 bits) of the node's."""
    if name == workflow:
        return name
    return f"{workflow}-{fnv32a(name)}"


def fnv32a(text: str) -> int:
    """FNV-1a, 32 bits (Fowler, Noll, Vo)."""
    found = 0x811C9DC5
    for byte in text.encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


def pod_name(workflow: str, node: Node) -> str:
    """Argo's name of a node's pod (POD_NAMES v2)."""
    if node.name == workflow:
        return workflow
    return f"{workflow}-{node.template}-{fnv32a(node.name)}"


def scope_of(prefix: str, node: Node) -> dict[str, Any]:
    """What others may read of a node: `tasks.a.outputs.parameters.x`, `.status`, `.exitCode`."""
    found = {f"{prefix}.outputs.parameters.{name}": value for name, value in node.parameters.items()}
    found |= {f"{prefix}.status": node.phase.value, f"{prefix}.id": node.name}
    if node.exit_code:
        found[f"{prefix}.exitCode"] = node.exit_code
    return found
