"""The life of an agent whose parts stand: join, take the seat, start the workers, watch, report, join again.

Each part of the story runs until there is a reason to leave. Without its master an agent keeps the workers training
until the dead man's timer ends (a master that nobody restarts). Told to end by a signal it says so to the master,
trains on while others prepare to go on without it, and leaves when it is told or its time is over.
"""

import asyncio
import math
import random
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from everstep.runtime.agent.client import MasterClient, NoPlace, NotAllowed, NotUnderstood
from everstep.runtime.agent.dependencies import TRY_AGAIN, Ending, Leave, Surroundings
from everstep.runtime.agent.oom import OomCounter, own_counter
from everstep.runtime.agent.ports import free_port
from everstep.runtime.agent.progress_monitor import Beacons
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.shutdown import Departure
from everstep.runtime.agent.stacks import write_stacks
from everstep.runtime.agent.talk import Talk
from everstep.runtime.agent.telemetry_sender import Outbox
from everstep.runtime.agent.worker_server import LinkServer
from everstep.runtime.agent.worker_specs import starts
from everstep.runtime.agent.workers import WorkerEnd, Workers
from everstep.runtime.protocol.messages import (
    Action,
    Directive,
    Holding,
    Join,
    Refusal,
    Seat,
    Unrestored,
    WorkerExit,
)
from everstep.runtime.protocol.worker_link import Fetched, Report, Welcome

_UNKNOWN_YET_S = 0.5
_AT_ONCE_S = 0.1
"""A long poll that is answered so soon has nothing to wait for."""
_LAST_TELEMETRY_S = 1.0
_LONGEST_WHY, _MOST_REFUSALS = 1000, 64
T = TypeVar("T")


@dataclass(frozen=True)
class _Broken:
    round: int
    """It and those before it are over."""
    reason: str


@dataclass
class Record:
    """What whoever runs an agent may look at meanwhile."""

    checked_s: float = 0.0
    """Seconds that this node's check took; 0: there was none."""
    failures: list[WorkerEnd] = field(default_factory=list)
    """Workers of this node that failed in its last round, the first one first."""
    seat: Seat | None = None
    """The last one."""


@dataclass(frozen=True)
class Place:
    """Where an agent runs on its machine."""

    address: str
    """HOST:PORT of its server."""
    folder: Path
    """Private to the node: its socket, the workers' error files."""
    threads: Executor
    """For what blocks."""


class Life:
    """On an event loop, from the first join to the end."""

    def __init__(
        self,
        settings: Settings,
        around: Surroundings,
        client: MasterClient,
        departure: Departure,
        place: Place,
        record: Record,
        chance: random.Random,
    ) -> None:
        """`client` has its session. Makes the node's keeper, workers and link; `run` opens and closes them."""
        self._settings, self._around, self._say, self._chance = settings, around, around.say, chance
        self._client, self._departure, self._place, self._record = client, departure, place, record
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[WorkerEnd | _Broken] = asyncio.Queue()
        self._talk = Talk(settings.node, int(time.time() * 1000))
        self._refused = 0
        self._known = False
        self._seated = 0.0
        self._reported: dict[int, int] = {}
        self._posting: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._outputs = around.make_outputs(place.folder)
        self._oom = OomCounter(own_counter())
        self._workers = Workers(
            settings.command, settings.preload, self._events.put_nowait, settings.python, around.on_start
        )
        self.keeper = around.make_keeper(self._persisted, self._unrestored)
        self._beacons = Beacons(self.keeper, settings.slots, time.monotonic, known=settings.has_beacon)
        self._link = LinkServer(
            self.keeper, Welcome(settings.job, settings.store), settings.slots, place.threads, self._report,
            self._restored, self._unrestored,
        )  # fmt: skip
        self._outbox = Outbox(client, self._talk, around.say, self._act, self._beacons.look)

    async def open(self) -> None:
        """From now on workers may greet."""
        await self._link.open(self._place.folder / "link")

    async def close(self) -> None:
        """End the workers, and let go of what the keeper holds."""
        await self._workers.close()
        await self._link.close()
        self.keeper.close()

    async def run(self) -> Ending:
        """Until there is a reason to leave."""
        parts = [self._rounds, self._listen, self._outbox.run, self._no_master, self._notice, self._failure]
        parts += [self._look_for_everstep] if self._settings.any_script else []
        tasks = [asyncio.create_task(part()) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise AssertionError("a part of the agent ended without a reason")
        except Leave as leave:
            ending = Ending(leave.code, str(leave), leave.told)
        except NoPlace as error:
            ending = Ending(0, str(error), told=True)
        except (NotUnderstood, NotAllowed) as error:
            ending = Ending(2, str(error))
        finally:
            for task in [*tasks, *self._posting]:
                task.cancel()
            await asyncio.gather(*tasks, *self._posting, return_exceptions=True)
        self._around.note(f"leaves: {ending.reason}")
        if ending.told and self._settings.asks_end:
            ending = replace(ending, job=await self._client.ended(self._settings.node))
        if self._departure.given:
            ending = replace(ending, code=128 + self._departure.signal)
        await self._workers.end(self._settings.grace_s, self._departure.signal)
        try:
            async with asyncio.timeout(_LAST_TELEMETRY_S):
                await self._outbox.flush()
        except (TimeoutError, NoPlace, NotAllowed, NotUnderstood):
            pass
        return ending

    async def _rounds(self) -> None:
        while True:
            for line in await self._workers.ready(self._settings.plain):
                self._around.note(line)
            burial = asyncio.create_task(self._bury())
            asked = self._loop.time()
            try:
                seat = await self._seat()
                await burial
            finally:
                burial.cancel()
            self._around.on_seat(seat, self._loop.time() - asked)
            end = await self._one_round(seat)
            self._link.end()
            self._beacons.end()
            self._workers.signal(signal.SIGKILL)
            if end is not None:
                self._record.failures.append(end)
                await self._fault(seat, end)

    async def _bury(self) -> None:
        """Until the round's workers are dead; then what they were writing is forgotten."""
        await self._workers.gone()
        if self._talk.round:
            for local_rank in range(self._settings.slots):
                self.keeper.worker_died(local_rank)

    async def _seat(self) -> Seat:
        """Join until a seat is given."""
        settings = self._settings
        since = self._loop.time()
        while True:
            draft = Join(
                node=settings.node,
                role=settings.role,
                host=settings.host,
                slots=settings.slots,
                address=self._place.address,
                master_port=free_port(self._chance),
                holdings=await self._in_thread(self.keeper.holdings, self._place.address),
                ip=settings.ip,
                index=settings.index,
                checked=self._record.checked_s,
            )
            join, asked = self._talk.join(draft), self._loop.time()
            self._around.note(f"joins, after round {join.after_round}, with {len(join.holdings)} shards in memory")
            try:
                async with asyncio.timeout_at(since + settings.pend_s if settings.pend_s < math.inf else None):
                    seat = await self._client.join(join)
            except TimeoutError:
                raise Leave(TRY_AGAIN, f"no round had a place for this node within {settings.pend_s:g} s") from None
            self._known = True
            if seat is not None:
                return seat
            if self._loop.time() - asked < _AT_ONCE_S:  # Another agent of this node is known; heartbeats will tell.
                await asyncio.sleep(_UNKNOWN_YET_S)

    async def _one_round(self, seat: Seat) -> WorkerEnd | None:
        """Start the workers and wait: the first that died unfinished; None when the round was broken and none had."""
        self._talk.take(seat)
        self._record.seat, self._seated, self._reported = seat, time.monotonic(), {}
        self._client.crowd = seat.group_world_size
        slots = self._settings.slots
        restore = seat.restore
        start = f"iteration {restore.iteration} of round {restore.round} ({restore.reason})" if restore else "nothing"
        last = seat.first_rank + slots - 1
        self._around.note(f"round {seat.round}: ranks {seat.first_rank}..{last} of {seat.world_size}, from {start}")
        self.keeper.new_round(seat)
        self._link.begin(seat)
        self._beacons.begin()
        self._oom.rose()
        self._record.failures = []
        self._workers.start(seat.round, starts(self._settings, seat, self._outputs, self._place.folder))
        running = slots
        while True:
            event = await self._events.get()
            if isinstance(event, _Broken):
                if self._talk.ends(event.round):
                    self._say(f"round {seat.round} is over: {event.reason}")
                    await self._workers.told()
                    return self._failed_in(seat.round)
            elif event.round == seat.round:
                if event.exit_code:
                    return event
                running -= 1
                if not running:
                    self._beacons.end()
                    self._post(self._finished(seat))

    def _failed_in(self, round_: int) -> WorkerEnd | None:
        """Of the workers whose ends were told behind the round's own, the first that failed: it may be the cause."""
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, WorkerEnd) and event.round == round_ and event.exit_code:
                return event
        return None

    async def _finished(self, seat: Seat) -> None:
        self._around.note(f"round {seat.round}: all workers finished")
        await self._outbox.flush()
        await self._client.finished(self._talk.finished(seat.round))

    async def _fault(self, seat: Seat, end: WorkerEnd) -> None:
        iteration = max(self._beacons.iteration(end.local_rank), self._reported.get(end.local_rank, 0))
        rank = seat.first_rank + end.local_rank
        oom = end.exit_code == -signal.SIGKILL and self._oom.rose()
        why = ", out of memory" if oom else ""
        self._say(f"round {seat.round}: rank {rank} ended with exit code {end.exit_code}{why} at iteration {iteration}")
        told = WorkerExit(
            node=self._settings.node,
            round=seat.round,
            rank=rank,
            local_rank=end.local_rank,
            exit_code=end.exit_code,
            iteration=iteration,
            error=end.error,
            oom=oom,
        )
        died = end.time or time.time()
        await self._client.fault(lambda: msgspec.structs.replace(told, ago_s=max(time.time() - died, 0.0)))

    async def _listen(self) -> None:
        """The long poll."""
        while True:
            beat = self._talk.beat(**self._beacons.look()._asdict())
            began, known = self._loop.time(), self._known
            try:
                directive = await self._client.heartbeat(beat)
            except NoPlace:
                if known:
                    raise
                # A node that came by itself is unknown until it has joined, which may be since it was asked.
                await asyncio.sleep(_UNKNOWN_YET_S)
                continue
            self._act(directive)
            if (directive is None or directive.number <= beat.seen) and self._loop.time() - began < _AT_ONCE_S:
                await asyncio.sleep(_UNKNOWN_YET_S)

    def _act(self, directive: Directive | None) -> None:
        self._outbox.heard(directive)
        action = self._talk.hear(directive)
        if directive is None:
            return
        match action:
            case Action.LEAVE:
                self._fail(Leave(0, directive.reason or "the master said so", told=True))
            case Action.REJOIN:
                self._events.put_nowait(_Broken(directive.round, directive.reason))
            case Action.DUMP:
                self._post(self._dump(directive))
            case Action.PERSIST:
                self._post(self._persist())

    async def _dump(self, directive: Directive) -> None:
        """Write the stacks of all ranks of this node, while they stand."""
        round_, first = self._talk.round, self._record.seat.first_rank if self._record.seat else 0
        pids = {first + local_rank: pid for local_rank, pid in sorted(self._workers.pids().items())}
        await write_stacks(pids, directive.reason, f"stacks-{round_:06d}-{directive.number}.txt", self._around)
        await self._client.dumped(self._talk.dumped(directive))

    async def _persist(self) -> None:
        if self._settings.persists:
            await self._in_thread(self.keeper.persist_newest)

    async def _save(self) -> None:
        """The newest state of the running round that is staged here is committed in the store, or cannot be."""
        held = await self._in_thread(self.keeper.holdings, self._place.address)
        newest = max((h for h in held if h.round == self._talk.round), key=lambda h: h.iteration, default=None)
        if newest is not None and newest.shards > 1:
            await self._persist()  # The others put theirs when they are told; this node serves its own until then.
        elif newest is not None and self._settings.persists:
            try:
                await self._in_thread(self.keeper.flush, newest.index, newest.iteration)
            except (RuntimeError, OSError) as error:
                self._say(str(error))

    async def _no_master(self) -> None:
        await self._departure.without_master(self._client)

    async def _notice(self) -> None:
        await self._departure.on_notice(self._client, self._talk, lambda: self._known, self._save)

    async def _look_for_everstep(self) -> None:
        await self._link.never_greeted()
        self._say("the script does not call everstep: it restarts from nothing, and a hang is not seen")
        await asyncio.Event().wait()

    def _report(self, local_rank: int, report: Report) -> None:
        if self._link.seat is not None:
            self._reported[local_rank] = report.iteration
            self._outbox.iteration(self._link.seat, local_rank, report)
            self._outbox.interval(self._link.seat, report.iteration, *self.keeper.interval())

    def _restored(self, local_rank: int, told: msgspec.Struct) -> None:
        if self._link.seat is not None and isinstance(told, Fetched) and told.iteration:
            self._outbox.restored(self._link.seat, local_rank, told, time.monotonic() - self._seated)

    def _persisted(self, holding: Holding) -> None:
        """Called in a keeper's thread."""
        self._loop.call_soon_threadsafe(lambda: self._post(self._tell_persisted(holding)))

    def _unrestored(self, refusals: tuple[Refusal, ...]) -> None:
        """Called in any thread: the master is told, once a round."""
        self._loop.call_soon_threadsafe(self._refuse, refusals)

    def _refuse(self, refusals: tuple[Refusal, ...]) -> None:
        if (seat := self._link.seat) is not None and self._refused < seat.round:
            self._refused = seat.round
            few = tuple(msgspec.structs.replace(one, why=one.why[:_LONGEST_WHY]) for one in refusals[:_MOST_REFUSALS])
            self._post(self._client.unrestored(Unrestored(self._settings.node, seat.round, few)))

    async def _tell_persisted(self, holding: Holding) -> None:
        manifest = await self._outbox.persisted(holding)
        if manifest:
            await self._in_thread(self.keeper.committed, holding, manifest)

    def _in_thread(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._place.threads, call, *arguments)

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
