"""What a master tells Prometheus: GET /metrics in the OpenMetrics text format (its specification, version 1.0.0).

`FAMILIES` lists every metric with its type, unit and meaning; docs/reference/metrics.md is made from it. Counters begin
anew with each master, as Prometheus expects of a process that restarts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from everstep.runtime.job.nodes import LIVE
from everstep.runtime.job.replicas import desired_size
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.state import State
from everstep.runtime.master.telemetry import count_iterations
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.watch.host_use import KIND as HOST
from everstep.runtime.watch.slow_ranks import Pace

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Family(NamedTuple):
    """A metric family."""

    name: str
    """Without the `_total` and `_info` of its samples; ends with its unit, if it has one."""
    type: str
    """gauge | counter | info | stateset"""
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""


FAMILIES = (
    Family("everstep_job", "info", "The job that this master runs.", ("job",)),
    Family("everstep_master_epoch", "gauge", "Number of masters that this job has had."),
    Family("everstep_condition", "stateset", "What the job is doing.", ("everstep_condition",)),
    Family("everstep_iteration", "gauge", "The newest finished iteration."),
    Family("everstep_iterations", "counter", "Iterations reported to this master; repeated ones count again."),
    Family("everstep_tokens", "counter", "Tokens of these iterations."),
    Family("everstep_iteration_seconds", "counter", "Seconds of these iterations, stalls included.", (), "seconds"),
    Family("everstep_stall_seconds", "counter", "Of these seconds, those in which saving blocked training.",
           (), "seconds"),
    Family("everstep_loss", "gauge", "The newest loss that rank 0 has reported."),
    Family("everstep_round", "gauge", "The newest round."),
    Family("everstep_nodes", "gauge", "Nodes, by role and phase.", ("role", "phase")),
    Family("everstep_nodes_desired", "gauge", "Nodes that the job wants.", ("role",)),
    Family("everstep_restarts", "counter", "Restarts of the job, by role.", ("role",)),
    Family("everstep_checkpoint_iteration", "gauge", "Iteration of the newest checkpoint in the store."),
    Family("everstep_node_iteration", "gauge", "The newest iteration of each node.", ("node", "role", "host")),
    Family("everstep_node_pace_seconds", "gauge", "Median iteration of each node's slowest worker.",
           ("node", "role", "host"), "seconds"),
    Family("everstep_node_still_seconds", "gauge",
           "Seconds since any worker of the node made progress, as of its last heartbeat.",
           ("node", "role", "host"), "seconds"),
    Family("everstep_node_heartbeat_timestamp_seconds", "gauge", "Unix time of each node's last heartbeat.",
           ("node", "role", "host"), "seconds"),
    Family("everstep_node_cpu_cores", "gauge", "Cores that each node's processes use, every 30 s.",
           ("node", "role", "host"), "cores"),
    Family("everstep_node_memory_bytes", "gauge", "Memory of each node's processes, every 30 s: their own pages and "
           "shared memory, without files. An upper bound: pages shared after a fork count in each "
           "process.", ("node", "role", "host"), "bytes"),
    Family("everstep_node_disk_bytes_per_second", "gauge", "What each node's processes read from disk and write to it, "
           "every 30 s.", ("node", "role", "host"), "bytes_per_second"),
    Family("everstep_node_network_bytes_per_second", "gauge", "What comes and goes over each node's network "
           "interfaces, those of its pod or of its whole machine, every 30 s. RDMA does not count; on a machine's "
           "network bridges and bonds count it again.", ("node", "role", "host"), "bytes_per_second"),
    Family("everstep_rank_own_seconds", "gauge", "Seconds of an iteration in which a rank does not wait for others: "
           "the mean over its newest window.", ("node", "role", "host", "rank"), "seconds"),
    Family("everstep_rank_waiting_ratio", "gauge", "Share of its newest window that a rank waited in collectives.",
           ("node", "role", "host", "rank"), "ratio"),
    Family("everstep_hung", "gauge", "1 while all ranks of the running round stand still, else 0."),
    Family("everstep_hang_timestamp_seconds", "gauge", "Unix time of the newest hang in which a rank kept the others "
           "waiting; an empty rank if none in particular did. 0: never.", ("rank",), "seconds"),
    Family("everstep_requests_refused", "counter", "Requests that this master has refused.", ("reason",)),
)  # fmt: skip
"""Every metric, in the order in which they are written."""

Sample = tuple[tuple[str, ...], float]
"""(Values of the labels, value)."""


class Metrics:
    """Collects what the state does not hold, and writes all of it."""

    def __init__(self) -> None:
        self._iterations = self._tokens = 0
        self._seconds = self._stall_s = 0.0
        self._loss: float | None = None
        self._beats: dict[str, tuple[float, Heartbeat]] = {}
        self._paces: dict[str, tuple[Pace, ...]] = {}
        self._hosts: dict[str, Mapping[str, Any]] = {}

    def on_heartbeat(self, beat: Heartbeat, now: float) -> None:
        """Take in a heartbeat, and rank 0's iterations in its telemetry."""
        self._beats[beat.node] = now, beat
        if beat.paces:
            self._paces[beat.node] = beat.paces
        for line in beat.telemetry:
            if line.get("kind") == HOST:
                self._hosts[beat.node] = line
            if line.get("kind") not in (None, "iteration") or line.get("rank") or "iteration" not in line:
                continue
            seconds = max(_number(line.get("seconds")), 0.0)
            self._iterations += count_iterations(line)
            self._seconds += seconds
            self._stall_s += min(max(_number(line.get("stall_s")), 0.0), seconds)
            self._tokens += int(max(_number(line.get("tokens")), 0.0))
            if isinstance(loss := line.get("loss"), int | float):
                self._loss = float(loss)

    def text(self, state: State, spec: JobSpec, refusal_counts: Mapping[str, int]) -> bytes:
        """All metrics of that state as OpenMetrics."""
        samples = self._samples(state, spec, refusal_counts)
        return "".join(
            [*(_family_text(family, samples.get(family.name, ())) for family in FAMILIES), "# EOF\n"]
        ).encode()

    def _samples(self, state: State, spec: JobSpec, refusal_counts: Mapping[str, int]) -> dict[str, Iterable[Sample]]:
        newest = max((key for key, checkpoint in state.checkpoints.items() if checkpoint.manifest), default=None)
        condition = state.conditions[-1].type.value if state.conditions else "Pending"
        phases = Counter((node.role, node.phase.value) for node in state.nodes.values())
        nodes = {node.name: (node.name, node.role, node.host) for node in state.nodes.values()}
        live = {node.name for node in state.nodes.values() if node.phase in LIVE}
        for by_node in (self._beats, self._paces, self._hosts):
            for name in by_node.keys() - live:
                del by_node[name]
        beats = [(nodes[name], at, beat) for name, (at, beat) in self._beats.items()]
        uses = [(nodes[name], use) for name, use in self._hosts.items()]
        paces = [
            ((*nodes[name], str(pace.rank)), pace)
            for name, some in self._paces.items()
            for pace in some if pace.iteration_s
        ]  # fmt: skip
        return {
            "everstep_job": [((spec.job,), 1)],
            "everstep_master_epoch": [((), state.epoch)],
            "everstep_condition": [((name,), float(name == condition)) for name in _CONDITIONS],
            "everstep_iteration": [((), max([state.iteration, *(beat.iteration for _, _, beat in beats)]))],
            "everstep_iterations": [((), self._iterations)],
            "everstep_tokens": [((), self._tokens)],
            "everstep_iteration_seconds": [((), self._seconds)],
            "everstep_stall_seconds": [((), self._stall_s)],
            "everstep_loss": [] if self._loss is None else [((), self._loss)],
            "everstep_round": [((), state.round.number if state.round else 0)],
            "everstep_nodes": [(labels, count) for labels, count in sorted(phases.items())],
            "everstep_nodes_desired": [((role,), desired_size(state, spec, role)) for role in spec.roles],
            "everstep_restarts": [((role,), state.restarts.get(role, 0)) for role in spec.roles],
            "everstep_checkpoint_iteration": [((), newest[1] if newest else 0)],
            "everstep_node_iteration": [(labels, beat.iteration) for labels, _, beat in beats],
            "everstep_node_pace_seconds": [(labels, beat.pace_s) for labels, _, beat in beats if beat.pace_s],
            "everstep_node_still_seconds": [(labels, beat.still_s) for labels, _, beat in beats],
            "everstep_node_heartbeat_timestamp_seconds": [(labels, at) for labels, at, _ in beats],
            "everstep_rank_own_seconds": [(labels, pace.own_s) for labels, pace in paces],
            "everstep_rank_waiting_ratio": [(labels, pace.waited) for labels, pace in paces],
            **{name: [(labels, _number(use.get(key))) for labels, use in uses] for name, key in _OF_HOSTS.items()},
            "everstep_hung": [((), float(state.hang is not None))],
            "everstep_hang_timestamp_seconds": [
                (("" if rank < 0 else str(rank),), at) for rank, at in ({-1: 0.0} | state.hang_times).items()
            ],
            "everstep_requests_refused": [((reason,), count) for reason, count in refusal_counts.items()],
        }


_OF_HOSTS = {
    "everstep_node_cpu_cores": "cores",
    "everstep_node_memory_bytes": "memory_bytes",
    "everstep_node_disk_bytes_per_second": "disk_bytes_per_s",
    "everstep_node_network_bytes_per_second": "network_bytes_per_s",
}
"""Metric -> key of a node's line of telemetry."""
_CONDITIONS = ("Pending", "Creating", "Running", "Scaling", "Restarting", "Succeeded", "Failed")
_SUFFIX = {"counter": "_total", "info": "_info"}


def _family_text(family: Family, samples: Iterable[Sample]) -> str:
    lines = [f"# TYPE {family.name} {family.type}\n"]
    if family.unit:
        lines.append(f"# UNIT {family.name} {family.unit}\n")
    lines.append(f"# HELP {family.name} {family.help}\n")
    lines += [f"{family.name}{_SUFFIX.get(family.type, '')}{_labels(family, values)} {_format(value)}\n"
              for values, value in samples]  # fmt: skip
    return "".join(lines)


def _labels(family: Family, values: tuple[str, ...]) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in zip(family.labels, values, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _format(value: float) -> str:
    """OpenMetrics writes NaN and infinities as `NaN`, `+Inf`, `-Inf`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
