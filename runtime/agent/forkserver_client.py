"""The agent's side of the fork server, and the messages between the two: one JSON message per packet.

The agent sends Spawn (with the worker's stdout and stderr as file descriptors), Signal and Clone. The fork server sends
Ready once, and Exited for each worker. Each worker sends Forked itself, before anything else: Exited comes later.
"""

import asyncio
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from everstep.runtime.agent.forkserver_process import ClonedProcess
from everstep.runtime.agent.process_group import kill_rest
from everstep.runtime.system.processes import wait_for_end

LARGEST_PACKET = 1 << 18


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Fork a worker."""

    id: int
    environment: Mapping[str, str]
    """Set over the environment that the fork server was started with."""
    command: tuple[str, ...] = ()
    """The worker's command if it differs from the one the fork server was started with."""
    cpus: tuple[int, ...] = ()
    """The worker's logical CPUs; empty: all that the fork server may use."""
    life_line: str = ""
    """Where the worker, if it is a plain fork, holds a life line; empty: nowhere."""


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to the worker's whole process group."""

    id: int
    signal: int


class Clone(msgspec.Struct, frozen=True, tag=True):
    """Fork another fork server, which is ready at once, and serves the connection whose end comes with this."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Preloading is finished."""

    pid: int
    """The fork server's."""
    seconds: float
    plain: str
    """Why workers are started by exec instead of by fork alone; empty if they are plain forks."""
    warnings: tuple[str, ...] = ()


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The worker runs. One that is killed at once may not have said so."""

    id: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """The worker is dead; the rest of its process group was sent SIGKILL."""

    id: int
    exit_code: int
    """Negative for a signal."""
    time: float
    """Unix time."""
    pid: int
    was_told: bool = False
    """The fork server has got SIGTERM or SIGINT while this worker lived: whoever ends all processes of a machine
    (systemd, Slurm) sends it to each."""


class ForkServerLost(RuntimeError):  # noqa: N818 (a name that reads well in `except`)
    """The fork server ended unexpectedly; its workers die with it."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ready | Forked | Exited).decode


PRELOAD_S = 180.0
"""The longest that a fork server may take to import what the script imports."""


class ForkServer:
    """A running fork server, on an event loop."""

    def __init__(
        self,
        process: subprocess.Popen[bytes] | None,
        connection: socket.socket,
        on_fork: Callable[[Forked], None],
        on_exit: Callable[[Exited], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Take over its process, which may preload still. None: a clone; it says which one it is when it is ready."""
        self._loop = asyncio.get_running_loop()
        self._on_fork = on_fork
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()
        """Packets and their duplicated file descriptors that the socket has no room for yet."""
        self._pidfds: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        """Process ids of the live workers, by worker id."""
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        """Raises ForkServerLost if the fork server ended first."""
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._process: subprocess.Popen[bytes] | ClonedProcess | None = process
        self._socket = connection
        self._loop.add_reader(self._socket, self._on_readable)
        self.alive = True
        self._burial: asyncio.Task[None] | None = None
        self._loss = "the fork server ended while it preloaded"
        limit = self._loop.call_later(PRELOAD_S, self._give_up)
        self.ready.add_done_callback(lambda _: limit.cancel())

    def spawn(self, spawn: Spawn, stdout: int, stderr: int) -> None:
        """Fork a worker; `on_exit` is called at its end. Raises ForkServerLost."""
        try:
            self._send(_encode(spawn), [stdout, stderr])
        except OSError as error:
            raise ForkServerLost(f"the fork server takes no request: {error}") from error

    @property
    def forks(self) -> bool:
        """Whether what it starts has imported already what it has: it lives, is ready, and may fork."""
        return self.alive and self.ready.done() and not self.ready.result().plain

    def clone(self) -> socket.socket:
        """The connection to another fork server as this one, which outlives it, and is the agent's child, too. It is
        there only if it becomes ready: where the machine cannot make it, it counts as lost. Raises ForkServerLost."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            self._send(_encode(Clone()), [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise ForkServerLost(f"the fork server takes no request: {error}") from error
        finally:
            theirs.close()
        return ours

    def signal(self, number: int, signum: int) -> None:
        """Send a signal to a worker's process group; does nothing if the worker is gone."""
        with suppress(OSError):
            self._send(_encode(Signal(number, signum)))

    async def close(self) -> None:
        """End the fork server and its remaining workers."""
        self._disconnect()
        if self._process is not None:
            self._process.kill()
        await self._wait_for_process()
        await self._kill_workers()

    async def wait_until_buried(self) -> None:
        """Wait, if the fork server was lost, until `on_lost` was called."""
        if self._burial is not None:
            await self._burial

    def _send(self, packet: bytes, files: Sequence[int] = ()) -> None:
        """Send packets in order; queue them while the socket is full (dozens of workers at once)."""
        if not self._waiting:
            try:
                socket.send_fds(self._socket, [packet], files)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._on_writable)
            else:
                return
        self._waiting.append((packet, [os.dup(file) for file in files]))

    def _on_writable(self) -> None:
        while self._waiting:
            packet, files = self._waiting[0]
            try:
                socket.send_fds(self._socket, [packet], files)
            except BlockingIOError:
                return
            except OSError:
                break  # The fork server is gone; the read side reports that.
            self._waiting.popleft()
            for file in files:
                os.close(file)
        self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        """Handle all that has come: what a worker says elsewhere is handled no earlier than its Forked."""
        while self.alive:
            try:
                packet = self._socket.recv(LARGEST_PACKET)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if packet:
                self._handle(_decode(packet))
            else:
                self._handle_loss()

    def _handle(self, message: Ready | Forked | Exited) -> None:
        if isinstance(message, Ready):
            self._process = self._process or ClonedProcess(message.pid)
            self.ready.set_result(message)
        elif isinstance(message, Forked):
            with suppress(ProcessLookupError):
                self._pidfds[message.id] = os.pidfd_open(message.pid)
                self.pids[message.id] = message.pid
            self._on_fork(message)
        else:
            self.pids.pop(message.id, None)
            if (pidfd := self._pidfds.pop(message.id, None)) is not None:
                os.close(pidfd)
            self._on_exit(message)

    def _disconnect(self) -> None:
        if self.alive:
            self.alive = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            for _, files in self._waiting:
                for file in files:
                    os.close(file)
            self._waiting.clear()

    def _give_up(self) -> None:
        """End a fork server whose imports hang: a worker that hangs in them is seen, and its stack is written."""
        self._loss = f"the script's imports were not done after {PRELOAD_S:.0f} s"
        if self._process is not None:
            self._process.kill()

    def _handle_loss(self) -> None:
        self._disconnect()
        if not self.ready.done():
            self.ready.set_exception(ForkServerLost(self._loss))
        self._burial = self._loop.create_task(self._report_loss())

    async def _report_loss(self) -> None:
        await self._wait_for_process()
        await self._kill_workers()
        self._on_lost()

    async def _wait_for_process(self) -> None:
        """A clone that has not said which process it is was not there, or ends with its connection."""
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    async def _kill_workers(self) -> None:
        """SIGKILL the workers that outlived the fork server, and their groups; wait until the workers are dead."""
        pidfds, self._pidfds = self._pidfds, {}
        for pidfd in pidfds.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if pidfds:
            await asyncio.to_thread(kill_rest, {self.pids[number] for number in pidfds})
        for pidfd in pidfds.values():
            await wait_for_end(pidfd)
            os.close(pidfd)
