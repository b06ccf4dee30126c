"""CPU time of the pure brain: many nodes are requested, join, form a round, send heartbeats, and one of them dies.

`python -m benchmarks.brain [NODES]` prints a table; the cost per node must not grow with their number.
"""

import sys
import time

from everstep.runtime.job.assignments import seat_for
from everstep.runtime.job.brain import Brain
from everstep.runtime.job.events import HeartbeatSeen, Joined, NodeGone, Opened
from everstep.runtime.job.fold import fold
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.records import MasterClaimed
from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.job.state import round_number
from everstep.runtime.protocol.messages import Heartbeat, Join


def join(brain: Brain, name: str, now: float) -> None:
    """One agent asks for a seat in the next round."""
    node = brain.state.nodes[name]
    number = round_number(brain.state)
    brain.handle(
        Joined(Join(name, "worker", node.host, 8, f"10.0.0.1:{node.index}", 29500, (), number, number=number + 1)), now
    )


def measure(nodes: int) -> list[tuple[str, float, int]]:
    """(what, CPU seconds, how many times) for each part of a job's start."""
    rows: list[tuple[str, float, int]] = []
    spec = JobSpec("bench", {"worker": RoleSpec(nodes, nodes // 2)})
    brain = Brain(spec, fold([MasterClaimed(time=1.0, epoch=1, address="m:1")]), 1.0)
    began = time.process_time()

    def note_row(what: str, times: int) -> None:
        nonlocal began
        rows.append((what, time.process_time() - began, times))
        began = time.process_time()

    brain.handle(Opened(), 1.0)
    note_row("ask for the nodes", nodes)
    names = list(brain.state.nodes)
    for name in names:
        join(brain, name, 2.0)
    assert round_number(brain.state) == 1
    note_row("joins, and the round", nodes)
    assert all(seat_for(brain.state, Join(name, "worker", "", 8, "", 0)) for name in names)
    note_row("seats", nodes)
    for name in names:
        brain.handle(HeartbeatSeen(Heartbeat(name, 1, 5)), 3.0)
    note_row("heartbeats", nodes)
    brain.handle(NodeGone(names[0], "killed"), 4.0)
    note_row("the death of one", 1)
    back = [node.name for node in brain.state.nodes.values() if node.phase is NodePhase.REJOINING]
    for name in [*back, "worker-0-1"]:
        join(brain, name, 5.0)
    assert round_number(brain.state) == 2
    note_row("joins after it, and the round", nodes)
    assert decode_snapshot(encode_snapshot(brain.state)) == brain.state
    note_row("a snapshot, written and read", 1)
    return rows


def main() -> None:
    """Print the table."""
    sizes = [int(argument) for argument in sys.argv[1:]] or [1000, 10000]
    for nodes in sizes:
        print(f"{nodes} nodes")
        for what, seconds, times in measure(nodes):
            print(f"  {what:32} {seconds:8.3f} s {seconds / times * 1e6:10.1f} us each")


if __name__ == "__main__":
    main()
