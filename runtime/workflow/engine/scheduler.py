"""The engine as its parts see it: what a DAG, a group, a retry or a hook may ask of the run that they are in.

`engine.Engine` is a Scheduler; no part imports the engine.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from everstep.runtime.workflow.engine.gates import GateResult, Lock, Memo
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase
from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.manifest.parse import Manifest


class Composite(Protocol):
    """A node that waits for others."""

    def begin(self, now: float) -> None:
        """Its node was just made."""
        ...

    def on_child_end(self, child: Node, now: float) -> None:
        """A node that it owns has ended, hooks and all."""
        ...


class HookOwner(Protocol):
    """A DAG or group, of whose tasks some have hooks."""

    def hook_scope(self, read: Collection[str], now: float) -> Scope:
        """What hooks may read that read those dotted names."""
        ...

    def fail(self, message: str, now: float) -> None:
        """A hook cannot be judged."""
        ...


class Gate(NamedTuple):
    """What a call waits for outside of the run."""

    name: str
    """Of the node to be; empty: the whole workflow."""
    then: Callable[[GateResult, float], None]
    locks: list[Lock] = []  # noqa: RUF012
    memo: Memo | None = None


class Kill(NamedTuple):
    """A running pod shall end."""

    message: str
    """Of its node, which will be Failed."""
    keeps_code: bool = False
    """Its exit code counts."""
    at_once: bool = False
    """Without time to die cleanly."""


class NodeFactory(Protocol):
    """Makes nodes of calls."""

    def start(self, call: Call, now: float) -> None:
        """A call that limits allow."""
        ...

    def skip(self, call: Call, phase: Phase, message: str, now: float, raised: str = "") -> None:
        """A node that has ended before it began. `raised`: an error that the caller has to deal with, too."""
        ...

    def add_group(self, name: str, display: str, type_: NodeType, boundary: Node, owner: str,
              task: Mapping[str, Any], now: float) -> Node:  # fmt: skip
        """A node that holds others together."""
        ...

    def add_container_node(self, pod: Node, name: str, now: float) -> None:
        """A node of its own for a container of a containerSet."""
        ...


class Hooks(Protocol):
    """Of all nodes of the run."""

    def register(self, call: Call, task: Mapping[str, Any], prefix: str, hooker: HookOwner) -> None:
        """A node with these hooks is about to be made."""
        ...


class Limits(Protocol):
    """How much may run at once."""

    def has_failed_fast(self, boundary: str) -> bool:
        """A child of a template with failFast has failed: nothing more of it begins."""
        ...


class Root(Protocol):
    """The workflow itself."""

    suspended: bool
    """It was declared so, and nobody has resumed it."""

    def finish(self, phase: Phase, message: str, now: float) -> None:
        """It has ended."""
        ...

    def resume(self, now: float) -> None:
        """It is suspended no more."""
        ...

    def status_scope(self, now: float) -> Scope:
        """What `workflow.status` and its like are."""
        ...


class Variables(Protocol):
    """`workflow.*`."""

    artifacts: dict[str, dict[str, Any]]
    """Exported under a globalName."""
    wrong: str
    """Why the workflow's own parameters cannot be had; empty: they can."""

    @property
    def namespace(self) -> str:
        """Of the workflow."""
        ...

    def global_scope(self, now: float) -> Scope:
        """What every template may read."""
        ...

    def arguments(self) -> dict[str, Any]:
        """Those of the workflow, for its entrypoint."""
        ...

    def failures(self) -> str:
        """`workflow.failures`, JSON."""
        ...

    def export(self, node: Node) -> None:
        """A node has ended: what it gives under a globalName."""
        ...

    def pod_name(self, call: Call) -> str:
        """Of the pod that the call will be."""
        ...

    def is_result_read(self, node: Node) -> bool:
        """Does somebody read its standard output?"""
        ...


class Scheduler(Protocol):
    """One run of one manifest."""

    name: str
    uid: str
    created: float
    began: float
    lives: int
    manifest: Manifest
    nodes: dict[str, Node]
    kept: dict[str, Node]
    """Nodes of an earlier life that count as done."""
    composites: dict[str, Composite]
    exits: set[str]
    """Names of nodes that are exit handlers."""
    raised: dict[str, str]
    """Errors of nodes that whoever called them has to deal with."""
    kills: dict[str, Kill]
    """Running pods that shall end."""
    daemons: dict[str, list[Node]]
    """Those that were started, by the DAG or steps node around them."""
    shutdown: str
    """Stop or Terminate, once that was asked for."""
    late: bool
    """Its deadline is over."""
    finished: float

    @property
    def maker(self) -> NodeFactory: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def variables(self) -> Variables: ...
    @property
    def root(self) -> Root: ...

    def call(self, call: Call, now: float) -> None:
        """Run a template as soon as limits allow; the owner is told of its node's end."""
        ...

    def call_task(self, call: Call, task: Mapping[str, Any], now: float) -> None:
        """Run the template that a task, step or hook of the call's boundary names, with its arguments."""
        ...

    def declared_outputs(self, task: Mapping[str, Any], boundary: Node) -> Mapping[str, Any]:
        """The outputs that the template of a task declares."""
        ...

    def add_node(self, node: Node) -> None:
        """A node was made."""
        ...

    def manage(self, node: Node, composite: Composite, now: float) -> None:
        """Have that composite told of what the node owns; it begins when the work before it is done."""
        ...

    def set_phase(self, node: Node, phase: Phase, now: float, message: str = "", raised: str = "") -> None:
        """Change a node's phase, and have everybody told who waits for it."""
        ...

    def notify_owner(self, name: str) -> None:
        """Look again at who waits for a node."""
        ...

    def set_timer(self, at: float, kind: str, name: str) -> None:
        """Have a timer of that kind fire for the node at that time."""
        ...

    def wait_for_gate(self, gate: Gate) -> None:
        """Have the launcher look whether a call may go on."""
        ...

    def kill(self, node: Node, message: str, keeps_code: bool = False, at_once: bool = False) -> None:
        """Have a running pod ended; the first reason stays."""
        ...

    def open_nodes(self) -> list[Node]:
        """Pods and suspended nodes that have not ended."""
        ...

    def remaining_nodes(self) -> int:
        """How many nodes more the run may have."""
        ...

    def open_pod_count(self) -> int:
        """How many pods have not ended."""
        ...

    def admit_waiting_calls(self) -> None:
        """A waiting call may be admitted now."""
        ...

    def schedule_fail_fast(self, boundary: str) -> None:
        """A child of a template with failFast has failed, and no other runs."""
        ...

    def in_exit_handler(self, node: Node) -> bool:
        """It belongs to the workflow's exit handler."""
        ...
