"""An agent's settings, from its command line and environment."""

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everstep.runtime.agent.script import Kind, split_command
from everstep.runtime.checkpoint.node.core.persist_interval import share_of
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec, add_box_flags, box_of
from everstep.runtime.net.token import TOKEN_VARIABLE
from everstep.runtime.store.code import is_code_address

_EXAMPLE = """\
environment: EVERSTEP_JOB, EVERSTEP_JOB_TOKEN, EVERSTEP_MASTER (URL; https: all speak TLS),
  EVERSTEP_STORE (URI) are required;
  EVERSTEP_DEAD_MAN_S (300), EVERSTEP_IP (127.0.0.1: where this node's server listens and others reach it),
  EVERSTEP_HOST_IP (its machine's address as a topology names it; default: EVERSTEP_IP),
  EVERSTEP_ZONE (the machine's failure domain: copies are kept in another one),
  EVERSTEP_RUN_DIR and OMP_NUM_THREADS are optional.

example:
  EVERSTEP_JOB=demo EVERSTEP_JOB_TOKEN=secret EVERSTEP_MASTER=http://127.0.0.1:8000 EVERSTEP_STORE=runs/store \\
    python -m everstep.runtime.agent --node worker-0-0 --slots 2 -- train.py --epochs 3
"""
_NEEDED = ("EVERSTEP_JOB", TOKEN_VARIABLE, "EVERSTEP_MASTER", "EVERSTEP_STORE")


@dataclass(frozen=True)
class Settings:
    """The settings of one agent."""

    job: str
    token: str
    master: str
    """URL."""
    store: str
    """URI."""
    node: str
    role: str
    host: str
    slots: int
    command: Sequence[str]
    """`[-m | --no-python | --run-path] script args...`; the script may be an address of code in the store."""
    threads: str
    """OMP_NUM_THREADS for the workers; empty: unchanged."""
    preload: Sequence[str] = ()
    plain: bool = False
    """Start workers by exec."""
    python: str = sys.executable
    """The interpreter that they exec."""
    max_restarts: int = 3
    """Passed to the workers as TORCHELASTIC_MAX_RESTARTS; the master decides about restarts."""
    dead_man_s: float = 300.0
    connect_s: float = 300.0
    """How long to wait for the first answer of a master."""
    pend_s: float = math.inf
    """How long a node waits for a seat."""
    notice_s: float = 20.0
    """From a signal that ends the node until it is gone, at most: time to hand over its state."""
    grace_s: float = 3.0
    """The part of `notice_s` between the signal to the workers and SIGKILL."""
    run_dir: str = ""
    address: str = "127.0.0.1"
    """Where this agent's own server listens."""
    ip: str = ""
    """Address of this host as the job's topology names it."""
    zone: str = ""
    """Failure domain of this host; empty: unknown."""
    index: int = -1
    """The index that the node asks for in its role; -1: any."""
    run_id: str = ""
    """TORCHELASTIC_RUN_ID; empty: the job's name."""
    role_name: str = ""
    """ROLE_NAME; empty: the role."""
    meet: tuple[str, int] | None = None
    """MASTER_ADDR and MASTER_PORT, if the user fixed them."""
    virtual_local_rank: bool = False
    checkpoint_overhead: float = 0.0
    """The fraction of training time that persisting may take; 0: the persist interval decides."""
    persist_bytes_per_s: float = 0.0
    """Limit of this node's writes to the store; 0: no limit."""
    persists: bool = True
    """The store outlives this node and others read it."""
    asks_end: bool = False
    """When told to leave, ask the master how the job ended."""
    any_script: bool = False
    """The script need not use everstep; the agent prints a line if it does not."""
    has_beacon: bool = False
    """The script is known to show progress, so it hangs if it shows none. False: known once it has shown some."""
    stands_in: bool = False
    """Stand in for a master that does not answer."""
    spares: int = 0
    """Warm spare processes that the node keeps, if its script survives rounds."""
    unfit: int | None = None
    """Check the node before it joins, and end with this exit code if it is unfit; None: no check."""
    box: SwitchboxSpec | None = None
    """With that check: the links between this machine's own devices."""
    cpus: Sequence[Sequence[int]] = ()
    """Logical CPUs of each local rank's worker; empty: all."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Additional variables for the workers' environment."""

    @property
    def tls(self) -> bool:
        """The job's processes use TLS, as its master does."""
        return self.master.startswith("https://")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    flags = argparse.ArgumentParser(
        prog="python -m everstep.runtime.agent",
        description="One node of an elastic job: runs the script's workers and obeys the job's master.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--node", required=True, help="the node's name, unique in the job")
    flags.add_argument("--role", default="worker")
    flags.add_argument("--host", default="", help="the machine's name for the master's placement")
    flags.add_argument("--slots", type=int, default=1, help="workers on this node (default 1)")
    flags.add_argument("--persist-interval", type=int, default=50, help="iterations between copies to the store")
    flags.add_argument(
        "--checkpoint-overhead",
        default="",
        metavar="1%",
        help="instead of an interval: fraction of the time that persisting may take",
    )
    flags.add_argument(
        "--persist-bytes-per-s", type=float, default=0.0, help="limit of this node's writes to the store (0: no limit)"
    )
    flags.add_argument("--max-restarts", type=int, default=3, help="passed to the workers; the master decides")
    flags.add_argument("--preload", action="append", default=[], metavar="MODULE", help="one more import, repeatable")
    flags.add_argument("--spares", type=int, default=0, help="warm spare workers that this node keeps (default 0)")
    flags.add_argument("--stands-in", action="store_true", help="be the master for a while if it does not answer")
    flags.add_argument("--no-fork-server", action="store_true", help="start each worker by exec, importing by itself")
    flags.add_argument(
        "--network-check", type=int, metavar="CODE", help="check the node before joining; exit with CODE if it is unfit"
    )
    add_box_flags(flags)
    flags.add_argument("--has-beacon", action="store_true", help="the script is known to show its progress")
    flags.add_argument("--any-script", action="store_true", help="the script may not use everstep; then say so")
    flags.add_argument("--notice", type=float, default=20.0, help="seconds from SIGTERM until the node is gone")
    flags.add_argument(
        "--grace", type=float, default=3.0, help="of these, seconds between SIGTERM and SIGKILL of the workers"
    )
    flags.add_argument("command", nargs=argparse.REMAINDER, metavar="-- [-m] script args")
    return flags


def settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, int]:
    """The settings and the persist interval (iterations). Raises ValueError with one line; argparse exits with 2."""
    options = parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    kind, target, _ = split_command(command)
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise ValueError(f"not set in the environment: {', '.join(missing)}; see --help")
    if not environment["EVERSTEP_MASTER"].startswith(("http://", "https://")):
        raise ValueError(
            f"EVERSTEP_MASTER={environment['EVERSTEP_MASTER']}: give http://HOST:PORT or https://HOST:PORT"
        )
    if options.slots < 1 or options.persist_interval < 1:
        raise ValueError("--slots and --persist-interval must be at least 1")
    if options.spares < 0:
        raise ValueError(f"--spares {options.spares}: it cannot be negative")
    if not options.persist_bytes_per_s >= 0:
        raise ValueError(f"--persist-bytes-per-s {options.persist_bytes_per_s:g}: it cannot be negative")
    if kind is Kind.SCRIPT and not Path(target).is_file() and not is_code_address(target):
        raise ValueError(f"no such script: {target}")
    dead_man_s = _dead_man_s(environment)
    if not (0 <= options.notice < math.inf and 0 <= options.grace < math.inf):
        raise ValueError(f"--notice {options.notice:g} --grace {options.grace:g}: give seconds, 0 or more")
    settings = Settings(
        job=environment["EVERSTEP_JOB"],
        token=environment[TOKEN_VARIABLE],
        master=environment["EVERSTEP_MASTER"],
        store=environment["EVERSTEP_STORE"],
        node=options.node,
        role=options.role,
        host=options.host,
        slots=options.slots,
        command=command,
        threads=environment.get("OMP_NUM_THREADS") or str(max(1, len(os.sched_getaffinity(0)) // options.slots)),
        preload=options.preload,
        plain=options.no_fork_server,
        max_restarts=options.max_restarts,
        dead_man_s=dead_man_s,
        connect_s=dead_man_s,
        checkpoint_overhead=share_of(options.checkpoint_overhead),
        persist_bytes_per_s=options.persist_bytes_per_s,
        has_beacon=options.has_beacon,
        any_script=options.any_script,
        unfit=options.network_check,
        box=box_of(options),
        spares=options.spares,
        stands_in=options.stands_in,
        notice_s=options.notice,
        grace_s=options.grace,
        run_dir=environment.get("EVERSTEP_RUN_DIR", ""),
        address=environment.get("EVERSTEP_IP") or "127.0.0.1",
        zone=environment.get("EVERSTEP_ZONE", ""),
        ip=environment.get("EVERSTEP_HOST_IP") or environment.get("EVERSTEP_IP", ""),
    )
    return settings, options.persist_interval


def _dead_man_s(environment: Mapping[str, str]) -> float:
    text = environment.get("EVERSTEP_DEAD_MAN_S", "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"EVERSTEP_DEAD_MAN_S={text}: not a number of seconds above 0")
    return seconds
