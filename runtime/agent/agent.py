"""The agent's life: wait for the fork server, join, take the seat, start the workers, watch, report, join again.

`Agent.run` is the whole story; each of its parts runs until the agent has a reason to leave. Without its master an
agent keeps the workers training until the dead man's timer ends (a master that nobody restarts).
"""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from runtime.agent.client import MasterClient, NoPlace, NotUnderstood
from runtime.agent.environment import NodeFacts, worker_environment
from runtime.agent.keeping import Keeper
from runtime.agent.link import Fetched, Report, Welcome
from runtime.agent.outbox import Outbox
from runtime.agent.ports import free_port
from runtime.agent.server import application
from runtime.agent.settings import Settings
from runtime.agent.socket_server import LinkServer
from runtime.agent.workers import WorkerEnd, Workers
from runtime.job.messages import Action, Directive, Finished, Heartbeat, Holding, Join, Seat, WorkerExit
from runtime.platform.debris import SHARED_MEMORY, end_processes, memory_prefix

TRY_AGAIN = 75
_UNKNOWN_YET_S = 0.5
_LAST_TELEMETRY_S = 1.0
_THREADS = 64

T = TypeVar("T")


class Leave(Exception):  # noqa: N818 (a name that reads well in `raise`)
    """The agent ends, with this exit code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class _Broken:
    round: int
    reason: str


class Agent:
    """One node of a job, on an event loop."""

    def __init__(
        self,
        settings: Settings,
        make_keeper: Callable[[Callable[[Holding], None]], Keeper],
        find_master: Callable[[], tuple[int, str] | None],
        chance: random.Random,
        log: int = 1,
    ) -> None:
        """`make_keeper` gets what to call when a shard is in the store; `log` is where the workers' output goes."""
        self._settings = settings
        self._make_keeper = make_keeper
        self._find_master = find_master
        self._chance = chance
        self._log = log
        self._events: asyncio.Queue[WorkerEnd | _Broken] = asyncio.Queue()
        self._told = asyncio.Event()
        self._round = 0
        self._seen = 0
        self._known = False
        self._seated = 0.0
        self._reported: dict[int, int] = {}
        self._posting: set[asyncio.Task[None]] = set()

    def leave(self) -> None:
        """End gracefully (SIGTERM)."""
        self._told.set()

    async def run(self) -> int:
        """Until there is a reason to leave; the exit code."""
        prefix = "." + memory_prefix(self._settings.job, self._settings.node)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=SHARED_MEMORY))  # A pod's /tmp may go before its nodes.
        threads = ThreadPoolExecutor(_THREADS, "everstep-link")
        headers = {"Authorization": f"Bearer {self._settings.token}", "Content-Type": "application/json"}
        self._keeper = keeper = self._make_keeper(self._persisted)
        self._workers = Workers(self._settings.command, self._settings.preload, self._log, self._events.put_nowait)
        welcome = Welcome(self._settings.job, self._settings.store)
        self._link = LinkServer(keeper, welcome, self._settings.slots, threads, self._report, self._restored)
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        self._threads = threads
        runner = web.AppRunner(application(keeper, self._settings.token), access_log=None, shutdown_timeout=0.2)
        try:
            async with aiohttp.ClientSession(headers=headers) as session:
                self._client = MasterClient(session, self._settings.master, self._find_master, self._chance, self._say)
                self._outbox = Outbox(
                    self._client, self._settings.node, self._say, self._act, lambda: (self._round, self._seen)
                )
                await self._open(folder, runner)
                return await self._until_leave()
        finally:
            await self._workers.close()
            await self._link.close()
            await runner.cleanup()
            keeper.close()
            end_processes(self._settings.job, self._settings.node)
            shutil.rmtree(folder, ignore_errors=True)

    async def _open(self, folder: Path, runner: web.AppRunner) -> None:
        self._folder = folder
        await self._link.open(folder / "link")
        await runner.setup()
        site = web.TCPSite(runner, self._settings.address, 0)
        await site.start()
        self._address = f"{self._settings.address}:{runner.addresses[0][1]}"

    async def _until_leave(self) -> int:
        parts = (self._rounds, self._listen, self._outbox.run, self._dead_man, self._wait_told, self._failure)
        tasks = [asyncio.create_task(part()) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise AssertionError("a part of the agent ended without a reason")
        except Leave as leave:
            code = leave.code
            self._say(f"leaves: {leave}")
        except NoPlace as error:
            code = 0
            self._say(f"leaves: {error}")
        except NotUnderstood as error:
            code = 2
            self._say(f"leaves: the master refused a message: {error}")
        finally:
            for task in [*tasks, *self._posting]:
                task.cancel()
            await asyncio.gather(*tasks, *self._posting, return_exceptions=True)
        await self._workers.end(self._settings.grace_s)
        try:
            async with asyncio.timeout(_LAST_TELEMETRY_S):
                await self._outbox.flush()
        except (TimeoutError, NoPlace, Leave):
            pass
        return code

    async def _rounds(self) -> None:
        while True:
            for line in await self._workers.ready(self._settings.plain):
                self._say(line)
            burial = asyncio.create_task(self._bury())
            try:
                seat = await self._seat()
                await burial
            finally:
                burial.cancel()
            end = await self._one_round(seat)
            self._link.end()
            self._workers.signal(signal.SIGKILL)
            if end is not None:
                await self._fault(seat, end)

    async def _bury(self) -> None:
        """Until the round's workers are dead; then what they were writing is forgotten."""
        await self._workers.gone()
        if self._round:
            for local_rank in range(self._settings.slots):
                self._keeper.worker_died(local_rank)

    async def _seat(self) -> Seat:
        """Join until a seat is given."""
        settings = self._settings
        while True:
            port = free_port(self._chance)
            holdings = await self._in_thread(self._keeper.holdings, self._address)
            join = Join(
                settings.node, settings.role, settings.host, settings.slots, self._address, port, holdings, self._round
            )
            self._say(f"joins, after round {self._round}, with {len(holdings)} shards in memory")
            seat = await self._client.join(join)
            self._known = True
            if seat is not None:
                return seat

    async def _one_round(self, seat: Seat) -> WorkerEnd | None:
        """Start the workers and wait: the first that died and had not finished, or None when the round was broken."""
        self._round, self._seated, self._reported = seat.round, time.monotonic(), {}
        self._say(
            f"round {seat.round}: ranks {seat.first_rank}..{seat.first_rank + self._settings.slots - 1} "
            f"of {seat.world_size}" + (f", from {_place(seat)}" if seat.restore else ", from nothing")
        )
        self._keeper.new_round(seat)
        self._link.begin(seat)
        facts = self._facts()
        self._workers.start(
            seat.round,
            [
                worker_environment(facts, seat, local_rank, str(self._folder / f"error-{local_rank}.json"))
                for local_rank in range(self._settings.slots)
            ],
        )
        running = self._settings.slots
        while True:
            event = await self._events.get()
            if isinstance(event, _Broken):
                if event.round >= seat.round:
                    self._say(f"round {seat.round} is over: {event.reason}")
                    return None
            elif event.round == seat.round:
                if event.exit_code:
                    return event
                running -= 1
                if not running:
                    self._post(self._finished(seat))

    async def _finished(self, seat: Seat) -> None:
        self._say(f"round {seat.round}: all workers finished")
        await self._outbox.flush()
        await self._client.finished(Finished(self._settings.node, seat.round))

    async def _fault(self, seat: Seat, end: WorkerEnd) -> None:
        iteration = max(self._keeper.beacon(end.local_rank)[0], self._reported.get(end.local_rank, 0))
        rank = seat.first_rank + end.local_rank
        self._say(f"round {seat.round}: rank {rank} ended with exit code {end.exit_code} at iteration {iteration}")
        await self._client.fault(
            WorkerExit(
                node=self._settings.node,
                round=seat.round,
                rank=rank,
                local_rank=end.local_rank,
                exit_code=end.exit_code,
                iteration=iteration,
                error=end.error,
                time=end.time or time.time(),
            )
        )

    async def _listen(self) -> None:
        """The long poll."""
        while True:
            iteration, phase = self._beacon()
            beat = Heartbeat(self._settings.node, self._round, iteration, phase, seen=self._seen)
            began = self._loop.time()
            try:
                directive = await self._client.heartbeat(beat)
            except NoPlace:
                if self._known:
                    raise
                await asyncio.sleep(_UNKNOWN_YET_S)  # A node started by hand is unknown until it has joined.
                continue
            self._act(directive)
            if (directive is None or directive.number <= beat.seen) and self._loop.time() - began < 0.1:
                await asyncio.sleep(_UNKNOWN_YET_S)

    def _act(self, directive: Directive | None) -> None:
        if directive is None or directive.number <= self._seen:
            return
        self._seen = directive.number
        if directive.action is Action.LEAVE:
            self._fail(Leave(0, directive.reason or "the master said so"))
        elif directive.action is Action.REJOIN:
            self._events.put_nowait(_Broken(directive.round, directive.reason))

    async def _dead_man(self) -> None:
        while True:
            left = self._client.heard + self._settings.dead_man_s - time.monotonic()
            if left <= 0:
                raise Leave(TRY_AGAIN, f"no master of this job answered for {self._settings.dead_man_s:.0f} s")
            await asyncio.sleep(left)

    async def _wait_told(self) -> None:
        await self._told.wait()
        raise Leave(0, "told to end")

    def _beacon(self) -> tuple[int, str]:
        """The node's slowest worker."""
        seen = [self._keeper.beacon(local_rank) for local_rank in range(self._settings.slots)] if self._round else []
        return min(seen, default=(0, ""))

    def _report(self, local_rank: int, report: Report) -> None:
        seat = self._link.seat
        if seat is not None:
            self._reported[local_rank] = report.iteration
            place = {"round": seat.round, "iteration": report.iteration, "rank": seat.first_rank + local_rank}
            self._outbox.add({**report.values, **place})

    def _restored(self, local_rank: int, told: msgspec.Struct) -> None:
        seat = self._link.seat
        if seat is not None and isinstance(told, Fetched) and told.path:
            seconds = round(time.monotonic() - self._seated, 4)
            self._outbox.add(
                {
                    "kind": "restored", "round": seat.round, "iteration": told.iteration, "source": told.source,
                    "rank": seat.first_rank + local_rank, "from_round": told.round, "seconds": seconds,
                }
            )  # fmt: skip

    def _persisted(self, holding: Holding) -> None:
        """Called in a keeper's thread."""
        self._loop.call_soon_threadsafe(lambda: self._post(self._tell_persisted(holding)))

    async def _tell_persisted(self, holding: Holding) -> None:
        manifest = await self._outbox.persisted(holding)
        if manifest:
            await self._in_thread(self._keeper.committed, holding, manifest)

    def _in_thread(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._threads, call, *arguments)

    def _post(self, story: Coroutine[Any, Any, None]) -> None:
        """Tell the master in the background; what it raises ends the agent."""
        task = asyncio.create_task(story)
        self._posting.add(task)
        task.add_done_callback(self._posted)

    def _posted(self, task: asyncio.Task[None]) -> None:
        self._posting.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _failure(self) -> None:
        await self._failed

    def _facts(self) -> NodeFacts:
        settings = self._settings
        return NodeFacts(
            job=settings.job,
            node=settings.node,
            slots=settings.slots,
            link=str(self._folder / "link"),
            store=settings.store,
            run_dir=settings.run_dir,
            max_restarts=settings.max_restarts,
            cores=len(os.sched_getaffinity(0)),
            threads=os.environ.get("OMP_NUM_THREADS", ""),
        )

    def _say(self, text: str) -> None:
        print(f"agent {self._settings.node}: {text}", file=sys.stderr, flush=True)


def _place(seat: Seat) -> str:
    assert seat.restore is not None
    return f"iteration {seat.restore.iteration} of round {seat.restore.round} ({seat.restore.reason})"
