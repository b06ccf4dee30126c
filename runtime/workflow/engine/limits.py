"""How much may run at once: `parallelism` of the workflow (pods) and of a template (its children), and failFast.

Argo counts a template's children that are pods, DAGs or step groups and have not ended; a Retry node is none, its
attempts are (`workflow/controller/node_counters.go` of 4.1). Here a call is counted from the moment it may begin.
"""

from collections import deque

from everstep.runtime.workflow.engine.nodes import Node, NodeType
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.template_call import Call
from everstep.runtime.workflow.manifest.fields import kind_of

_UNCOUNTED = ("suspend", "http")


class Limits:
    """The limits of one run. Calls that may not begin yet wait in a line per template that limits its children."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self._pods = engine.state.manifest.spec.get("parallelism")
        self._lines: dict[str, deque[Call]] = {}
        self._active: dict[str, set[str]] = {}
        """Invariant: the names of begun calls that have not ended, of each boundary that limits its children."""
        self._failed: set[str] = set()
        """Boundaries with failFast that have a failed child."""

    def admit(self, call: Call) -> bool:
        """Count the call as begun if it may begin; else queue it, or drop it after failFast. True: it may begin."""
        # An attempt takes the place of its Retry node; only the limit of the workflow may hold it back.
        line = "" if _is_attempt(call) or not self._limits_children(call.boundary) else call.boundary
        if line in self._failed:
            return False
        if not self._lines.get(line) and self._has_room(line):
            self._count_start(call)
            return True
        self._lines.setdefault(line, deque()).append(call)
        self._engine.state.waiting += 1
        return False

    def has_failed_fast(self, boundary: str) -> bool:
        """Whether failFast has failed the boundary: no more of its children begin."""
        return boundary in self._failed

    def _limits_children(self, boundary: str) -> bool:
        node = self._engine.state.nodes.get(boundary)
        return node is not None and (node.spec.get("parallelism") is not None or bool(node.spec.get("failFast")))

    def _has_room(self, line: str) -> bool:
        if self._pods is not None and self._engine.state.open_pod_count() >= int(self._pods):
            return False
        limit = self._engine.state.nodes[line].spec.get("parallelism") if line else None
        return limit is None or len(self._active.get(line, ())) < int(limit)

    def _count_start(self, call: Call) -> None:
        if not self._limits_children(call.boundary):
            return
        active = self._active.setdefault(call.boundary, set())
        if _is_attempt(call):
            active.discard(call.owner)
        if kind_of(call.template) not in _UNCOUNTED:
            active.add(call.name)

    def on_node_end(self, node: Node) -> None:
        """A node has ended: free its place, and drop the calls that wait in it."""
        self._engine.state.waiting -= len(self._lines.pop(node.name, ()))
        active = self._active.get(node.boundary)
        if active is not None and node.type not in (NodeType.STEP_GROUP, NodeType.TASK_GROUP):
            active.discard(node.name)
            self._fail_fast(node)
        if self._lines:
            self._engine.admit_waiting_calls()

    def _fail_fast(self, node: Node) -> None:
        """Fail the boundary of a node that has ended, as soon as nothing in it runs."""
        boundary = self._engine.state.nodes[node.boundary]
        counts = node.type in (NodeType.POD, NodeType.STEPS, NodeType.DAG) and not node.hooked
        if node.phase.bad and counts and boundary.spec.get("failFast"):
            self._failed.add(node.boundary)
            self._engine.state.waiting -= len(self._lines.pop(node.boundary, ()))
        if node.boundary in self._failed and not self._active[node.boundary] and not boundary.phase.fulfilled:
            self._engine.schedule_fail_fast(node.boundary)

    def start_waiting(self, now: float) -> None:
        """Start a waiting call of each line, if it may begin now; the next ones when its owner knows its end."""
        for line, waiting in list(self._lines.items()):
            if waiting and self._has_room(line):
                call = waiting.popleft()
                self._count_start(call)
                self._engine.state.waiting -= 1
                self._engine.factory.start(call, now)
                self._engine.admit_waiting_calls()
            if not waiting:
                self._lines.pop(line, None)


def _is_attempt(call: Call) -> bool:
    return bool(call.scope.get("retries"))
