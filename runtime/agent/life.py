"""The agent's life cycle: join, take a seat, start the workers, watch them, report, join again.

Its tasks run concurrently until one of them has a reason to leave. If the master is silent, the workers train on until
the dead man's timer expires (nobody restarts the master). On a signal to end, the agent tells the master, trains on
while the other nodes prepare to continue without it, and leaves when told to or when its grace period is over.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from everstep.runtime.agent.background import Background
from everstep.runtime.agent.beside import Beside
from everstep.runtime.agent.client import MasterClient, NoPlace, NotAllowed, NotUnderstood
from everstep.runtime.agent.dependencies import AgentStatus, Dependencies, Ending, Leave, LocalResources
from everstep.runtime.agent.directives import Directives
from everstep.runtime.agent.fault_reports import FaultReports
from everstep.runtime.agent.keeper_reports import KeeperReports
from everstep.runtime.agent.last_state import LastState
from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.master_watch import MasterWatch
from everstep.runtime.agent.neighbours import NeighbourWatch, Questions
from everstep.runtime.agent.node_watch import NodeWatch
from everstep.runtime.agent.ports import free_port
from everstep.runtime.agent.progress_monitor import ProgressMonitor
from everstep.runtime.agent.round_boards import RoundBoards
from everstep.runtime.agent.round_events import NodeFailure, RoundEvents, RoundOver
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.shutdown import Shutdown
from everstep.runtime.agent.spare_keeper import SpareKeeper
from everstep.runtime.agent.spares import must_be_gone
from everstep.runtime.agent.telemetry_sender import TelemetrySender
from everstep.runtime.agent.worker_server import LinkHandlers, LinkServer
from everstep.runtime.agent.worker_specs import worker_specs
from everstep.runtime.agent.workers import Workers
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.platform.devices import may_have_devices
from everstep.runtime.protocol.messages import Directive, Heartbeat, Join
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.survivor_link import SOCKET_NAME
from everstep.runtime.protocol.worker_link import Fetched, Report, Welcome

_UNKNOWN_PAUSE_S = 0.5
_IMMEDIATE_S = 0.1
"""A long poll that is answered within this time did not wait at all."""
_LAST_TELEMETRY_S = 1.0
T = TypeVar("T")


class AgentLifecycle:
    """One agent on an event loop, from its first join to its end."""

    def __init__(
        self,
        settings: Settings,
        dependencies: Dependencies,
        client: MasterClient,
        shutdown: Shutdown,
        resources: LocalResources,
        status: AgentStatus,
        questions: Questions,
    ) -> None:
        """Create the node's keeper, workers and worker server. `client` must get its session before `run`."""
        self._settings, self._dependencies, self._say = settings, dependencies, dependencies.say
        self._client, self._shutdown, self._resources, self._status = client, shutdown, resources, status
        self._loop = asyncio.get_running_loop()
        self._events = RoundEvents()
        self._dialogue = MasterDialogue(settings.node, int(time.time() * 1000))
        self._background = Background()
        self._seated_at = 0.0

        # The workers, and the memory that keeps what they stage.
        self._outputs = dependencies.make_outputs(resources.folder)
        self._workers = self._make_workers()
        self._reports = KeeperReports(
            settings.node, client, self._background, lambda: self._link.seat, self._run_in_thread, dependencies
        )
        self.keeper = self._reports.keeper
        self._link = self._make_link()
        self._last_state = LastState(
            self._reports, settings, resources.address, self._run_in_thread, self._link.wait_for_stages, self._say
        )
        self._spare_keeper = SpareKeeper(
            settings, resources.folder, self._workers, lambda: client.training(settings.role),
            lambda: self._link.seat, self._has_trained, lambda size: self._run_in_thread(self.keeper.reserve, size),
        )  # fmt: skip

        # What this node sees of its workers and of its neighbours, and tells the master.
        boards = RoundBoards(resources.folder, status, self._workers, self._link)
        self._progress = ProgressMonitor(self.keeper, settings.slots, time.monotonic, settings.has_beacon, boards.read)
        self._neighbours = NeighbourWatch(
            questions, self._progress.observe, lambda: self._dialogue.waits or self._faults.is_reporting,
            self._report_silent,
        )  # fmt: skip
        next_master = dependencies.next_master
        self._master_watch = (
            MasterWatch(settings.node, questions, self._neighbours, client, next_master, self._say)
            if next_master else None
        )  # fmt: skip
        self._sender = TelemetrySender(
            client, self._dialogue, self._say, self._carry_out, self._progress.observe, self._neighbours.as_fields
        )
        self._watch = NodeWatch(boards, self._sender, dependencies.note)
        self._faults = FaultReports(settings.node, client, self._progress, self._sender.flush, self._say)
        self._directives = Directives(
            settings, resources.folder, dependencies, client, self._dialogue, status, self._workers, self._progress,
            self._events, self._background, self._last_state.persist,
        )  # fmt: skip

    def _make_workers(self) -> Workers:
        settings, dependencies = self._settings, self._dependencies
        return Workers(
            settings.command, settings.preload, self._events.put, settings.python, dependencies.on_start,
            dependencies.note, must_be_gone=must_be_gone(settings, os.environ),
            has_devices=may_have_devices(os.environ), first_server=dependencies.fork_server,
            on_disconnected=self._on_disconnected,
        )  # fmt: skip

    def _make_link(self) -> LinkServer:
        """The server of the workers' messages, about what the keeper keeps."""
        handlers = LinkHandlers(
            self._on_report, self._on_fetched, self._reports.on_unrestored, self._client.ask_shard,
            self._reports.evidence.note_replay,
        )  # fmt: skip
        settings = self._settings
        welcome = Welcome(settings.job, settings.store)
        return LinkServer(settings.node, self.keeper, welcome, settings.slots, self._resources.threads, handlers)

    async def open(self) -> None:
        """Listen for workers."""
        self._workers.open(self._resources.folder / SOCKET_NAME)
        await self._link.open(self._resources.folder / "link")

    async def close(self) -> None:
        """End the workers and release the keeper's shared memory."""
        await self._workers.close()
        await self._link.close()
        await self._background.cancel()
        self._faults.close()
        self.keeper.close()

    async def run(self, may_join: asyncio.Event | None = None) -> Ending:
        """Run until there is a reason to leave; then end the workers and flush telemetry.

        `may_join`: the node may join; None: at once.
        """
        parts = [
            lambda: self._run_rounds(may_join),
            self._poll_directives,
            self._sender.run,
            lambda: self._shutdown.leave_without_master(self._client),
            lambda: self._shutdown.leave_on_notice(
                self._client, self._dialogue, lambda: self._last_state.save(self._dialogue.round)
            ),
            self._neighbours.run,
            *self._watch.parts,
            self._background.wait_for_failure,
        ]
        parts += [self._master_watch.run] if self._master_watch else []
        parts += [self._warn_without_everstep] if self._settings.any_script else []
        parts += [self._spare_keeper.run] if self._settings.spares else []
        tasks = [asyncio.create_task(part()) for part in parts]
        try:
            finished_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished_tasks:
                task.result()
            raise AssertionError("a part of the agent ended without a reason")
        except Leave as leave:
            ending = Ending(leave.code, str(leave), leave.by_master)
        except NoPlace as error:
            ending = Ending(0, str(error), by_master=True)
        except (NotUnderstood, NotAllowed) as error:
            ending = Ending(ExitCode.BAD_INPUT, str(error))
        finally:
            for task in tasks:
                task.cancel()
            stopping = self._background.cancel(but=self._reports.pending.keys())
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
        self._dependencies.note(f"leaves: {ending.reason}")
        if ending.by_master:
            await self._send_last_lines()  # While somebody is there to take them.
        if ending.by_master and self._settings.asks_end:
            ending = replace(ending, job=await self._client.job_end(self._settings.node))
        if self._shutdown.has_notice:
            ending = replace(ending, code=128 + self._shutdown.signal)
        is_told = ending.by_master or self._shutdown.has_notice
        if is_told:
            await self._last_state.stage()
        await self._workers.end(self._settings.grace_s, self._shutdown.signal)
        if is_told and self._dialogue.round:
            await self._last_state.store_in_time()
        await self._send_last_lines()
        return ending

    async def _send_last_lines(self) -> None:
        """Send what the workers have done up to now, if somebody takes it."""
        self._watch.shown.look()
        try:
            async with asyncio.timeout(_LAST_TELEMETRY_S):
                await self._sender.flush()
        except (TimeoutError, NoPlace, NotAllowed, NotUnderstood):
            pass

    async def _run_rounds(self, may_join: asyncio.Event | None) -> None:
        while True:
            prepared_s = await self._prepare(may_join)
            burial = asyncio.create_task(self._clear_last_round())
            since = self._loop.time()
            try:
                seat = await self._get_seat(prepared_s)
                await burial
            finally:
                burial.cancel()
            self._dependencies.on_seat(seat, self._loop.time() - since)
            failure = await self._run_round(seat)
            self._watch.shown.look()
            self._link.end_round()
            self._progress.end()
            failed = self._workers.failing() | failure.failed if failure else frozenset[int]()
            self._workers.end_round(seat.round)
            if failure is not None:
                self._status.failures.append(failure.cause)
                await self._faults.report(seat, failure.cause, failed)

    async def _prepare(self, may_join: asyncio.Event | None) -> float:
        """Wait until workers can be started and the node may join; returns the seconds of the former."""
        began = self._loop.time()
        await self._wait_for_workers()
        prepared_s = self._loop.time() - began
        if may_join is not None:
            await may_join.wait()
        began = self._loop.time()
        await self._wait_for_workers()  # Its fork server may have ended during the check.
        if self._settings.spares and not self._dialogue.round:
            await self._spare_keeper.warm_up()
        return prepared_s + self._loop.time() - began

    async def _wait_for_workers(self) -> None:
        for line in await self._workers.wait_until_ready(self._settings.plain):
            self._dependencies.note(line)

    async def forks(self) -> Beside | None:
        """What runs commands with what this node's workers have imported, once that is; None: they import it anew."""
        await self._wait_for_workers()
        return self._workers.beside if self._workers.forks else None

    async def _clear_last_round(self) -> None:
        """Wait until the last round's workers are dead or have left it, then free the slots they were writing."""
        for line in await self._workers.wait_until_free():
            self._say(line)
        if self._dialogue.round:
            for local_rank in range(self._settings.slots):
                self.keeper.worker_died(local_rank)

    async def _get_seat(self, prepared_s: float) -> Seat:
        """Join repeatedly until the master gives a seat. Raises Leave after `pend_s`."""
        settings = self._settings
        since = self._loop.time()
        while True:
            draft = Join(
                node=settings.node,
                role=settings.role,
                host=settings.host,
                slots=settings.slots,
                address=self._resources.address,
                master_port=free_port(self._resources.chance),
                holdings=await self._run_in_thread(self.keeper.holdings, self._resources.address),
                ip=settings.ip,
                zone=settings.zone,
                index=settings.index,
                checked=self._status.checked_s,
                prepared=prepared_s,
            )
            join, sent_at = self._dialogue.next_join(draft), self._loop.time()
            self._dependencies.note(
                f"joins, after round {join.after_round}, with {len(join.holdings)} shards in memory"
            )
            try:
                async with asyncio.timeout_at(since + settings.pend_s if settings.pend_s < math.inf else None):
                    seat = await self._client.join(join)
            except TimeoutError:
                raise Leave(
                    ExitCode.TRY_AGAIN, f"no round had a place for this node within {settings.pend_s:g} s"
                ) from None
            self._dialogue.is_known = True
            if seat is not None:
                return seat
            if self._loop.time() - sent_at < _IMMEDIATE_S:  # Another agent has the node's name.
                await asyncio.sleep(_UNKNOWN_PAUSE_S)

    async def _run_round(self, seat: Seat) -> NodeFailure | None:
        """Start the workers and wait for the round's end. Returns which failed; None if the round was broken and none
        had failed."""
        self._dialogue.take_seat(seat)
        self._neighbours.take_seat(seat)
        self._status.seat, self._seated_at = seat, time.monotonic()
        self._client.crowd = seat.group_world_size
        slots = self._settings.slots
        restore = seat.restore
        start = f"iteration {restore.iteration} of round {restore.round} ({restore.reason})" if restore else "nothing"
        last = seat.first_rank + slots - 1
        self._dependencies.note(
            f"round {seat.round}: ranks {seat.first_rank}..{last} of {seat.world_size}, from {start}"
        )
        self.keeper.new_round(seat)
        self._link.begin_round(seat)
        self._progress.begin()
        self._faults.begin_round()
        self._status.failures = []
        specs = worker_specs(self._settings, seat, self._outputs, self._resources.folder)
        again, spares = self._workers.start(seat.round, seat.restore is not None, specs)
        if again:
            self._dependencies.note(f"round {seat.round}: local ranks {again} continue in their processes")
        if spares:
            self._dependencies.note(f"round {seat.round}: local ranks {spares} come from warm spares")
        running = slots
        while True:
            event = await self._events.next()
            if isinstance(event, RoundOver):
                if self._dialogue.is_over(event.round):
                    self._say(f"round {seat.round} is over: {event.reason}")
                    if event.ends_iteration:
                        await self._workers.end_iteration(seat.round, self._progress.observe().pace_s)
                    await self._workers.wait_for_exits()
                    return self._events.failure_in(seat.round)
            elif event.round == seat.round:
                running -= 1
                if event.exit_code:
                    return await self._events.failure_from(event, running)
                self._faults.note_finished(event.local_rank)
                if not running:
                    self._watch.shown.look()
                    self._progress.end()
                    self._background.start(self._report_finished(seat))

    async def _report_finished(self, seat: Seat) -> None:
        self._dependencies.note(f"round {seat.round}: all workers finished")
        await self._last_state.store()
        await self._sender.flush()
        await self._client.report_finished(self._dialogue.finished_message(seat.round))

    async def _poll_directives(self) -> None:
        """Send heartbeats as long polls, and carry out the directives."""
        while True:
            began, was_known, seen = self._loop.time(), self._dialogue.is_known, self._dialogue.seen
            try:
                directive = await self._client.send_heartbeat(self._next_heartbeat)
            except NoPlace:
                if was_known:
                    raise
                # With placement `joined` a node is unknown until it has joined. It may have joined during the poll.
                await asyncio.sleep(_UNKNOWN_PAUSE_S)
                continue
            self._carry_out(directive)
            if (directive is None or directive.number <= seen) and self._loop.time() - began < _IMMEDIATE_S:
                await asyncio.sleep(_UNKNOWN_PAUSE_S)

    def _next_heartbeat(self) -> Heartbeat:
        signals = {**self._progress.observe()._asdict(), **self._neighbours.as_fields()}
        survives = self._workers.survives(self._dialogue.round)
        return self._dialogue.next_heartbeat(survives=survives, paces=self._watch.paces.take(), **signals)

    def _report_silent(self) -> None:
        """Say at once which neighbours do not answer, beside the long poll."""
        self._background.start(self._send_heartbeat_now())

    async def _send_heartbeat_now(self) -> None:
        if self._dialogue.is_known:
            self._carry_out(await self._client.send_heartbeat(self._next_heartbeat))

    def _carry_out(self, directive: Directive | None) -> None:
        self._sender.acknowledge(directive)
        self._directives.carry_out(directive)

    def _has_trained(self, seat: Seat) -> bool:
        """Has the round of a script that survives rounds done an iteration? What that compiled is kept for others."""
        restored_iteration = seat.restore.iteration if seat.restore else 0
        return self._workers.survives(seat.round) and self._progress.observe().iteration > restored_iteration + 1

    async def _warn_without_everstep(self) -> None:
        await self._link.wait_without_greeting()
        self._say("the script has not called everstep so far; if it never does, a fault restarts it from the beginning")
        await asyncio.Event().wait()

    def _on_report(self, local_rank: int, report: Report) -> None:
        if self._link.seat is not None:
            self._faults.note_iteration(local_rank, report.iteration)
            self._reports.evidence.doubt_unless_sound(self._link.seat, report)
            self._sender.add_iteration(self._link.seat, local_rank, report)
            self._sender.add_interval(self._link.seat, report.iteration, *self.keeper.interval())

    def _on_disconnected(self, round_: int, local_rank: int, error: str) -> None:
        if (seat := self._link.seat) is not None and seat.round == round_:
            self._background.start(self._faults.report_disconnected(seat, local_rank, error))

    def _on_fetched(self, local_rank: int, fetch_reply: msgspec.Struct) -> None:
        if self._link.seat is not None and isinstance(fetch_reply, Fetched) and fetch_reply.iteration:
            self._sender.add_restored(self._link.seat, local_rank, fetch_reply, time.monotonic() - self._seated_at)

    def _run_in_thread(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._resources.threads, call, *arguments)
