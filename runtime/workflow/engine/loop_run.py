"""The items of a DAG task's loop, grouped by a TaskGroup node."""

from everstep.runtime.workflow.engine.nodes import Node, Phase
from everstep.runtime.workflow.engine.scheduler import Scheduler


class LoopRun:
    """One node of type TaskGroup."""

    def __init__(self, engine: Scheduler, node: Node, turns: int) -> None:
        self._engine = engine
        self._node = node
        self._open = turns

    def begin(self, now: float) -> None:
        """Do nothing: the DAG has already called all items."""

    def on_child_end(self, child: Node, now: float) -> None:
        """An item has ended. After the last item, the last failed one gives the group its phase."""
        engine = self._engine
        raised = engine.raised.pop(child.name, "")
        if raised and child.phase is Phase.ERROR:
            child.message = f"task '{child.name}' errored: {raised}"
        self._open -= 1
        if self._open:
            return
        bad = [phase for name in self._node.children if (phase := engine.nodes[name].phase).bad]
        engine.set_phase(self._node, bad[-1] if bad else Phase.SUCCEEDED, now)
