"""Starts the process of a fork server. Standard library only: an agent does it before it imports the rest of itself."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from everstep.runtime.agent.compiler import compiler_variables
from everstep.runtime.net.token import TOKEN_VARIABLE

_NOT_FOR_WORKERS = (TOKEN_VARIABLE,)


class ClonedProcess(NamedTuple):
    """A child of this process that one of its children has made."""

    pid: int

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, once; returns its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServerProcess(NamedTuple):
    """A process that preloads, and the connection to it."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


def start_fork_server(
    command: Sequence[str], preload: Sequence[str], *, plain: bool = False, python: str = sys.executable
) -> ForkServerProcess:
    """Start it; it dies with this thread. `plain`: preload nothing, start every worker by exec of `python`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_WORKERS}
    environment |= compiler_variables(environment)
    flags = [f"--socket={theirs.fileno()}", *(f"--preload={name}" for name in preload)]
    flags += ["--plain", f"--python={python}"] if plain else []
    process = subprocess.Popen(
        # -u: output of forked workers is not buffered, as under torchrun.
        [sys.executable, "-u", "-m", "everstep.runtime.agent.forkserver", *flags, "--", *command],
        env=environment,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    ours.setblocking(False)
    return ForkServerProcess(process, ours)
