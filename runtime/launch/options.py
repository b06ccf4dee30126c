"""What the command line and the environment mean together: a `Launch`, or one line that says what is wrong.

The rules are torch's (`torch.distributed.run.run` and `config_from_args`). Rendezvous by NODE_RANK and
DLROVER_MASTER_ADDR follows dlrover-run, which lets them take precedence over torch's rendezvous flags.
"""

import argparse
import math
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from everstep.runtime.agent.logs import LogPlan, parse_streams
from everstep.runtime.checkpoint.node.core.persist_interval import share_of
from everstep.runtime.diagnosis.switchbox import parse_switchbox
from everstep.runtime.job.spec import Hang, HangPolicy, JobSpec, StragglerPolicy
from everstep.runtime.launch.affinity import Cpus, cpus_of
from everstep.runtime.launch.job import Endpoint, Launch, NodeCheck, Saving
from everstep.runtime.launch.job_spec import ROLE, read_spec
from everstep.runtime.launch.log_layout import check_name
from everstep.runtime.launch.rendezvous import parse_conf, split_endpoint
from everstep.runtime.platform.devices import device_count

_STATIC_PORT = 29500
_DYNAMIC_PORT = 29400
_SEVERAL_ROLES = "--job-spec: nodes of several roles have no ranks of their own; give only --rdzv-endpoint HOST:PORT"
_WITHOUT_SPARES = {
    "no_python": "as a program that is not Python cannot rehearse",
    "numa_binding": "which pins a process when it starts",
}
"""Flags that rule spares out, and why."""


def read_launch(
    flags: argparse.Namespace,
    environment: Mapping[str, str],
    count_devices: Callable[[str], int] | None = None,
    bind: Callable[[str, int], Cpus] = cpus_of,
) -> Launch:
    """The launch that the user asked for. Raises ValueError with one line: what, where, how to fix it.

    `bind` returns --numa-binding's CPUs for a number of workers.
    """
    _refuse(flags)
    _check_numbers(flags)
    spec, role, least, most, slots = _size(flags, count_devices or device_count)
    if spec is not None:
        flags = argparse.Namespace(**{**vars(flags), "rdzv_id": spec.job, "max_restarts": spec.patience.max_restarts})
    elastic = least < most or spec is not None
    meeting, index, run_id, workers_meet = _endpoint(flags, environment, most, elastic)
    if index >= 0 and spec is not None and len(spec.roles) > 1:
        raise ValueError(_SEVERAL_ROLES)
    static = meeting is not None and not _is_dynamic(flags, elastic) and "DLROVER_MASTER_ADDR" not in environment
    sets_threads = "OMP_NUM_THREADS" not in environment and slots > 1
    command, plain = _command(flags, environment)
    return Launch(
        spec=spec,
        role=role,
        nodes=most,
        min_nodes=most if static and spec is None else least,
        node_unit=flags.node_unit,
        slots=slots,
        index=index,
        endpoint=meeting,
        run_id=run_id,
        role_name=flags.role if spec is None else role,
        workers_endpoint=workers_meet,
        local_addr=flags.local_addr or "",
        rendezvous=parse_conf(flags.rdzv_conf, static=static),
        max_restarts=flags.max_restarts,
        command=command,
        plain=plain or flags.no_fork_server,
        preload=tuple(flags.preload),
        spares=flags.spares,
        signals=_parse_signals(flags.signals_to_handle),
        shutdown_s=_shutdown_s(flags.shutdown_timeout, environment),
        virtual_local_rank=flags.virtual_local_rank,
        threads="1" if sets_threads else environment.get("OMP_NUM_THREADS", ""),
        sets_threads=sets_threads,
        logs=_log_plan(flags, environment, run_id),
        logs_specs=flags.logs_specs or "",
        events=flags.event_log_handler,
        backend="c10d" if flags.standalone else flags.rdzv_backend,
        entry_point=_entry_point(flags, environment),
        cpus=bind(flags.numa_binding, slots) if flags.numa_binding else (),
        tls=not flags.no_tls,
        check=_node_check(flags),
        store=flags.store,
        saving=_saving(flags),
        cooldown_s=flags.cooldown,
        stragglers=StragglerPolicy(flags.straggler_policy),
        hang=spec.hang if spec is not None else Hang(_hang_policy(flags), flags.hang_timeout),
        environment={"TORCHELASTIC_SIGNALS_TO_HANDLE": flags.signals_to_handle},
    )


class _Size(NamedTuple):
    spec: JobSpec | None
    role: str
    least: int
    """Nodes of all roles, as `most`."""
    most: int
    slots: int
    """Workers on this node."""


def _size(flags: argparse.Namespace, count_devices: Callable[[str], int]) -> _Size:
    """How large the job is: by --job-spec, else by the flags. Raises ValueError."""
    least, most = _parse_nodes(flags.nnodes)
    if flags.node_unit < 1 or (not flags.job_spec and most - most % flags.node_unit < least):
        raise ValueError(f"--node-unit {flags.node_unit}: no multiple of it is within --nnodes {flags.nnodes}")
    slots = _parse_slots(flags.nproc_per_node, count_devices)
    if not flags.job_spec:
        return _Size(None, ROLE, least, most, slots)
    spec, role = read_spec(flags, (least, most), slots)
    roles = spec.roles.values()
    return _Size(
        spec, role, sum(each.min_nodes for each in roles), sum(each.nodes for each in roles), spec.roles[role].slots
    )


def _node_check(flags: argparse.Namespace) -> NodeCheck:
    pairs = (flags.box_pairs, flags.min_bandwidth, flags.min_channels)
    box = parse_switchbox(*pairs) if flags.switchbox_check else None
    return NodeCheck(flags.network_check, flags.exclude_straggler, box)


def _saving(flags: argparse.Namespace) -> Saving:
    return Saving(
        persist_interval=flags.persist_interval,
        overhead=share_of(flags.checkpoint_overhead),
        bytes_per_s=flags.persist_bytes_per_s,
        keep_last=flags.keep_last,
        keep_every=flags.keep_every,
        peer_copies=flags.peer_copies,
    )


def _refuse(flags: argparse.Namespace) -> None:
    """Refuse flags that are known but cannot mean here what they mean to torchrun."""
    if flags.rdzv_backend.startswith("etcd"):
        raise ValueError(f"--rdzv-backend {flags.rdzv_backend}: etcd is not supported; c10d needs no server of its own")
    if flags.rdzv_backend not in ("static", "c10d"):
        raise ValueError(f"--rdzv-backend {flags.rdzv_backend}: unknown; use c10d or static")
    if flags.logs_specs is not None:
        check_name(flags.logs_specs)
    for name, why in _WITHOUT_SPARES.items():
        if flags.spares and getattr(flags, name):
            raise ValueError(f"--spares {flags.spares}: not with --{name.replace('_', '-')}, {why}; leave one out")
    for name in ("exclude_straggler", "switchbox_check"):
        if getattr(flags, name) and not flags.network_check:
            raise ValueError(f"--{name.replace('_', '-')}: part of --network-check; give that, too")


def _check_numbers(flags: argparse.Namespace) -> None:
    if flags.max_restarts < 0:
        raise ValueError(f"--max-restarts {flags.max_restarts}: it cannot be negative")
    if flags.spares < 0:
        raise ValueError(f"--spares {flags.spares}: it cannot be negative")
    if flags.persist_interval < 1:
        raise ValueError(f"--persist-interval {flags.persist_interval}: must be at least 1 iteration")
    if flags.keep_last < 0 or flags.keep_every < 0 or (flags.keep_every and not flags.keep_last):
        retention = f"--keep-last {flags.keep_last} --keep-every {flags.keep_every}"
        raise ValueError(f"{retention}: give numbers of 0 or more; with --keep-last 0 every checkpoint is kept anyway")
    if flags.peer_copies < 0:
        raise ValueError(f"--peer-copies {flags.peer_copies}: it cannot be negative")
    if not flags.persist_bytes_per_s >= 0:
        raise ValueError(f"--persist-bytes-per-s {flags.persist_bytes_per_s:g}: it cannot be negative")
    if not 0 <= flags.cooldown < math.inf:
        raise ValueError(f"--cooldown {flags.cooldown:g}: give seconds, 0 or more")
    if not 0 < flags.hang_timeout < math.inf:
        raise ValueError(f"--hang-timeout {flags.hang_timeout:g}: give seconds above 0; --on-hang says what follows")


def _parse_nodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        bounds = int(least), int(most or least)
    except ValueError:
        raise ValueError(f"--nnodes {text}: neither a number nor MIN:MAX") from None
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"--nnodes {text}: at least 1 node, and MIN at most MAX")
    return bounds


def _parse_slots(text: str, count: Callable[[str], int]) -> int:
    if re.fullmatch(r"\s*[+-]?\d+\s*", text):
        if int(text) < 1:
            raise ValueError(f"--nproc-per-node {text}: must be at least 1 worker")
        return int(text)
    if text not in ("cpu", "gpu", "xpu", "auto"):
        raise ValueError(f"--nproc-per-node {text}: neither a number nor auto, cpu, gpu or xpu")
    count_of_devices = count(text)
    if count_of_devices < 1:
        raise ValueError(f"--nproc-per-node {text}: torch sees no such device here; give a number, or cpu")
    return count_of_devices


def _is_dynamic(flags: argparse.Namespace, elastic: bool) -> bool:
    """Do nodes come and go? A static rendezvous cannot have MIN:MAX nodes, so with an endpoint the range decides.

    (torchrun then takes MAX nodes, each with a number of its own.)
    """
    return flags.rdzv_backend == "c10d" or (elastic and bool(flags.rdzv_endpoint) and not flags.node_rank)


def _endpoint(
    flags: argparse.Namespace, environment: Mapping[str, str], nodes: int, elastic: bool
) -> tuple[Endpoint | None, int, str, tuple[str, int] | None]:
    """(the nodes' endpoint or None, this node's number or -1, the run's id, the workers' endpoint if fixed)."""
    own_id = flags.rdzv_id if flags.store and flags.rdzv_id != "none" else str(uuid.uuid4())
    if flags.standalone:
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
        return Endpoint(host, port, int(rank) == 0), int(rank), flags.rdzv_id, None
    if _is_dynamic(flags, elastic):
        host, port = split_endpoint(flags.rdzv_endpoint, _DYNAMIC_PORT, "--rdzv-endpoint")
        if port == 0:
            _require_one_node(nodes, f"--rdzv-endpoint {flags.rdzv_endpoint}: no other node can find port 0")
            return None, -1, flags.rdzv_id, None
        return Endpoint(host, port, None), -1, flags.rdzv_id, None
    if not flags.rdzv_endpoint and flags.master_port is None and nodes == 1:
        return None, -1, own_id, None
    endpoint = flags.rdzv_endpoint or f"{flags.master_addr}:{flags.master_port or _STATIC_PORT}"
    host, port = split_endpoint(endpoint, 0, "--rdzv-endpoint")
    if not port:
        raise ValueError(f"--rdzv-endpoint {endpoint}: the static rendezvous needs a port; use HOST:PORT")
    if not 0 <= flags.node_rank < nodes:
        raise ValueError(f"--node-rank {flags.node_rank}: --nnodes allows numbers from 0 to {nodes - 1}")
    if nodes == 1:
        return None, -1, flags.rdzv_id, (host, port)
    return Endpoint(host, port, flags.node_rank == 0), flags.node_rank, flags.rdzv_id, None


def _require_one_node(nodes: int, why: str) -> None:
    if nodes > 1:
        raise ValueError(f"{why}, but {nodes} nodes are requested; give --rdzv-backend c10d --rdzv-endpoint HOST:PORT")


def _command(flags: argparse.Namespace, environment: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """The command for `everstep.runtime.agent.script`, and whether it must be started by exec."""
    script, arguments = flags.training_script, tuple(flags.training_script_args)
    if flags.run_path:
        _check_file(script, "--run-path")
        return ("--run-path", script, *arguments), flags.start_method == "spawn"
    if flags.no_python:
        if flags.module:
            raise ValueError("--no-python and --module contradict each other; leave one out")
        return ("--no-python", script, *arguments), True
    has_other_python = bool(environment.get("PYTHON_EXEC"))
    if flags.module:
        return ("-m", script, *arguments), has_other_python
    _check_file(script, "the training script")
    return (script, *arguments), has_other_python


def _entry_point(flags: argparse.Namespace, environment: Mapping[str, str]) -> str:
    if flags.run_path:
        return "run_script_path"
    python = environment.get("PYTHON_EXEC") or sys.executable
    return os.path.basename(flags.training_script if flags.no_python else python)


def _check_file(script: str, what: str) -> None:
    path = Path(script)
    if not path.exists():
        raise ValueError(f"{script}: no such file; {what} must exist on this node")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ValueError(f"{script}: a folder without __main__.py; name {what} in it")


def _hang_policy(flags: argparse.Namespace) -> HangPolicy:
    usual = HangPolicy.RESTART if flags.max_restarts else HangPolicy.FAIL
    return HangPolicy(flags.on_hang) if flags.on_hang else usual


def _parse_signals(text: str) -> tuple[signal.Signals, ...]:
    signals = []
    for name in (part.strip() for part in text.split(",")):
        signal_member = signal.Signals.__members__.get(name)
        if signal_member is None or signal_member in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"--signals-to-handle {text}: {name!r} is not a signal that a process can handle")
        signals.append(signal_member)
    return tuple(signals)


def _shutdown_s(seconds_given: int | None, environment: Mapping[str, str]) -> float:
    text = environment.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    if seconds_given is None and not text.strip().isdigit():
        raise ValueError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={text}: not a number of seconds")
    seconds = int(text) if seconds_given is None else seconds_given
    if seconds < 0:
        raise ValueError(f"--shutdown-timeout {seconds}: it cannot be negative")
    return float(seconds)


def _log_plan(flags: argparse.Namespace, environment: Mapping[str, str], run_id: str) -> LogPlan:
    local_ranks: frozenset[int] | None = None
    if flags.local_ranks_filter:
        try:
            local_ranks = frozenset(int(rank) for rank in flags.local_ranks_filter.split(","))
        except ValueError:
            raise ValueError(
                f"--local-ranks-filter {flags.local_ranks_filter}: not local ranks with commas, as in 0,1,2"
            ) from None
    if flags.log_dir and Path(flags.log_dir).is_file():
        raise ValueError(f"--log-dir {flags.log_dir}: a file; give a folder")
    return LogPlan(
        folder=flags.log_dir or "",
        run_id=run_id,
        redirects=parse_streams(flags.redirects, "--redirects"),
        tee=parse_streams(flags.tee, "--tee"),
        shown_ranks=local_ranks,
        prefix=flags.log_line_prefix_template or environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
        stdout_filters=tuple(flags.duplicate_stdout_filters),
        stderr_filters=tuple(flags.duplicate_stderr_filters),
    )
