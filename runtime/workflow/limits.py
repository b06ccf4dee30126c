"""How much may run at once: `parallelism` of the workflow (pods) and of a template (its children)."""

from collections import deque
from typing import TYPE_CHECKING

from runtime.workflow.calls import Call
from runtime.workflow.nodes import Node, NodeType

if TYPE_CHECKING:
    from runtime.workflow.engine import Engine


class Limits:
    """Of one run."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._pods = engine.manifest.spec.get("parallelism")
        self._waiting: deque[Call] = deque()
        self._active: dict[str, int] = {}
        """Children that have not ended, of each boundary that limits them."""

    def admits(self, call: Call, now: float) -> bool:
        """May it begin? Else it waits here."""
        if self._free(call):
            self._taken(call)
            return True
        self._waiting.append(call)
        return False

    def _limit(self, boundary: str) -> int | None:
        node = self._engine.nodes.get(boundary)
        limit = node.spec.get("parallelism") if node is not None else None
        return int(limit) if limit is not None else None

    def _free(self, call: Call) -> bool:
        if self._pods is not None and self._engine.open_pods() >= int(self._pods):
            return False
        limit = self._limit(call.boundary)
        return limit is None or self._active.get(call.boundary, 0) < limit

    def _taken(self, call: Call) -> None:
        if self._limit(call.boundary) is not None:
            self._active[call.boundary] = self._active.get(call.boundary, 0) + 1

    def freed(self, node: Node) -> None:
        """A node has ended."""
        if node.boundary in self._active and node.type not in (NodeType.STEP_GROUP, NodeType.TASK_GROUP):
            self._active[node.boundary] -= 1
        if self._waiting:
            self._engine.called()

    def next(self, now: float) -> None:
        """Start those that wait and may begin."""
        for _ in range(len(self._waiting)):
            call = self._waiting.popleft()
            if not self._free(call):
                self._waiting.append(call)
                continue
            self._taken(call)
            self._engine.start(call, now)
