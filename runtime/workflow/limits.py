"""How much may run at once: `parallelism` of the workflow (pods) and of a template (its children)."""

from collections import deque
from typing import TYPE_CHECKING

from runtime.workflow.calls import Call
from runtime.workflow.nodes import Node, NodeType

if TYPE_CHECKING:
    from runtime.workflow.engine import Engine


class Limits:
    """Of one run. Calls that may not begin yet wait in line, one line for each template that limits its children."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._pods = engine.manifest.spec.get("parallelism")
        self._lines: dict[str, deque[Call]] = {}
        self._active: dict[str, int] = {}
        """Children that have not ended, of each boundary that limits them."""

    def admits(self, call: Call) -> bool:
        """May it begin? Else it waits here."""
        line = call.boundary if self._limit(call.boundary) is not None else ""
        if not self._lines.get(line) and self._free(line):
            self._taken(line)
            return True
        self._lines.setdefault(line, deque()).append(call)
        return False

    def _limit(self, boundary: str) -> int | None:
        node = self._engine.nodes.get(boundary)
        limit = node.spec.get("parallelism") if node is not None else None
        return int(limit) if limit is not None else None

    def _free(self, line: str) -> bool:
        if self._pods is not None and self._engine.open_pods() >= int(self._pods):
            return False
        limit = self._limit(line)
        return limit is None or self._active.get(line, 0) < limit

    def _taken(self, line: str) -> None:
        if line:
            self._active[line] = self._active.get(line, 0) + 1

    def freed(self, node: Node) -> None:
        """A node has ended."""
        if node.boundary in self._active and node.type not in (NodeType.STEP_GROUP, NodeType.TASK_GROUP):
            self._active[node.boundary] -= 1
        if self._lines:
            self._engine.called()

    def next(self, now: float) -> None:
        """Start those that wait and may begin."""
        for line, waiting in list(self._lines.items()):
            while waiting and self._free(line):
                self._taken(line)
                self._engine.start(waiting.popleft(), now)
            if not waiting:
                self._lines.pop(line, None)
