"""A node's fork server, and its clone: a process that has imported the same, and takes its place when it dies."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from everstep.runtime.agent.forkserver_client import Exited, Forked, ForkServer, ForkServerLost
from everstep.runtime.agent.forkserver_process import ForkServerProcess, start_fork_server


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
            lines = () if self.current is not None and self.current.alive else await self._replace(plain)
            self._keep_clone()
            return lines

    async def close(self) -> None:
        """End them and the remaining workers."""
        if self._first is not None:
            self.current = self._start(plain=False)
        for server in (self._clone, self.current):
            if server is not None and server.alive:
                await server.close()

    async def _replace(self, plain: bool) -> tuple[str, ...]:
        if self.current is not None:
            await self.current.wait_until_buried()  # Its end must not count as the next server's.
        if self._clone is not None:
            self.current, self._clone = self._clone, None
            with suppress(ForkServerLost):
                await self.current.ready
            if self.current.alive:
                return ("the fork server has ended: its clone takes its place",)
            await self.current.wait_until_buried()
        self.current = self._start(plain)
        try:
            ready = await self.current.ready
        except ForkServerLost as error:
            await self.current.wait_until_buried()
            self.current = self._start(plain=True)
            await self.current.ready
            return (f"{error}; workers are started by exec, each imports everything itself",)
        lines = [f"preload: {line}" for line in ready.warnings]
        if ready.plain and not plain:
            lines.append(f"{ready.plain}: workers are started by exec, each imports everything itself")
        return tuple(lines)

    def _keep_clone(self) -> None:
        """Have a clone, unless the fork server has imported nothing: then another is as soon made."""
        server = self.current
        if self._clone is None and server is not None and server.alive and not server.ready.result().plain:
            with suppress(ForkServerLost):
                self._clone = self._take_over(server.clone())

    def _start(self, plain: bool) -> ForkServer:
        process, self._first = self._first, None
        return self._take_over(
            process or start_fork_server(self._command, self._preload, plain=plain, python=self._python)
        )

    def _take_over(self, process: ForkServerProcess) -> ForkServer:
        server = ForkServer(process, self._on_fork, self._on_exit, lambda: self._on_server_lost(server))
        return server

    def _on_server_lost(self, server: ForkServer) -> None:
        if server is self._clone:
            self._clone = None  # The next round has another.
        else:
            self._on_lost()
