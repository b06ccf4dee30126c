"""The engine as its parts see it: what a DAG, a group, a retry or a hook may ask of its run.

`engine.Engine` implements Scheduler; no part imports the engine.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase
from everstep.runtime.workflow.engine.run_state import Composite, Gate, RunState
from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.engine.template_call import Call


class HookOwner(Protocol):
    """A DAG or step group whose tasks or steps have hooks."""

    def hook_scope(self, read: Collection[str], now: float) -> Scope:
        """The scope of hooks that read those dotted names."""
        ...

    def fail(self, message: str, now: float) -> None:
        """End with an error: a hook's expression cannot be evaluated."""
        ...


class NodeFactory(Protocol):
    """Makes nodes from calls."""

    def start(self, call: Call, now: float) -> None:
        """Make the node of a call that the limits allow."""
        ...

    def skip(self, call: Call, phase: Phase, message: str, now: float, error_raised: str = "") -> None:
        """Add a node for which nothing runs. `error_raised`: an error that the owner has to handle, too."""
        ...

    def add_group(self, name: str, display: str, type_: NodeType, boundary: Node, owner: str,
              task: Mapping[str, Any], now: float) -> Node:  # fmt: skip
        """Add a node that groups others."""
        ...

    def add_container_node(self, pod: Node, name: str, now: float) -> None:
        """Add a node for a container of a containerSet."""
        ...


class Hooks(Protocol):
    """The hooks of all nodes of the run."""

    def register(self, call: Call, task: Mapping[str, Any], prefix: str, owner: HookOwner) -> None:
        """Remember the hooks of a task or step whose node is about to be made."""
        ...


class Limits(Protocol):
    """How much may run at once."""

    def has_failed_fast(self, boundary: str) -> bool:
        """Whether failFast has failed the boundary: no more of its children begin."""
        ...

    def on_node_end(self, node: Node) -> None:
        """A node has ended: free its place, and drop the calls that wait in it."""
        ...


class Root(Protocol):
    """The workflow itself."""

    suspended: bool
    """Whether it was declared suspended and has not been resumed."""

    def finish(self, phase: Phase, message: str, now: float) -> None:
        """End the workflow."""
        ...

    def resume(self, now: float) -> None:
        """Start the entrypoint of a workflow that was suspended."""
        ...

    def status_scope(self, now: float) -> Scope:
        """`workflow.status`, `workflow.failures` and `workflow.duration`."""
        ...


class Variables(Protocol):
    """`workflow.*`."""

    artifacts: dict[str, dict[str, Any]]
    """Artifacts exported under a globalName, by dotted name."""
    wrong: str
    """Why the workflow's own parameters cannot be resolved; empty if they can."""

    @property
    def namespace(self) -> str:
        """The workflow's namespace."""
        ...

    def global_scope(self, now: float) -> Scope:
        """The scope of every template at `now`."""
        ...

    def arguments(self) -> dict[str, Any]:
        """The workflow's arguments, for its entrypoint."""
        ...

    def failures(self) -> str:
        """`workflow.failures`, JSON."""
        ...

    def export(self, node: Node) -> None:
        """Export the outputs of an ended node that have a globalName."""
        ...

    def pod_name(self, call: Call) -> str:
        """Name of the pod that the call will make."""
        ...

    def is_result_read(self, node: Node) -> bool:
        """Whether another node reads its standard output."""
        ...


class Scheduler(Protocol):
    """What acts in one run of one manifest, over its state."""

    state: RunState

    @property
    def factory(self) -> NodeFactory: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def variables(self) -> Variables: ...
    @property
    def root(self) -> Root: ...

    def call(self, call: Call, now: float) -> None:
        """Run a template as soon as the limits allow; the owner is notified when its node ends."""
        ...

    def call_task(self, call: Call, task: Mapping[str, Any], now: float) -> None:
        """Run the template that a task, step or hook of the call's boundary names, with its arguments."""
        ...

    def add_node(self, node: Node) -> None:
        """Register a new node."""
        ...

    def manage(self, node: Node, composite: Composite, now: float) -> None:
        """Let the composite manage what the node owns; it begins when the queued work before it is done."""
        ...

    def set_phase(self, node: Node, phase: Phase, now: float, message: str = "", error_raised: str = "") -> None:
        """Change a node's phase and notify its owner."""
        ...

    def notify_owner(self, name: str) -> None:
        """Have the owner of a node look at it again."""
        ...

    def set_timer(self, at: float, kind: str, name: str) -> None:
        """Have a timer of that kind fire for the node at that time."""
        ...

    def wait_for_gate(self, gate: Gate) -> None:
        """Hold a call until the executor opens the gate: its locks are taken, or its memo was looked up."""
        ...

    def kill(self, node: Node, message: str, keeps_code: bool = False, at_once: bool = False) -> None:
        """Ask for the end of a running pod. The first reason given is kept."""
        ...

    def admit_waiting_calls(self) -> None:
        """Have the limits look whether a waiting call may begin now."""
        ...

    def schedule_fail_fast(self, boundary: str) -> None:
        """Fail a template with failFast: a child has failed and no other is running."""
        ...
