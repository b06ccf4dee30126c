"""The nodes of a run, with Argo's names, ids and phases."""

from enum import StrEnum
from typing import Any

import msgspec

MAX_NODES = 120_000
"""Nodes of a run. Argo's controller ends a run whose nodes need more than 1 MiB, compressed: some ten thousand."""
TOO_MANY_NODES = f"workflow is longer than maximum allowed size: more than {MAX_NODES} nodes;"
"""The error message; its first words are Argo's."""


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
        """Whether the phase is final."""
        return self not in (Phase.PENDING, Phase.RUNNING)

    @property
    def bad(self) -> bool:
        """Failed or Error."""
        return self in (Phase.FAILED, Phase.ERROR)


class NodeType(StrEnum):
    """Argo's node types, as far as they exist here."""

    POD = "Pod"
    CONTAINER = "Container"
    STEPS = "Steps"
    STEP_GROUP = "StepGroup"
    DAG = "DAG"
    TASK_GROUP = "TaskGroup"
    RETRY = "Retry"
    SKIPPED = "Skipped"
    SUSPEND = "Suspend"
    HTTP = "HTTP"


# The phases that may follow each phase. An unlisted pair raises.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset({Phase.RUNNING, Phase.FAILED, Phase.ERROR}),
    Phase.RUNNING: frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.ERROR}),
    # Its outputs, or those of its tasks, cannot be used; or one of its daemons has failed.
    Phase.SUCCEEDED: frozenset({Phase.ERROR, Phase.FAILED}),
    Phase.FAILED: frozenset({Phase.ERROR}),
    Phase.ERROR: frozenset({Phase.ERROR}),
}


class Outputs(msgspec.Struct):
    """A node's outputs; entries are Argo's, of `outputs.parameters` and `outputs.artifacts`."""

    parameters: list[dict[str, Any]] = []
    artifacts: list[dict[str, Any]] = []
    result: str | None = None
    exit_code: str = ""

    def values(self) -> dict[str, str]:
        """Values by name, of the parameters that have one."""
        return {str(entry["name"]): entry["value"] for entry in self.parameters if entry.get("value") is not None}

    @property
    def is_empty(self) -> bool:
        """Whether there is no output at all."""
        return not (self.parameters or self.artifacts or self.exit_code) and self.result is None


class Node(msgspec.Struct):
    """One node; `name` is its path (`wf.train(0)`)."""

    name: str
    display_name: str
    type: NodeType
    template: str
    boundary: str
    """Name of the DAG or Steps node around it; empty for the outermost."""
    phase: Phase
    started: float
    owner: str = ""
    """Name of the node that waits for it: a group, a retry, the boundary. Empty: the workflow itself."""
    message: str = ""
    finished: float = 0.0
    inputs: dict[str, list[dict[str, Any]]] = {}
    """`parameters` and `artifacts`, entries as Argo has them."""
    outputs: Outputs = msgspec.field(default_factory=Outputs)
    children: list[str] = []
    outbound: list[str] = []
    home: str = ""
    """Where its template finds the templates that it calls: a WorkflowTemplate; empty: the workflow."""
    hooked: bool = False
    """Whether it belongs to a hook or an exit handler."""
    spec: dict[str, Any] = {}
    """Its template, every tag replaced."""
    template_ref: dict[str, Any] = {}
    """The templateRef of its template: name, template, clusterScope."""
    memo: tuple[str, str] = ("", "")
    """(cache, key) under which its outputs are memoized."""
    memo_hit: bool = False
    """Whether the outputs came from the cache, so that nothing ran."""
    daemoned: bool = False
    """Whether it is a ready daemon, which counts as done while it runs on."""
    captures: bool = False
    """Whether another node reads its standard output."""
    pid: int = 0
    start_time: int = 0
    life: int = 0
    """How often the run had been resumed when the node was made; it tells nodes of the same name apart."""

    @property
    def pod_template(self) -> str:
        """The template's name as it stands in the pod's."""
        return self.template or str(self.template_ref.get("template") or "")

    def set_phase(self, phase: Phase, now: float, message: str = "") -> None:
        """Change the phase. Raises ValueError for a pair that TRANSITIONS does not list."""
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
    hash_value = 0x811C9DC5
    for byte in text.encode():
        hash_value = (hash_value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return hash_value


def pod_name(workflow: str, name: str, template: str) -> str:
    """Argo's name of a node's pod (POD_NAMES v2); an inline template has no name of its own."""
    if name == workflow:
        return workflow
    return "-".join(part for part in (workflow, template, str(fnv32a(name))) if part)


MAX_LOG_NAME_BYTES = 200
"""Bytes of a log's name without its ending; a file system takes 255. A longer one is cut, and ends with its hash."""


def log_name(workflow: str, node: Node) -> str:
    """Name of a pod's log in logs/: its node's, without the workflow's: `train(1)`, `inner.a(0:x)`."""
    short = node.name.removeprefix(workflow).lstrip(".") or node.name
    whole = short.replace("/", "_").replace("\0", "_").encode(errors="replace")
    if len(whole) <= MAX_LOG_NAME_BYTES:
        return whole.decode()
    return f"{whole[:MAX_LOG_NAME_BYTES].decode(errors='ignore')}-{fnv32a(node.name)}"
