"""How much may run at once: `parallelism` of the workflow (pods) and of a template (its children), and failFast."""

from collections import deque

from everstep.runtime.workflow.engine.nodes import Node, NodeType
from everstep.runtime.workflow.engine.scheduler import Scheduler
from everstep.runtime.workflow.engine.template_call import Call


class Limits:
    """The limits of one run. Calls that may not begin yet wait in a line per template that limits its children."""

    def __init__(self, engine: Scheduler) -> None:
        self._engine = engine
        self._pods = engine.manifest.spec.get("parallelism")
        self._lines: dict[str, deque[Call]] = {}
        self._active: dict[str, int] = {}
        """Children that have not ended, of each boundary that limits them."""
        self._failed: set[str] = set()
        """Boundaries with failFast that have a failed child."""
        self.waiting = 0
        """Number of calls that wait in all lines."""

    def admit(self, call: Call) -> bool:
        """Count the call as started if it may begin; else queue it, or drop it after failFast. True: it may begin."""
        line = call.boundary if self._limits_children(call.boundary) else ""
        if line in self._failed:
            return False
        if not self._lines.get(line) and self._has_room(line):
            self._count_start(line)
            return True
        self._lines.setdefault(line, deque()).append(call)
        self.waiting += 1
        return False

    def has_failed_fast(self, boundary: str) -> bool:
        """Whether failFast has failed the boundary: no more of its children begin."""
        return boundary in self._failed

    def _limits_children(self, boundary: str) -> bool:
        node = self._engine.nodes.get(boundary)
        return node is not None and (node.spec.get("parallelism") is not None or bool(node.spec.get("failFast")))

    def _has_room(self, line: str) -> bool:
        if self._pods is not None and self._engine.open_pod_count() >= int(self._pods):
            return False
        limit = self._engine.nodes[line].spec.get("parallelism") if line else None
        return limit is None or self._active.get(line, 0) < int(limit)

    def _count_start(self, line: str) -> None:
        if line:
            self._active[line] = self._active.get(line, 0) + 1

    def on_node_end(self, node: Node) -> None:
        """A node has ended: free its place, and drop the calls that wait in it."""
        self.waiting -= len(self._lines.pop(node.name, ()))
        if node.boundary in self._active and node.type not in (NodeType.STEP_GROUP, NodeType.TASK_GROUP):
            self._active[node.boundary] -= 1
            boundary = self._engine.nodes[node.boundary]
            if node.phase.bad and boundary.spec.get("failFast") and not node.hooked:
                self._failed.add(node.boundary)
                self.waiting -= len(self._lines.pop(node.boundary, ()))
            if node.boundary in self._failed and not self._active[node.boundary] and not boundary.phase.fulfilled:
                self._engine.schedule_fail_fast(node.boundary)
        if self._lines:
            self._engine.admit_waiting_calls()

    def start_waiting(self, now: float) -> None:
        """Start the waiting calls that may begin now."""
        for line, waiting in list(self._lines.items()):
            while waiting and self._has_room(line):
                self._count_start(line)
                self.waiting -= 1
                self._engine.factory.start(waiting.popleft(), now)
            if not waiting:
                self._lines.pop(line, None)
