"""The flags of torch's launcher (`torch.distributed.run.get_args_parser`, torch 2.15), without importing torch.

Names, defaults, choices and the PET_ variables are torch's ("torchrun (Elastic Launch)", "Environment variables of
flags"); `tests/launch/test_flags.py` compares them with the installed torch. The help texts say what a flag does here.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

AFFINITIES = ("node", "socket", "exclusive", "core-complex")
"""torch.numa.binding.AffinityMode."""


class ValueAction(argparse.Action):
    """A flag with a value. Its default is PET_<DEST> if that variable is set."""

    def __init__(self, *, environment: Mapping[str, str], dest: str, default: Any = None, **more: Any) -> None:
        super().__init__(dest=dest, default=environment.get(f"PET_{dest.upper()}", default), **more)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)


class SwitchAction(argparse.Action):
    """A flag without a value; PET_<DEST>=1 also turns it on. Raises ValueError if the variable is not a number."""

    def __init__(self, *, environment: Mapping[str, str], dest: str, default: bool = False, **more: Any) -> None:
        name = f"PET_{dest.upper()}"
        on = environment.get(name, "1" if default else "0")
        try:
            is_on = bool(int(on))
        except ValueError:
            raise ValueError(f"{name}={on}: not a number; 1 turns the flag on, 0 off") from None
        super().__init__(dest=dest, const=True, default=is_on, nargs=0, **more)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, True)


class PrintCompletion(argparse.Action):
    """Prints this command's completion script with the optional package shtab, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        try:
            import shtab  # type: ignore[import-not-found]
        except ImportError:
            parser.exit(1, f"{option_string} needs the package shtab: pip install shtab\n")
        else:
            print(shtab.complete(parser, shell=values))
            parser.exit()


def comma_separated(value: str) -> list[str]:
    """`a,b,,c` -> ["a", "b,c"]: a doubled comma stands for one comma."""
    return [word.replace("\0", ",") for word in value.replace(",,", "\0").split(",")]


def both_spellings(name: str) -> tuple[str, ...]:
    """The two spellings of a long flag that torch accepts, with dashes and with underscores."""
    return (f"--{name}", f"--{name.replace('-', '_')}") if "-" in name else (f"--{name}",)


def add_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Add all flags, then the script and its arguments."""

    def taking(name: str, text: str, *short: str, default: Any = None, kind: Any = str, **more: Any) -> None:
        parser.add_argument(
            *short,
            *both_spellings(name),
            action=ValueAction,
            environment=environment,
            type=kind,
            default=default,
            help=text,
            **more,
        )

    def switch(name: str, text: str, *short: str) -> None:
        parser.add_argument(*short, *both_spellings(name), action=SwitchAction, environment=environment, help=text)

    taking("nnodes", "nodes: a number, or MIN:MAX (default 1:1)", default="1:1")
    taking("nproc-per-node", "workers on this node: a number, cpu, gpu, xpu or auto (default 1)", default="1")
    _add_rendezvous(taking, switch)
    _add_workers(taking, switch)
    _add_logs(taking)
    taking("node-rank", "this node's number, for the static rendezvous; 0 hosts the master", default=0, kind=int)
    taking("master-addr", "where node 0 is, for the static rendezvous", default="127.0.0.1")
    taking("master-port", "where the nodes meet on node 0, for the static rendezvous (29500)", kind=int)
    taking("local-addr", "address at which others reach this node (default: the one that reaches the master)")
    parser.add_argument(
        *both_spellings("logs-specs"),
        type=str,
        help="entry point (in torchrun.logs_specs) of the class that lays out the logs",
    )
    parser.add_argument(
        *both_spellings("numa-binding"),
        type=str,
        choices=list(AFFINITIES),
        help="bind each worker to CPUs near the device whose index is its local rank",
    )
    taking(
        "signals-to-handle",
        "signals that end this node; its workers get them too (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    )
    taking("shutdown-timeout", "seconds from such a signal to SIGKILL (TORCH_ELASTIC_SHUTDOWN_TIMEOUT, 30)", kind=int)
    switch("virtual-local-rank", "each worker sees only its own GPU, as device 0 with LOCAL_RANK 0")
    parser.add_argument(
        *both_spellings("print-completion"),
        action=PrintCompletion,
        choices=_shells(),
        help="print a shell's completion script",
    )
    parser.add_argument("training_script", type=str, help="the script (with -m a module, with --no-python a program)")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments, unchanged")


def _add_rendezvous(taking: Any, switch: Any) -> None:
    taking("rdzv-backend", "c10d, or static (default); etcd is refused", default="static")
    taking("rdzv-endpoint", "HOST[:PORT] where the nodes meet; the node that is HOST hosts the master", default="")
    taking("rdzv-id", "the job's name, the same on all its nodes", default="none")
    taking(
        "rdzv-conf",
        "KEY=VALUE,...: join_timeout, last_call_timeout, read_timeout, timeout, pend_timeout, keep_alive_interval, "
        "keep_alive_max_attempt, is_host",
        default="",
    )
    switch("standalone", "one node that needs nothing else; the rendezvous flags but --rdzv-id are ignored")


def _add_workers(taking: Any, switch: Any) -> None:
    taking(
        "max-restarts", "rounds that failures of workers may end before the job fails (default 0)", default=0, kind=int
    )
    taking(
        "monitor-interval", "accepted for compatibility, ignored: exits are noticed at once", default=0.1, kind=float
    )
    taking(
        "start-method",
        "how --run-path's workers are started (default spawn)",
        default="spawn",
        choices=["spawn", "fork", "forkserver"],
    )
    taking("event-log-handler", "null (default), or console: the launch's events as JSON on stderr", default="null")
    taking("role", "ROLE_NAME of the workers", default="default")
    switch("module", "the script is a module's name, as in python -m", "-m")
    switch("no-python", "run the script as a program, not by python")
    switch("run-path", "run the script (absolute path) by runpy.run_path")


def _add_logs(taking: Any) -> None:
    taking("log-dir", "folder for <rdzv-id>_<random>/attempt_<N>/<local rank>/{stdout.log,stderr.log,error.json}")
    taking(
        "redirects", "streams to files: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:3 by local rank", "-r", default="0"
    )
    taking("tee", "streams to files and the console (as --redirects)", "-t", default="0")
    taking(
        "log-line-prefix-template",
        "prefix of --tee's lines on the console, with ${role_name} ${local_rank} ${rank} ${hostname} "
        "(default [${role_name}${local_rank}]:)",
        default="",
    )
    taking("local-ranks-filter", "only these local ranks (0,1,...) write to the console", default="")
    for stream in ("stdout", "stderr"):
        taking(
            f"duplicate-{stream}-filters",
            f"also write --tee's {stream} lines with one of these words (a,b) to filtered_{stream}.log",
            default=[],
            kind=comma_separated,
        )


def _shells() -> Sequence[str]:
    try:
        import shtab  # type: ignore[import-not-found]
    except ImportError:
        return ["bash", "zsh", "tcsh"]
    return shtab.SUPPORTED_SHELLS
