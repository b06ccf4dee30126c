"""Other commands that run beside a node's workers, with what its fork server has imported."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from everstep.runtime.agent.forkserver_client import ForkServer, ForkServerLost, Spawn
from everstep.runtime.agent.output import Pipe

_STDERR = 2


class _Command(NamedTuple):
    end: asyncio.Future[int]
    passes: bool
    """It ends when workers are started."""


class Beside:
    """The commands by the fork server's numbers."""

    def __init__(self, next_number: Callable[[], int], server: Callable[[], ForkServer | None]) -> None:
        self._next_number = next_number
        self._server = server
        self._commands: dict[int, _Command] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._commands

    def numbers(self) -> Collection[int]:
        """Those that run."""
        return self._commands.keys()

    def bury(self, number: int, exit_code: int) -> None:
        """The command has ended."""
        end = self._commands.pop(number).end
        if not end.done():
            end.set_result(exit_code)

    def end_passing(self) -> None:
        """Kill what may not run beside workers that start."""
        for number, command in self._commands.items():
            if command.passes:
                self._kill(number)

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Run a command until the next workers are started. Returns its exit code (as in subprocess) and the end of its
        output; -SIGKILL if it could not run."""
        pipe = Pipe(lambda _: None)
        try:
            try:
                _, end = self._spawn(command, environment, pipe.write_end, pipe.write_end, passes=True)
            finally:
                os.close(pipe.write_end)
            exit_code = await end
        finally:
            pipe.close()
        return exit_code, pipe.last_words()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], connection: socket.socket
    ) -> tuple[asyncio.Future[int], Callable[[], None]]:
        """Start a command whose stdout is the connection. Returns its exit code, as `run` does, and what kills it."""
        number, end = self._spawn(command, environment, connection.fileno(), _STDERR, passes=False)
        return end, lambda: self._kill(number)

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, *, passes: bool
    ) -> tuple[int, asyncio.Future[int]]:
        number, end = self._next_number(), asyncio.get_running_loop().create_future()
        try:
            if (server := self._server()) is None or not server.alive:
                raise ForkServerLost("no fork server")
            server.spawn(Spawn(number, environment, tuple(command)), stdout, stderr)
        except ForkServerLost:
            end.set_result(-signal.SIGKILL)
        else:
            self._commands[number] = _Command(end, passes)
        return number, end

    def _kill(self, number: int) -> None:
        server = self._server()
        if number in self._commands and server is not None and server.alive:
            server.signal(number, signal.SIGKILL)
