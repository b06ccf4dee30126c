"""What the command line and the environment mean together: a `Launch`, or one line that says what is wrong.

The rules are torch's (`torch.distributed.run.run` and `config_from_args`); where nodes meet by NODE_RANK and
DLROVER_MASTER_ADDR they are dlrover-run's, which lets those stand before torch's rendezvous flags.
"""

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.runtime.agent.logs import LogPlan, parse_streams
from everstep.runtime.checkpoint.node.persist_interval import share_of
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec, parse_switchbox
from everstep.runtime.job.spec import Hang, HangPolicy, JobSpec
from everstep.runtime.launch.affinity import Cpus, cpus_of
from everstep.runtime.launch.job_spec import ROLE, read_spec
from everstep.runtime.launch.log_layout import check_name
from everstep.runtime.launch.rendezvous import Rendezvous, parse_conf, split_endpoint

_STATIC_PORT = 29500
_DYNAMIC_PORT = 29400
_DEVICES = """
import sys, torch
kind = sys.argv[1]
if kind == "auto":
    kind = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
kind = "cuda" if kind == "gpu" else kind
print(len(__import__("os").sched_getaffinity(0)) if kind == "cpu" else getattr(torch, kind).device_count())
"""


@dataclass(frozen=True)
class Endpoint:
    """Where the nodes of the job find its master."""

    host: str
    port: int
    is_host: bool | None
    """This node hosts the master; None: if `host` is this machine."""


@dataclass(frozen=True)
class Launch:
    """One node's part in a job, as it was asked for."""

    spec: JobSpec | None
    """As --job-spec and the flags say it together; None: the flags alone say what the job is."""
    role: str
    """This node's, to the master."""
    nodes: int
    """Of all roles."""
    min_nodes: int
    node_unit: int
    """A round has a multiple of so many nodes, where no spec says so of each role."""
    slots: int
    """Workers on this node."""
    index: int
    """The node's number that was asked for; -1: any."""
    endpoint: Endpoint | None
    """None: this node is alone, its master listens on loopback."""
    run_id: str
    role_name: str
    workers_endpoint: tuple[str, int] | None
    """MASTER_ADDR and MASTER_PORT where the command line fixes them."""
    local_addr: str
    rendezvous: Rendezvous
    max_restarts: int
    command: tuple[str, ...]
    """As `everstep.runtime.agent.script` reads it."""
    plain: bool
    """Workers are started by exec."""
    preload: tuple[str, ...]
    signals: tuple[signal.Signals, ...]
    shutdown_s: float
    virtual_local_rank: bool
    threads: str
    """OMP_NUM_THREADS for the workers; empty: it stays unset."""
    sets_threads: bool
    """Nobody set OMP_NUM_THREADS, and several workers share the node: it is 1, which is told."""
    logs: LogPlan
    logs_specs: str
    """Entry point of the class that says where logs go; empty: torch's default layout."""
    events: str
    """Name of torch's handler that gets the launch's events."""
    backend: str
    """Of the rendezvous, as torch names it in events."""
    entry_point: str
    """What workers are, as torch names it in events."""
    cpus: Cpus
    tls: bool
    """Between machines."""
    check: bool
    """Nodes are checked before they join."""
    exclude_straggler: bool
    box: SwitchboxSpec | None
    """Pairs of this node's devices whose links are measured; None: they are not."""
    store: str
    persist_interval: int
    checkpoint_overhead: float
    persist_bytes_per_s: float
    keep_last: int
    keep_every: int
    cooldown_s: float
    hang: Hang
    environment: Mapping[str, str]
    """For the workers, beside the ranks."""


def read_launch(
    told: argparse.Namespace,
    environment: Mapping[str, str],
    count_devices: Callable[[str], int] | None = None,
    bind: Callable[[str, int], Cpus] = cpus_of,
) -> Launch:
    """The launch that was asked for. Raises ValueError with one line: what, where, how to mend it.

    `bind` gives --numa-binding's CPUs for so many workers.
    """
    _refuse(told)
    _check_numbers(told)
    least, most = _parse_nodes(told.nnodes)
    if told.node_unit < 1 or (not told.job_spec and most - most % told.node_unit < least):
        raise ValueError(f"--node-unit {told.node_unit}: no multiple of it is within --nnodes {told.nnodes}")
    slots = _parse_slots(told.nproc_per_node, count_devices or device_count)
    spec, role = read_spec(told, (least, most), slots) if told.job_spec else (None, ROLE)
    if spec is not None:
        least = sum(each.min_nodes for each in spec.roles.values())
        most, slots = sum(each.nodes for each in spec.roles.values()), spec.roles[role].slots
        told = argparse.Namespace(**{**vars(told), "rdzv_id": spec.job, "max_restarts": spec.patience.max_restarts})
    elastic = least < most or spec is not None
    meeting, index, run_id, workers_meet = _endpoint(told, environment, most, elastic)
    if index >= 0 and spec is not None and len(spec.roles) > 1:
        raise ValueError("--job-spec: nodes of several roles have no numbers; give --rdzv-endpoint HOST:PORT alone")
    static = meeting is not None and not _is_dynamic(told, elastic) and "DLROVER_MASTER_ADDR" not in environment
    sets_threads = "OMP_NUM_THREADS" not in environment and slots > 1
    command, plain = _command(told, environment)
    return Launch(
        spec=spec,
        role=role,
        nodes=most,
        min_nodes=most if static and spec is None else least,
        node_unit=told.node_unit,
        slots=slots,
        index=index,
        endpoint=meeting,
        run_id=run_id,
        role_name=told.role if spec is None else role,
        workers_endpoint=workers_meet,
        local_addr=told.local_addr or "",
        rendezvous=parse_conf(told.rdzv_conf, static=static),
        max_restarts=told.max_restarts,
        command=command,
        plain=plain or told.no_fork_server,
        preload=tuple(told.preload),
        signals=_parse_signals(told.signals_to_handle),
        shutdown_s=_shutdown_s(told.shutdown_timeout, environment),
        virtual_local_rank=told.virtual_local_rank,
        threads="1" if sets_threads else environment.get("OMP_NUM_THREADS", ""),
        sets_threads=sets_threads,
        logs=_log_plan(told, environment, run_id),
        logs_specs=told.logs_specs or "",
        events=told.event_log_handler,
        backend="c10d" if told.standalone else told.rdzv_backend,
        entry_point=_entry_point(told, environment),
        cpus=bind(told.numa_binding, slots) if told.numa_binding else (),
        tls=not told.no_tls,
        check=told.network_check,
        exclude_straggler=told.exclude_straggler,
        box=parse_switchbox(told.box_pairs, told.min_bandwidth, told.min_channels) if told.switchbox_check else None,
        store=told.store,
        persist_interval=told.persist_interval,
        checkpoint_overhead=share_of(told.checkpoint_overhead),
        persist_bytes_per_s=told.persist_bytes_per_s,
        keep_last=told.keep_last,
        keep_every=told.keep_every,
        cooldown_s=told.cooldown,
        hang=spec.hang if spec is not None else Hang(_hang_policy(told), told.hang_timeout),
        environment={"TORCHELASTIC_SIGNALS_TO_HANDLE": told.signals_to_handle},
    )


def device_count(kind: str) -> int:
    """How many devices of that kind torch sees (cpu, gpu, xpu, auto), asked in a process of its own."""
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    asked = subprocess.run([sys.executable, "-c", _DEVICES, kind], capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 else 0


def _refuse(told: argparse.Namespace) -> None:
    """Flags that are known and cannot mean here what they mean to torchrun."""
    if told.rdzv_backend.startswith("etcd"):
        raise ValueError(f"--rdzv-backend {told.rdzv_backend}: etcd is not supported; c10d needs no server of its own")
    if told.rdzv_backend not in ("static", "c10d"):
        raise ValueError(f"--rdzv-backend {told.rdzv_backend}: not known; use c10d or static")
    if told.logs_specs is not None:
        check_name(told.logs_specs)
    for name in ("exclude_straggler", "switchbox_check"):
        if getattr(told, name) and not told.network_check:
            raise ValueError(f"--{name.replace('_', '-')}: it is a part of --network-check; give that too")


def _check_numbers(told: argparse.Namespace) -> None:
    if told.max_restarts < 0:
        raise ValueError(f"--max-restarts {told.max_restarts}: it cannot be negative")
    if told.persist_interval < 1:
        raise ValueError(f"--persist-interval {told.persist_interval}: at least 1 iteration is needed")
    if told.keep_last < 0 or told.keep_every < 0 or (told.keep_every and not told.keep_last):
        given = f"--keep-last {told.keep_last} --keep-every {told.keep_every}"
        raise ValueError(f"{given}: give numbers from 0 on; with --keep-last 0 every checkpoint stays")
    if not told.persist_bytes_per_s >= 0:
        raise ValueError(f"--persist-bytes-per-s {told.persist_bytes_per_s:g}: it cannot be negative")
    if not 0 <= told.cooldown < math.inf:
        raise ValueError(f"--cooldown {told.cooldown:g}: give seconds, from 0 on")
    if not 0 < told.hang_timeout < math.inf:
        raise ValueError(f"--hang-timeout {told.hang_timeout:g}: give seconds above 0; --on-hang says what follows")


def _parse_nodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        raise ValueError(f"--nnodes {text}: neither a number nor MIN:MAX") from None
    if not 0 < found[0] <= found[1]:
        raise ValueError(f"--nnodes {text}: at least 1 node, and MIN at most MAX")
    return found


def _parse_slots(text: str, count: Callable[[str], int]) -> int:
    if re.fullmatch(r"\s*[+-]?\d+\s*", text):
        if int(text) < 1:
            raise ValueError(f"--nproc-per-node {text}: at least 1 worker is needed")
        return int(text)
    if text not in ("cpu", "gpu", "xpu", "auto"):
        raise ValueError(f"--nproc-per-node {text}: neither a number nor auto, cpu, gpu or xpu")
    found = count(text)
    if found < 1:
        raise ValueError(f"--nproc-per-node {text}: torch sees no such device here; give a number, or cpu")
    return found


def _is_dynamic(told: argparse.Namespace, elastic: bool) -> bool:
    """Do nodes come and go? A static rendezvous cannot have MIN:MAX nodes: with an endpoint the range is believed.

    (torchrun takes MAX nodes then, each with a number of its own.)
    """
    return told.rdzv_backend == "c10d" or (elastic and bool(told.rdzv_endpoint) and not told.node_rank)


def _endpoint(
    told: argparse.Namespace, environment: Mapping[str, str], nodes: int, elastic: bool
) -> tuple[Endpoint | None, int, str, tuple[str, int] | None]:
    """(where the nodes meet or None, this node's number or -1, the run's id, where the workers meet if told)."""
    own_id = told.rdzv_id if told.store and told.rdzv_id != "none" else str(uuid.uuid4())
    if told.standalone:
        _require_one_node(nodes, "--standalone")
        return None, -1, own_id, None
    if dlrover := environment.get("DLROVER_MASTER_ADDR"):
        host, port = split_endpoint(dlrover, 0, "DLROVER_MASTER_ADDR")
        if not port:
            raise ValueError(f"DLROVER_MASTER_ADDR={dlrover}: the port is missing; use HOST:PORT")
        rank = environment.get("NODE_RANK", "")
        if not rank.isdigit():
            raise ValueError("NODE_RANK: with DLROVER_MASTER_ADDR each node needs its number, from 0; set NODE_RANK")
        if int(rank) >= nodes:
            raise ValueError(f"NODE_RANK={rank}: --nnodes allows numbers below {nodes}")
        return Endpoint(host, port, int(rank) == 0), int(rank), told.rdzv_id, None
    if _is_dynamic(told, elastic):
        host, port = split_endpoint(told.rdzv_endpoint, _DYNAMIC_PORT, "--rdzv-endpoint")
        if port == 0:
            _require_one_node(nodes, f"--rdzv-endpoint {told.rdzv_endpoint}: no other node can find port 0")
            return None, -1, told.rdzv_id, None
        return Endpoint(host, port, None), -1, told.rdzv_id, None
    if not told.rdzv_endpoint and told.master_port is None and nodes == 1:
        return None, -1, own_id, None
    endpoint = told.rdzv_endpoint or f"{told.master_addr}:{told.master_port or _STATIC_PORT}"
    host, port = split_endpoint(endpoint, 0, "--rdzv-endpoint")
    if not port:
        raise ValueError(f"--rdzv-endpoint {endpoint}: the static rendezvous needs a port; use HOST:PORT")
    if not 0 <= told.node_rank < nodes:
        raise ValueError(f"--node-rank {told.node_rank}: --nnodes allows numbers from 0 to {nodes - 1}")
    if nodes == 1:
        return None, -1, told.rdzv_id, (host, port)
    return Endpoint(host, port, told.node_rank == 0), told.node_rank, told.rdzv_id, None


def _require_one_node(nodes: int, why: str) -> None:
    if nodes > 1:
        raise ValueError(f"{why}, but {nodes} nodes are asked for; give --rdzv-backend c10d --rdzv-endpoint HOST:PORT")


def _command(told: argparse.Namespace, environment: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """The command in the words of `everstep.runtime.agent.script`, and whether it must be started by exec."""
    script, arguments = told.training_script, tuple(told.training_script_args)
    if told.run_path:
        _check_file(script, "--run-path")
        return ("--run-path", script, *arguments), told.start_method == "spawn"
    if told.no_python:
        if told.module:
            raise ValueError("--no-python and --module contradict each other; leave one out")
        return ("--no-python", script, *arguments), True
    other = bool(environment.get("PYTHON_EXEC"))
    if told.module:
        return ("-m", script, *arguments), other
    _check_file(script, "the training script")
    return (script, *arguments), other


def _entry_point(told: argparse.Namespace, environment: Mapping[str, str]) -> str:
    if told.run_path:
        return "run_script_path"
    python = environment.get("PYTHON_EXEC") or sys.executable
    return os.path.basename(told.training_script if told.no_python else python)


def _check_file(script: str, what: str) -> None:
    path = Path(script)
    if not path.exists():
        raise ValueError(f"{script}: no such file; {what} must exist on this node")


def _hang_policy(told: argparse.Namespace) -> HangPolicy:
    usual = HangPolicy.RESTART if told.max_restarts else HangPolicy.FAIL
    return HangPolicy(told.on_hang) if told.on_hang else usual


def _parse_signals(text: str) -> tuple[signal.Signals, ...]:
    found = []
    for name in (part.strip() for part in text.split(",")):
        known = signal.Signals.__members__.get(name)
        if known is None or known in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"--signals-to-handle {text}: {name!r} is no signal that a process can handle")
        found.append(known)
    return tuple(found)


def _shutdown_s(told: int | None, environment: Mapping[str, str]) -> float:
    text = environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    if told is None and not text.strip().isdigit():
        raise ValueError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={text}: not a number of seconds")
    seconds = int(text) if told is None else told
    if seconds < 0:
        raise ValueError(f"--shutdown-timeout {seconds}: it cannot be negative")
    return float(seconds)


def _log_plan(told: argparse.Namespace, environment: Mapping[str, str], run_id: str) -> LogPlan:
    shown: frozenset[int] | None = None
    if told.local_ranks_filter:
        try:
            shown = frozenset(int(rank) for rank in told.local_ranks_filter.split(","))
        except ValueError:
            raise ValueError(
                f"--local-ranks-filter {told.local_ranks_filter}: not local ranks with commas, as in 0,1,2"
            ) from None
    if told.log_dir and Path(told.log_dir).is_file():
        raise ValueError(f"--log-dir {told.log_dir}: a file; give a folder")
    return LogPlan(
        folder=told.log_dir or "",
        run_id=run_id,
        redirects=parse_streams(told.redirects, "--redirects"),
        tee=parse_streams(told.tee, "--tee"),
        shown_ranks=shown,
        prefix=told.log_line_prefix_template or environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
        stdout_filters=tuple(told.duplicate_stdout_filters),
        stderr_filters=tuple(told.duplicate_stderr_filters),
    )
