"""What a master writes for Prometheus: OpenMetrics, of several nodes."""

import asyncio

from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.records import HangSeen
from everstep.runtime.job.roster import Roster
from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.job.state import State
from everstep.runtime.master.endpoints import Reply
from everstep.runtime.master.metrics import CONTENT_TYPE, FAMILIES, Metrics
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.watch.slow_ranks import Pace
from tests.master.shell import Shell, TroubledStore, in_virtual_time


def scrape(**headers: str) -> Reply:
    """The metrics of a job of two nodes, of which one has reported an iteration."""
    store = TroubledStore()

    async def story() -> Reply:
        shell = Shell(JobSpec("j", {"worker": RoleSpec(2, 1)}, hosts=""), store)
        await shell.open()
        first, _ = await asyncio.gather(shell.join("worker-0-0"), shell.join("worker-1-0"))
        line = {"v": 1, "n": 1, "iteration": 7, "iterations": 5, "round": 1, "rank": 0, "loss": 2.5, "tokens": 10}
        for node in ("worker-0-0", "worker-1-0"):
            lines, paces = ((line,), (Pace(0, 4, 50, 0.25, 2.0),)) if node < "worker-1" else ((), ())
            beat = Heartbeat(node, first.round, iteration=7, telemetry=lines, paces=paces)
            for _ in range(2):  # The first answer is lost.
                await asyncio.wait_for(shell.ask("heartbeat", beat), 100)
        reply = await shell.request("GET", "/metrics", b"", **headers)
        await shell.close()
        return reply

    return in_virtual_time(store, story)


def test_metrics_of_all_nodes_are_openmetrics() -> None:
    reply = scrape()
    text = reply.body.decode()
    assert (reply.status, reply.content_type) == (200, CONTENT_TYPE)
    assert text.endswith("# EOF\n")
    assert "everstep_iterations_total 5\n" in text
    assert "everstep_tokens_total 10\n" in text
    assert 'everstep_node_iteration{node="worker-1-0",role="worker",host="h"} 7\n' in text
    assert 'everstep_nodes_desired{role="worker"} 2\n' in text
    assert "everstep_loss 2.5\n" in text
    rank = '{node="worker-0-0",role="worker",host="h",rank="0"}'
    assert f"everstep_rank_own_seconds{rank} 1.5\n" in text
    assert f"everstep_rank_waiting_ratio{rank} 0.25\n" in text


def test_what_a_node_uses_is_what_its_newest_line_says_and_a_node_that_is_gone_is_forgotten() -> None:
    metrics = Metrics()
    for cores, memory_bytes in ((1.0, 5), (2.5, 7)):
        host = {"kind": "host", "cores": cores, "memory_bytes": memory_bytes, "disk_bytes_per_s": 8,
                "network_bytes_per_s": 9}  # fmt: skip
        pace = Pace(0, 4, 50, 0.25, 2.0)
        metrics.on_heartbeat(Heartbeat("a", 1, telemetry=(host,), paces=(pace,)), 0.0)
        metrics.on_heartbeat(Heartbeat("gone", 1, telemetry=(host,), paces=(pace,)), 0.0)
    here = NodeState("a", "worker", 0, 0, "h", 0.0, phase=NodePhase.RUNNING)
    gone = NodeState("gone", "worker", 1, 0, "h", 0.0, phase=NodePhase.LOST)
    state = State(nodes=Roster([here, gone]))
    text = metrics.text(state, JobSpec("j", {"worker": RoleSpec(2, 1)}, hosts=""), {}).decode()
    assert 'everstep_node_cpu_cores{node="a",role="worker",host="h"} 2.5\n' in text
    assert 'everstep_node_memory_bytes{node="a",role="worker",host="h"} 7\n' in text
    assert 'everstep_node_disk_bytes_per_second{node="a",role="worker",host="h"} 8\n' in text
    assert 'everstep_node_network_bytes_per_second{node="a",role="worker",host="h"} 9\n' in text
    assert 'rank_own_seconds{node="a"' in text
    assert 'node_still_seconds{node="a"' in text
    assert "gone" not in text
    assert metrics._beats.keys() == metrics._paces.keys() == metrics._hosts.keys() == {"a"}


def test_the_rank_that_kept_the_others_waiting_is_named_with_the_time_of_the_hang() -> None:
    def text(state: State) -> str:
        return Metrics().text(state, JobSpec("j", {"worker": RoleSpec(2, 1)}, hosts=""), {}).decode()

    calm = text(State())
    assert "everstep_hung 0\n" in calm
    assert 'everstep_hang_timestamp_seconds{rank=""} 0\n' in calm
    hung = text(State(hang=HangSeen(time=90.0, round=1, still_s=60.0), hang_times={1: 91.5}))
    assert "everstep_hung 1\n" in hung
    assert 'everstep_hang_timestamp_seconds{rank="1"} 91.5\n' in hung


def test_metrics_need_the_jobs_token() -> None:
    assert scrape(Authorization="Bearer other").status == 401


def test_a_unit_ends_the_name_and_no_name_comes_twice() -> None:
    assert all(family.name.endswith(f"_{family.unit}") for family in FAMILIES if family.unit)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_figures_that_a_script_reports_as_nonsense_count_as_nothing() -> None:
    metrics = Metrics()
    line = {"iteration": 1, "rank": 0, "seconds": float("nan"), "tokens": "many", "stall_s": float("inf")}
    metrics.on_heartbeat(Heartbeat("a", 1, telemetry=(line,)), 0.0)
    assert (metrics._tokens, metrics._seconds, metrics._stall_s) == (0, 0.0, 0.0)
