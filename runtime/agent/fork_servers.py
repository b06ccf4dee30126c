"""A node's fork server, and its clone: a process that has imported the same, and takes its place when it dies."""

import asyncio
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from everstep.runtime.agent.forkserver_client import Exited, Forked, ForkServer, ForkServerLost
from everstep.runtime.agent.forkserver_process import ForkServerProcess, start_fork_server

_CLONED_S = 2.0
"""How long the end of a node waits for a clone that is just being made."""


class ForkServers:
    """The fork servers of one node, of which one is in use."""

    def __init__(
        self,
        command: Sequence[str],
        preload: Sequence[str],
        python: str,
        first: ForkServerProcess | None,
        on_fork: Callable[[Forked], None],
        on_exit: Callable[[Exited], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`first`: was started for this command and preloads; None: nothing was started yet. The callbacks are those of
        the one in use."""
        self._command, self._preload, self._python, self._first = command, preload, python, first
        self._on_fork, self._on_exit, self._on_lost = on_fork, on_exit, on_lost
        self.current: ForkServer | None = None
        """The one in use; it may have ended."""
        self._clone: ForkServer | None = None
        self._starting = asyncio.Lock()

    async def wait_until_ready(self, plain: bool) -> tuple[str, ...]:
        """Wait until workers can be started; returns lines for the log, once. Replaces a fork server that has ended."""
        async with self._starting:
            server = self.current
            if server is not None and server.alive and server.ready.done():
                lines: tuple[str, ...] = ()
            else:
                lines = await self._replace(plain)
            self._keep_clone()
            return lines

    async def close(self) -> None:
        """End them and the remaining workers."""
        if self._first is not None:
            self.current = self._start(plain=False)
        if self._clone is not None and self._clone.alive:  # It says which process to wait for when it is ready.
            with suppress(ForkServerLost, TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._clone.ready), _CLONED_S)
        for server in (self._clone, self.current):
            if server is not None and server.alive:
                await server.close()

    async def _replace(self, plain: bool) -> tuple[str, ...]:
        """Have one that is ready. It may have been started before, by a call that did not wait for its end."""
        if self.current is not None and not self.current.alive:
            await self.current.wait_until_buried()  # Its end must not count as the next server's.
            self.current, self._clone = self._clone, None
            if self.current is not None:
                with suppress(ForkServerLost):
                    await asyncio.shield(self.current.ready)
                if self.current.alive:
                    return ("the fork server has ended: its clone takes its place",)
                await self.current.wait_until_buried()
                self.current = None
        self.current = self.current or self._start(plain)
        try:
            ready = await asyncio.shield(self.current.ready)
        except ForkServerLost as error:
            await self.current.wait_until_buried()
            self.current = self._start(plain=True)
            await asyncio.shield(self.current.ready)
            return (f"{error}; workers are started by exec, each imports everything itself",)
        lines = [f"preload: {line}" for line in ready.warnings]
        if ready.plain and not plain:
            lines.append(f"{ready.plain}: workers are started by exec, each imports everything itself")
        return tuple(lines)

    def _keep_clone(self) -> None:
        """Have a clone, unless the fork server has imported nothing: then another is as soon made."""
        has_clone = self._clone is not None and self._clone.alive
        if not has_clone and self.current is not None and self.current.forks:
            with suppress(ForkServerLost):
                self._clone = self._take_over(None, self.current.clone())

    def _start(self, plain: bool) -> ForkServer:
        first, self._first = self._first, None
        first = first or start_fork_server(self._command, self._preload, plain=plain, python=self._python)
        return self._take_over(first.process, first.socket)

    def _take_over(self, process: subprocess.Popen[bytes] | None, connection: socket.socket) -> ForkServer:
        server = ForkServer(process, connection, self._on_fork, self._on_exit, lambda: self._on_server_lost(server))
        return server

    def _on_server_lost(self, server: ForkServer) -> None:
        if server is self.current:
            self._on_lost()
