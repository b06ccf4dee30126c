"""The progress of a run, `N/M` of each node. A pod counts as one, unless it writes more to ARGO_PROGRESS_FILE.

After Argo's documentation ("Workflow Progress"). A DAG or Steps node has the sum of its children.
"""

import os
import re
from pathlib import Path

from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase, node_id

PROGRESS_FILE = "/var/run/argo/progress"
LEAVES = (NodeType.POD, NodeType.HTTP, NodeType.SUSPEND)
_REPORT = re.compile(r"(\d+)/(\d+)")


class Progress:
    """The progress of one run; `folder` is the run's."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._ended: dict[tuple[str, int], tuple[int, int]] = {}

    def compute(self) -> tuple[str, dict[str, str]]:
        """(progress of the workflow, progress by node name) now."""
        nodes = self._engine.state.nodes
        sums: dict[str, tuple[int, int]] = {}
        for node in reversed(nodes.values()):
            if node.type in LEAVES:
                sums[node.name] = self._leaf_progress(node)
            progress_made, whole = sums.get(node.name, (0, 0))
            above = node.owner if node.owner in nodes else node.boundary
            before = sums.get(above, (0, 0))
            sums[above] = (before[0] + progress_made, before[1] + whole)
        texts = {name: f"{progress_made}/{whole}" for name, (progress_made, whole) in sums.items() if whole}
        return texts.pop("", "0/0"), texts

    def _leaf_progress(self, node: Node) -> tuple[int, int]:
        """(done, of how many) of a leaf; a succeeded one has done all."""
        final_progress = self._ended.get((node.name, node.life))
        if final_progress:
            return final_progress
        finished_count, whole = (
            self._reported_progress(node) if node.type is NodeType.POD and node.phase is not Phase.PENDING else (0, 1)
        )
        if not node.phase.fulfilled:
            return finished_count, whole
        self._ended[node.name, node.life] = progress = (finished_count if node.phase.bad else whole, whole)
        return progress

    def _reported_progress(self, node: Node) -> tuple[int, int]:
        root = pod_folder(self._engine, node, self._folder) / "root"
        for path in (PROGRESS_FILE, os.path.realpath(PROGRESS_FILE)):
            try:
                progress_match = _REPORT.fullmatch(Path(f"{root}{path}").read_text().strip().split("\n")[-1].strip())
            except OSError:
                continue
            if progress_match and 0 < int(progress_match[2]) >= int(progress_match[1]):
                return int(progress_match[1]), int(progress_match[2])
        return 0, 1


def pod_folder(engine: Engine, node: Node, folder: Path) -> Path:
    """The folder of a node's pod. A node of a later life of the run has another."""
    return folder / "pods" / (node_id(engine.state.name, node.name) + (f".{node.life}" if node.life else ""))
