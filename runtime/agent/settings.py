"""What an agent is told on its command line and in its environment."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.agent.script import split_command

_EXAMPLE = """\
environment: EVERSTEP_JOB, EVERSTEP_JOB_TOKEN, EVERSTEP_MASTER (URL), EVERSTEP_STORE (URI) are needed;
  EVERSTEP_DEAD_MAN_S (300), EVERSTEP_RUN_DIR and OMP_NUM_THREADS are heard.

example:
  EVERSTEP_JOB=demo EVERSTEP_JOB_TOKEN=secret EVERSTEP_MASTER=http://127.0.0.1:8000 EVERSTEP_STORE=runs/store \\
    python -m runtime.agent --node worker-0-0 --slots 2 -- train.py --epochs 3
"""
_NEEDED = ("EVERSTEP_JOB", "EVERSTEP_JOB_TOKEN", "EVERSTEP_MASTER", "EVERSTEP_STORE")


@dataclass(frozen=True)
class Settings:
    """One agent's."""

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
    """`[-m] script args...`"""
    preload: Sequence[str] = ()
    plain: bool = False
    """Start workers by exec."""
    max_restarts: int = 3
    """Only told to the workers (TORCHELASTIC_MAX_RESTARTS); the master decides."""
    dead_man_s: float = 300.0
    grace_s: float = 3.0
    run_dir: str = ""
    address: str = "127.0.0.1"
    """Where this agent's own server listens."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(
        prog="python -m runtime.agent",
        description="One node of an elastic job: runs the script's workers and obeys the job's master.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--node", required=True, help="the node's name, unique in the job")
    flags.add_argument("--role", default="worker")
    flags.add_argument("--host", default="", help="the machine's name for the master's placement")
    flags.add_argument("--slots", type=int, default=1, help="workers on this node (default 1)")
    flags.add_argument("--persist-interval", type=int, default=50, help="iterations between copies to the store")
    flags.add_argument("--max-restarts", type=int, default=3, help="told to the workers; the master decides")
    flags.add_argument("--preload", action="append", default=[], metavar="MODULE", help="one more import, repeatable")
    flags.add_argument("--no-fork-server", action="store_true", help="start each worker by exec, importing by itself")
    flags.add_argument("--grace", type=float, default=3.0, help="seconds from SIGTERM to SIGKILL when leaving")
    flags.add_argument("command", nargs=argparse.REMAINDER, metavar="-- [-m] script args")
    return flags


def settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, int]:
    """The settings and the persist interval. Raises ValueError with one line; argparse's own errors exit with 2."""
    told = parser().parse_args(arguments)
    command = told.command[1:] if told.command[:1] == ["--"] else told.command
    script, _, _ = split_command(command)
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise ValueError(f"not set in the environment: {', '.join(missing)}; see --help")
    if told.slots < 1 or told.persist_interval < 1:
        raise ValueError("--slots and --persist-interval must be at least 1")
    if script and not Path(script).is_file():
        raise ValueError(f"no such script: {script}")
    dead_man = environment.get("EVERSTEP_DEAD_MAN_S", "300")
    try:
        dead_man_s = float(dead_man)
    except ValueError:
        raise ValueError(f"EVERSTEP_DEAD_MAN_S={dead_man}: not a number of seconds") from None
    settings = Settings(
        job=environment["EVERSTEP_JOB"],
        token=environment["EVERSTEP_JOB_TOKEN"],
        master=environment["EVERSTEP_MASTER"],
        store=environment["EVERSTEP_STORE"],
        node=told.node,
        role=told.role,
        host=told.host,
        slots=told.slots,
        command=command,
        preload=told.preload,
        plain=told.no_fork_server,
        max_restarts=told.max_restarts,
        dead_man_s=dead_man_s,
        grace_s=told.grace,
        run_dir=environment.get("EVERSTEP_RUN_DIR", ""),
    )
    return settings, told.persist_interval
