"""Carries out the directives that look at the node: test the machine after a round, dump the stacks while it hangs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.runtime.agent.dependencies import Dependencies
from everstep.runtime.agent.worker_specs import board_path
from everstep.runtime.agent.workers import Workers
from everstep.runtime.diagnosis.self_test import COMMAND as SELF_TEST
from everstep.runtime.diagnosis.self_test import result_of
from everstep.runtime.protocol.messages import SelfTest
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.watch.board import read_board
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.find_workers import LocalWorker
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.looks import look
from everstep.runtime.watch.stacks import as_text

_LONGEST_PROBLEM = 1000


async def run_self_test(workers: Workers, node: str, round_: int, dependencies: Dependencies) -> SelfTest:
    """Test this machine before the restart after that round. It counts as fit if the test could not run."""
    result = result_of(*await workers.beside.run(SELF_TEST, {}))
    verdict = result.problem or ("it is fit" if result.seconds else "not tested in time")
    dependencies.say(f"test after round {round_}, {result.seconds:.2f} s: {verdict}")
    return SelfTest(node, round_, result.seconds, result.problem[:_LONGEST_PROBLEM])


def local_workers(workers: Workers, seat: Seat, node: str, job: str, folder: Path) -> list[LocalWorker]:
    """The live workers of that seat in the order of local ranks, each with its board, or with what is known without."""

    def worker(local_rank: int, pid: int) -> LocalWorker:
        path = board_path(folder, local_rank)
        initial_board = Board(pid, seat.first_rank + local_rank, seat.world_size, local_rank, seat.round, job)
        return LocalWorker(node, path, read_board(path) or initial_board)

    return [worker(local_rank, pid) for local_rank, pid in sorted(workers.pids().items())]


async def write_stacks(
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
