"""Carries out what the master says: leave, join again, test the machine, dump the stacks, persist the newest state."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from everstep.runtime.agent.background import Background
from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.dependencies import AgentStatus, Dependencies, Leave
from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.progress_monitor import ProgressMonitor
from everstep.runtime.agent.round_events import RoundEvents, RoundOver
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.worker_specs import board_path
from everstep.runtime.agent.workers import Workers
from everstep.runtime.diagnosis.self_test import COMMAND as SELF_TEST
from everstep.runtime.diagnosis.self_test import result_of
from everstep.runtime.protocol.messages import Action, Directive, SelfTest
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.watch.board import read_board
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.find_workers import LocalWorker
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.looks import look
from everstep.runtime.watch.stacks import as_text

_LONGEST_PROBLEM = 1000


class Directives:
    """Carries out those of one node, in the background where they take time."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        dependencies: Dependencies,
        client: MasterClient,
        dialogue: MasterDialogue,
        status: AgentStatus,
        workers: Workers,
        progress: ProgressMonitor,
        events: RoundEvents,
        background: Background,
        persist: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`folder`: the node's private one; `persist` has the newest state copied to the store."""
        self._settings, self._folder, self._dependencies = settings, folder, dependencies
        self._client, self._dialogue, self._status = client, dialogue, status
        self._workers, self._progress, self._events = workers, progress, events
        self._background, self._persist = background, persist

    def carry_out(self, directive: Directive | None) -> None:
        """Begin what is new in it."""
        action = self._dialogue.accept(directive)
        if directive is None:
            return
        match action:
            case Action.LEAVE:
                self._background.fail(Leave(0, directive.reason or "the master said so", by_master=True))
            case Action.REJOIN:
                self._events.put(RoundOver(directive.round, directive.reason, directive.ends_iteration))
            case Action.DUMP:
                self._background.start(self._dump_stacks(directive))
            case Action.CHECK:
                self._background.start(self._test_machine(directive.round))
            case Action.PERSIST:
                self._background.start(self._persist())

    async def _test_machine(self, round_: int) -> None:
        report = await _run_self_test(self._workers, self._settings.node, round_, self._dependencies)
        await self._client.report_test(report)

    async def _dump_stacks(self, directive: Directive) -> None:
        """Write the stacks of all ranks of this node while they hang."""
        seat, settings, folder = self._status.seat, self._settings, self._folder
        workers = _local_workers(self._workers, seat, settings.node, settings.job, folder) if seat else []
        name = f"stacks-{self._dialogue.round:06d}-{directive.number}.txt"
        try:
            standings = await _write_stacks(workers, directive.reason, name, self._dependencies)
        except Exception as error:  # noqa: BLE001 - whatever a look at them meets, the node trains on
            self._dependencies.say(f"the stacks cannot be read: {type(error).__name__}: {error}")
            standings = []
        amended = (
            self._progress.amend(workers[at].board.local_rank, standing) for at, standing in enumerate(standings)
        )
        await self._client.report_dumped(self._dialogue.dumped_message(directive, tuple(amended)))


async def _run_self_test(workers: Workers, node: str, round_: int, dependencies: Dependencies) -> SelfTest:
    """Test this machine before the restart after that round. It counts as fit if the test could not run."""
    result = result_of(*await workers.beside.run(SELF_TEST, {}))
    verdict = result.problem or ("it is fit" if result.seconds else "not tested in time")
    untested = f"; not tested: {result.untested}" if result.untested else ""
    dependencies.say(f"test after round {round_}, {result.seconds:.2f} s: {verdict}{untested}")
    return SelfTest(node, round_, result.seconds, result.problem[:_LONGEST_PROBLEM])


def _local_workers(workers: Workers, seat: Seat, node: str, job: str, folder: Path) -> list[LocalWorker]:
    """The live workers of that seat in the order of local ranks, each with its board, or with what is known without."""

    def worker(local_rank: int, pid: int) -> LocalWorker:
        path = board_path(folder, local_rank)
        initial_board = Board(pid, seat.first_rank + local_rank, seat.world_size, local_rank, seat.round, job)
        return LocalWorker(node, path, read_board(path) or initial_board)

    return [worker(local_rank, pid) for local_rank, pid in sorted(workers.pids().items())]


async def _write_stacks(
    workers: Sequence[LocalWorker], why: str, name: str, dependencies: Dependencies
) -> list[Standing]:
    """Print the stacks of these workers and keep them as a log of that name. Returns where the workers stand."""
    dependencies.say(f"stacks of ranks {', '.join(str(worker.board.rank) for worker in workers)}: {why}")
    looks = await look(workers)
    text = "".join(as_text(rank_look.stacks) for rank_look in looks)
    dependencies.say(text)
    try:
        await asyncio.to_thread(dependencies.keep_log, name, text.encode())
    except OSError as error:
        dependencies.say(f"{name} is not in the store: {error}")
    return [
        msgspec.structs.replace(rank_look.standing, place=rank_look.standing.place[:500])
        for rank_look in looks
        if rank_look.standing
    ]
