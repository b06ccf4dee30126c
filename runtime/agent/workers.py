"""The workers of one node: starts them together, watches them, ends them together.

A worker that can leave a round (see `survivors`) is told when it is over, and seated again in the next one.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from everstep.runtime.agent.beside import Beside
from everstep.runtime.agent.fork_servers import ForkServers
from everstep.runtime.agent.forkserver_client import Exited, Forked, ForkServer, ForkServerLost, Spawn
from everstep.runtime.agent.forkserver_process import ForkServerProcess
from everstep.runtime.agent.output import Output, Pipe
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.agent.spares import Spare, Spares
from everstep.runtime.agent.survivors import Survivors
from everstep.runtime.agent.worker_ends import WorkerEnd, end_of, has_own_error
from everstep.runtime.protocol.survivor_link import LEAVE_S, LostConnection, NextRound, Rehearsed
from everstep.runtime.system import life_line
from everstep.runtime.system.processes import start_time

_MOST_KEPT = 16
"""Outputs of earlier rounds that are read for one worker. A script whose every round starts a process that stays needs
more, and this process has only so many descriptors."""


@dataclass(frozen=True)
class WorkerSpec:
    """The start parameters of one worker."""

    environment: Mapping[str, str]
    command: tuple[str, ...]
    output: Output
    cpus: Sequence[int] = ()
    """The worker's logical CPUs; empty: all."""


@dataclass
class _Worker:
    round: int
    local_rank: int
    output: Output
    traceback: Path
    last_output: Output | Pipe | None = None
    """Of the round before, until the worker writes to the new one."""
    kept_outputs: list[Output | Pipe] = field(default_factory=list)
    """Of earlier rounds, as long as processes hold them that the worker started then and keeps, such as those of a
    DataLoader: without a reader they would end at their next line."""
    failed_with: int = 0
    """It had an error of its own, and was killed because it did not end: it counts as ended with this exit code."""
    dead: asyncio.Event = field(default_factory=asyncio.Event)

    def leave_last_output(self) -> None:
        """It writes to the new one."""
        if (output := self.last_output) is None:
            return
        self.kept_outputs = [each for each in self.kept_outputs if each.is_open]
        if len(self.kept_outputs) < _MOST_KEPT:
            output.close_at_end()
            self.kept_outputs.append(output)
        else:
            output.close()
        self.last_output = None

    def close_outputs(self) -> None:
        """It is dead."""
        for output in (*self.kept_outputs, self.last_output, self.output):
            if output is not None:
                output.close()


class Seated(NamedTuple):
    """Which local ranks of a round are not new processes."""

    again: list[int]
    """Workers of the round before."""
    spares: list[int]


class Workers:
    """Starts and ends the node's workers through the fork server. Calls `on_end` once for each worker."""

    def __init__(
        self,
        command: Sequence[str],
        preload: Sequence[str],
        on_end: Callable[[WorkerEnd], None],
        python: str = sys.executable,
        on_start: Callable[[int, int], None] = lambda local_rank, pid: None,
        note: Callable[[str], None] = lambda line: None,
        must_be_gone: bool = False,
        has_devices: bool = False,
        first_server: ForkServerProcess | None = None,
        on_disconnected: Callable[[int, int, str], None] = lambda round_, local_rank, error: None,
    ) -> None:
        """`python` runs the script where forking is unsafe; `on_start` gets each worker's local rank and pid; `note`
        gets lines for the log. `must_be_gone`: nobody takes a dead worker's seat before the kernel has freed what it
        had. `has_devices`: see `Spares`. `first_server`: was started for this command and preloads; None: nothing was
        started yet. `on_disconnected` gets round, local rank and error of a worker that lost its connection to
        another rank."""
        self._command = tuple(command)
        self._on_end = on_end
        self._on_start = on_start
        self._on_disconnected = on_disconnected
        self._note = note
        self._servers = ForkServers(
            self._command, preload, python, first_server, self._on_forked, self._on_exited, self._on_lost
        )
        self._running: dict[int, _Worker] = {}
        self._dying: dict[int, _Worker] = {}
        """Those that run no more, and whose memory has to be free before another takes their seat."""
        self._last = 0
        self.beside = Beside(self._next_number, lambda: self._server)
        self._survivors = Survivors(self._on_seated, self._on_rehearsed, self._on_lost_connection)
        self.spares = Spares(note, has_devices)
        self._must_be_gone = must_be_gone
        self._folder: Path | None = None
        """For life lines; None: there are none."""
        self._leaving = dict[int, int]()
        """The workers that were told to leave the last round, and have not been killed: their process ids."""

    def open(self, path: Path) -> None:
        """Listen at the path for workers that can leave a round."""
        self._survivors.open(path)
        self._folder = path.parent

    async def wait_until_ready(self, plain: bool) -> tuple[str, ...]:
        """Wait until workers can be started; returns lines for the log, once. Replaces a fork server that has ended."""
        return await self._servers.wait_until_ready(plain)

    @property
    def forks(self) -> bool:
        """Whether what is started has imported already what the fork server has."""
        return self._server is not None and self._server.forks

    @property
    def _server(self) -> ForkServer | None:
        return self._servers.current

    def pids(self) -> dict[int, int]:
        """The process id of each live local rank."""
        pids = self._server.pids if self._server is not None else {}
        return {worker.local_rank: pids[number] for number, worker in self._running.items() if number in pids}

    def start(self, round_: int, restores: bool, starts: Sequence[WorkerSpec]) -> Seated:
        """Start one worker for each spec, in the order of local ranks; a worker that has left the round before takes
        its seat instead, or a warm spare. No other worker may be running.

        `restores`: the round starts from a saved state.
        """
        numbers = {worker.local_rank: number for number, worker in self._running.items()}
        self.beside.end_passing()
        again = sorted(numbers)
        self._leaving = {}
        for local_rank, start in enumerate(starts):
            Path(start.environment[TRACEBACK_VARIABLE]).unlink(missing_ok=True)
            try:
                if local_rank not in numbers and (number := self._take_spare(round_, local_rank, start)):
                    numbers[local_rank] = number
                if local_rank in numbers:
                    self._seat(numbers[local_rank], NextRound(round_, start.environment, restores), start)
                else:
                    self._spawn(round_, local_rank, start)
            finally:
                start.output.close_descriptors()
        if self._server is None or not self._server.alive:
            self._on_lost()
        return Seated(again, sorted(set(numbers) - set(again)))

    def start_spare(
        self, local_rank: int, environment: Mapping[str, str], command: Sequence[str], cpus: Sequence[int]
    ) -> None:
        """Start a process that rehearses the script as this local rank, on its CPUs, and becomes a worker later."""
        if self._server is None or not self._server.alive:
            return
        number = self._next_number()
        spare = Spare(local_rank, command, cpus, Pipe(lambda _: None))
        self.spares.add(number, spare)
        try:
            own = () if tuple(command) == self._command else tuple(command)
            spawn = Spawn(number, environment, own, tuple(cpus), self._life_line(number))
            self._server.spawn(spawn, spare.output.write_end, spare.output.write_end)
        except ForkServerLost:
            pass  # Its loss ends all processes, including this one, which never started.
        finally:
            os.close(spare.output.write_end)

    def survives(self, round_: int) -> bool:
        """Has a worker of this round asked to survive it?"""
        return self._survivors.any_in(round_)

    def unseated_ranks(self) -> frozenset[int]:
        """The local ranks of the workers that leave the last round, or have left it, and wait for the next one."""
        return frozenset(worker.local_rank for number, worker in self._running.items() if number in self._leaving)

    def _take_spare(self, round_: int, local_rank: int, start: WorkerSpec) -> int:
        """Make a warm spare this worker; returns its number, 0 if there is none."""
        if (spare_process := self.spares.take(local_rank, start.command, start.cpus)) is None:
            return 0
        number, spare = spare_process
        self._running[number] = _Worker(
            round_, local_rank, start.output, Path(start.environment[TRACEBACK_VARIABLE]), spare.output
        )
        return number

    def _spawn(self, round_: int, local_rank: int, start: WorkerSpec) -> None:
        number = self._next_number()
        self._running[number] = _Worker(round_, local_rank, start.output, Path(start.environment[TRACEBACK_VARIABLE]))
        try:
            if self._server is None:
                raise ForkServerLost("no fork server")
            own = () if start.command == self._command else start.command
            line = self._life_line(number)
            spawn = Spawn(number, start.environment, own, tuple(start.cpus), line)
            self._server.spawn(spawn, start.output.stdout, start.output.stderr)
        except ForkServerLost:
            pass  # Its loss ends all workers, including this one, which never started.

    def _seat(self, number: int, seat: NextRound, start: WorkerSpec) -> None:
        """Seat a worker again. If it is gone by now, the round has lost it."""
        worker = self._running[number]
        if worker.output is not start.output:  # It is no spare.
            worker.round, worker.last_output, worker.output = seat.round, worker.output, start.output
        pid = self._pid(number)
        if not (pid and self._survivors.seat(pid, seat, start.output.stdout, start.output.stderr)) and self._server:
            self._server.signal(number, signal.SIGKILL)

    async def end_iteration(self, round_: int, pace_s: float) -> None:
        """Let the workers that can leave a round end their iteration; see `Survivors.end_iteration`."""
        await self._survivors.end_iteration(round_, pace_s)

    def end_round(self, round_: int) -> None:
        """Tell the workers that can leave a round that it is over, and kill the others."""
        leaving = self._survivors.end_round(round_)
        self._leaving = {number: pid for number in self._running if (pid := self._pid(number)) in leaving}
        self._kill(self._running.keys() - self._leaving.keys())

    async def wait_until_free(self) -> list[str]:
        """Wait until each worker is dead or has left the round. Kills those that do not leave it in time, or end;
        returns lines for the log about the former."""
        pids = await self._survivors.wait_until_left(frozenset(self._leaving.values()), LEAVE_S)
        free = {number for number, pid in self._leaving.items() if pid in pids}
        late = [number for number in self._running if number in self._leaving and number not in free]
        self._kill(late)
        lines = [
            f"local rank {self._running[number].local_rank} did not leave the round within {LEAVE_S:g} s: "
            "it is started again"
            for number in late
            if self._survivors.is_connected(self._leaving[number])
        ]
        for number, worker in [*self._running.items(), *self._dying.items()]:
            if number not in free:
                await worker.dead.wait()
        return lines

    def _next_number(self) -> int:
        self._last += 1
        return self._last

    def _kill(self, numbers: Iterable[int]) -> None:
        if self._server is not None and self._server.alive:
            for number in numbers:
                self._server.signal(number, signal.SIGKILL)

    def _pid(self, number: int) -> int:
        """The process id of a live worker; 0 until it is known."""
        return self._server.pids.get(number, 0) if self._server is not None else 0

    def signal_all(self, signum: int) -> None:
        """Send the signal to the process group of every live worker."""
        if self._server is not None and self._server.alive:
            for number in self._running:
                self._server.signal(number, signum)

    async def wait_for_exits(self) -> None:
        """Wait until `on_end` was called for every worker that is dead by now: the fork server may be slower than the
        master. Also for one that has printed an error of its own, which may be why the round is over: Python takes some
        time to end, and closes the connections first. If it has not ended after LEAVE_S, it is killed."""
        ending = list[tuple[int, _Worker, int]]()
        for number, worker in list(self._running.items()):
            pid = self._pid(number)
            if pid and start_time(pid) is None:
                await worker.dead.wait()
            elif code := self._survivors.failed_with(pid) or int(has_own_error(worker.traceback)):
                ending.append((number, worker, code))
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                for _, worker, _ in ending:
                    await worker.dead.wait()
        for number, worker, code in ending:
            if not worker.dead.is_set():
                worker.failed_with = code
                self._kill([number])
        for _, worker, _ in ending:
            await worker.dead.wait()

    def failing(self) -> frozenset[int]:
        """The local ranks that have printed an error of their own and have not ended yet."""
        return frozenset(worker.local_rank for worker in self._running.values() if has_own_error(worker.traceback))

    async def wait_until_gone(self) -> None:
        """Wait until all workers are dead."""
        for worker in [*self._running.values(), *self._dying.values()]:
            await worker.dead.wait()

    async def end(self, grace_s: float, signum: int) -> None:
        """Send the signal, after `grace_s` SIGKILL; returns when all workers are dead. Spares get SIGKILL at once."""
        self._kill(self.spares.numbers())
        self.signal_all(signum)
        self.signal_all(signal.SIGCONT)  # A stopped worker receives the signal, too (systemd.kill, "KillSignal=").
        try:
            async with asyncio.timeout(grace_s):
                await self.wait_until_gone()
        except TimeoutError:
            self.signal_all(signal.SIGKILL)
            await self.wait_until_gone()

    async def close(self) -> None:
        """End the fork server and the remaining workers."""
        self._survivors.close()
        await self._servers.close()
        self._on_lost()

    def _life_line(self, number: int) -> str:
        return str(self._folder / f"life-{number}") if self._folder else ""

    def _on_forked(self, forked: Forked) -> None:
        if self._folder and (forked.id in self._running or forked.id in self.spares):
            loop = asyncio.get_running_loop()

            def note_end(exit_code: int) -> None:
                end = Exited(forked.id, exit_code, time.time(), forked.pid)
                with suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(self._on_ending, end)

            life_line.watch(Path(self._life_line(forked.id)), forked.pid, note_end)
        if worker := self._running.get(forked.id):
            self._on_start(worker.local_rank, forked.pid)

    def _on_seated(self, pid: int) -> None:
        for number, worker in self._running.items():
            if self._pid(number) == pid and worker.last_output is not None:
                worker.leave_last_output()
                self._on_start(worker.local_rank, pid)

    def _on_lost_connection(self, pid: int, message: LostConnection) -> None:
        for number, worker in self._running.items():
            if self._pid(number) == pid:
                self._on_disconnected(message.round, worker.local_rank, message.error)

    def _on_rehearsed(self, pid: int, message: Rehearsed) -> None:
        for number in self.spares.numbers():
            if self._pid(number) == pid:
                self.spares.note_rehearsed(number, message)

    def _on_ending(self, end: Exited) -> None:
        """A worker runs no more; the kernel frees its memory, and its exit follows.

        Where a warm spare takes its seat, nobody has to wait until there is room for another process.
        """
        if (worker := self._running.pop(end.id, None)) is None:
            return
        if self.spares.warm and not self._must_be_gone:
            worker.dead.set()
        else:
            self._dying[end.id] = worker
        self._report_end(worker, end)

    def _on_exited(self, exited: Exited) -> None:
        if exited.id in self.spares:
            self.spares.bury(exited.id, exited.exit_code, asyncio.get_running_loop().time())
        elif exited.id in self.beside:
            self.beside.bury(exited.id, exited.exit_code)
        elif (worker := self._dying.pop(exited.id, None)) is not None:
            worker.dead.set()
        elif (worker := self._running.pop(exited.id, None)) is not None:
            worker.dead.set()
            self._report_end(worker, exited)

    def _report_end(self, worker: _Worker, exited: Exited) -> None:
        worker.close_outputs()
        if worker.failed_with and exited.exit_code == -signal.SIGKILL:
            exited = msgspec.structs.replace(exited, exit_code=worker.failed_with)
        if exited.was_told and not exited.exit_code:  # By its own handler.
            self._note(f"local rank {worker.local_rank} was told to end and left with exit code 0: not finished")
            exited = msgspec.structs.replace(exited, exit_code=-signal.SIGTERM)
        self._on_end(end_of(exited, worker.round, worker.local_rank, worker.output, worker.traceback))

    def _on_lost(self) -> None:
        """Report all workers as killed: they died with the fork server."""
        for number in [*self.beside.numbers(), *self.spares.numbers(), *self._dying, *self._running]:
            self._on_exited(Exited(number, -signal.SIGKILL, 0.0, 0))
