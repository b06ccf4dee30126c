"""Python programs of tests as forks of one process, which has imported what they import: torch alone takes seconds.

That process is a fork of pytest's, made when all tests are imported and none of them has run, and serves as an agent's
fork server does.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from everstep.runtime.agent import forkserver
from everstep.runtime.agent.forkserver_client import LARGEST_PACKET, Exited, Forked, Ready, Spawn

MODULES = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "everstep.training")
"""What the programs need; most of it has been imported for the tests."""
DEADLINE_S = 300.0
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ready | Forked | Exited).decode


class Forks:
    """The process of which the programs are forks. Not for several threads."""

    def __init__(self) -> None:
        """Start it. Only while this process has done nothing but import."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(DEADLINE_S)
        self._started = 0
        self._ended: dict[int, int] = {}
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._channel.close()
            _serve(theirs, parent)
        theirs.close()

    def start(self, command: Sequence[str], environment: Mapping[str, str], out: Path) -> int:
        """Start `python COMMAND...` with these variables over pytest's own; stdout and stderr go to the end of `out`.

        Returns its number here."""
        self._started += 1
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            spawn = Spawn(self._started, {"OMP_NUM_THREADS": "1", **environment}, tuple(command))
            socket.send_fds(self._channel, [_encode(spawn)], [file, file])
        finally:
            os.close(file)
        return self._started

    def wait(self, number: int) -> int:
        """Its exit code, negative for a signal, when it has ended. Raises TimeoutError."""
        while number not in self._ended:
            self._hear()
        return self._ended.pop(number)

    def run(self, command: Sequence[str], environment: Mapping[str, str], out: Path) -> int:
        """Start it and wait for its end."""
        return self.wait(self.start(command, environment, out))

    def close(self) -> None:
        """End it, with whatever of its forks still lives."""
        self._channel.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _hear(self) -> None:
        packet = self._channel.recv(LARGEST_PACKET)
        assert packet, "the process of which programs are forks has ended"
        message = _decode(packet)
        if isinstance(message, Ready):
            assert not message.plain, message.plain
            assert not message.warnings, message.warnings
        elif isinstance(message, Exited):
            self._ended[message.id] = message.exit_code


def _serve(channel: socket.socket, parent: int) -> NoReturn:
    """Be that process: without what pytest made of its streams, variables and signals."""
    try:
        forkserver.die_with_parent(parent)
        sys.stdout, sys.stderr = (open(file, "w", buffering=1, closefd=False) for file in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for name in [name for name in os.environ if name.startswith("EVERSTEP_")]:
            del os.environ[name]
        os.environ.update(dict.fromkeys(forkserver.ONE_THREAD, "1"))
        channel.recv(1, socket.MSG_PEEK)  # What is imported besides is for whoever starts a program.
        preload = (f"--preload={name}" for name in MODULES)
        forkserver.main([f"--socket={channel.detach()}", *preload, "--", "--no-python", "true"])
    finally:
        os._exit(1)
