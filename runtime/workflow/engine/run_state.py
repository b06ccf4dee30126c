"""What is known of a run: data that the engine's parts read and write, and queries over it. `scheduler` acts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from everstep.runtime.workflow.engine.gates import GateResult, Lock, Memo
from everstep.runtime.workflow.engine.nodes import MAX_NODES, Node
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.manifest.parse import Manifest

TOO_LATE = "Step exceeded its deadline"


class Composite(Protocol):
    """A node that waits for the nodes that it owns."""

    def begin(self, now: float) -> None:
        """Start: its node was just made."""
        ...

    def on_child_end(self, child: Node, now: float) -> None:
        """A node that it owns has ended, and so have that node's hooks."""
        ...


class Gate(NamedTuple):
    """What a call waits for outside of the run."""

    name: str
    """Name of the node to be made; empty: the whole workflow."""
    then: Callable[[GateResult, float], None]
    locks: list[Lock] = []  # noqa: RUF012
    memo: Memo | None = None
    call: Call | None = None
    """What is to begin; None: the whole workflow."""


class Kill(NamedTuple):
    """A running pod is to end."""

    message: str
    """The message of its node, which will be Failed."""
    keeps_code: bool = False
    """Whether its outputs and exit code still count."""
    at_once: bool = False
    """Whether to send SIGKILL without a grace period."""


@dataclass
class RunState:
    """One life of a run. A resumed run begins a new one, which keeps the nodes that count as done."""

    name: str
    uid: str
    created: float
    manifest: Manifest
    began: float
    """When this life began."""
    lives: int = 0
    """How often the run has been resumed."""
    kept: dict[str, Node] = field(default_factory=dict)
    """Leaves of an earlier life that count as done."""
    settled: set[str] = field(default_factory=set)
    """Names of groups in which nothing runs again: they are made anew of what is kept."""
    nodes: dict[str, Node] = field(default_factory=dict)
    pending: dict[str, Node] = field(default_factory=dict)
    running: dict[str, Node] = field(default_factory=dict)
    suspended: dict[str, Node] = field(default_factory=dict)
    """Invariant: `pending`, `running` and `suspended` are disjoint; none of their nodes has ended."""
    composites: dict[str, Composite] = field(default_factory=dict)
    exits: set[str] = field(default_factory=set)
    """Names of nodes that are exit handlers."""
    raised: dict[str, str] = field(default_factory=dict)
    """Errors of nodes that their owners have to handle."""
    kills: dict[str, Kill] = field(default_factory=dict)
    """Running pods that are to end."""
    daemons: dict[str, list[Node]] = field(default_factory=dict)
    """Ready daemons, by the DAG or Steps node around them."""
    gates: dict[str, Gate] = field(default_factory=dict)
    remembered: list[Node] = field(default_factory=list)
    """Succeeded nodes whose outputs are to be memoized."""
    waiting: int = 0
    """Number of calls that wait for a limit."""
    shutdown: str = ""
    """Stop or Terminate once requested, else empty."""
    late: bool = False
    """Whether the workflow's deadline has passed."""
    finished: float = 0.0
    """When it ended; 0: it has not."""

    def open_nodes(self) -> list[Node]:
        """Pods and suspended nodes that have not ended."""
        return [*self.pending.values(), *self.running.values(), *self.suspended.values()]

    def open_pod_count(self) -> int:
        """How many pods have not ended."""
        return len(self.pending) + len(self.running)

    def remaining_nodes(self) -> int:
        """How many more nodes the run may have. Calls that wait for a limit, a lock or a memo count as nodes."""
        return MAX_NODES - len(self.nodes) - self.waiting - len(self.gates)

    def in_exit_handler(self, node: Node | Call) -> bool:
        """Whether the node, or the one that a call would make, belongs to the workflow's exit handler."""
        while node.name not in self.exits:
            above = self.nodes.get(node.owner) or self.nodes.get(node.boundary)
            if above is None:
                return False
            node = above
        return True

    def is_stopped(self, node: Node | Call) -> bool:
        """Whether a stop or the deadline keeps a node from running. Only `Terminate` stops the exit handler, too."""
        if self.shutdown == "Terminate":
            return True
        return (bool(self.shutdown) or self.late) and not self.in_exit_handler(node)

    def stop_message(self) -> str:
        """Why a stopped node that did not run has failed, in Argo's words."""
        return f"workflow shutdown with strategy:  {self.shutdown}" if self.shutdown else TOO_LATE

    def declared_outputs(self, task: Mapping[str, Any], boundary: Node) -> Mapping[str, Any]:
        """The outputs that the template of a task declares."""
        try:
            return self.manifest.template(task, boundary.home)[0].get("outputs") or {}
        except ExpressionError:
            return {}

    def outputs(self) -> dict[str, str]:
        """Output parameters of the entrypoint, or of its last tasks where it declares none."""
        main = self.nodes.get(self.name)
        if main is None:
            return {}
        values = main.outputs.values()
        for name in main.outbound if not values else ():
            values |= self.nodes[name].outputs.values()
        return values
