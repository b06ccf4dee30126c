"""One look at all ranks of a job: their stacks, and where each stands. As text, JSON, speedscope, pictures."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from everstep.runtime.system.tcp_sockets import describe_unacknowledged, sockets_of, tcp_sockets
from everstep.runtime.watch.board import read_board
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.data_workers import describe_data_workers
from everstep.runtime.watch.find_workers import LocalWorker
from everstep.runtime.watch.hang_culprit import ProcessState, Standing, judge
from everstep.runtime.watch.merge import is_users, merge, odd_ones, text
from everstep.runtime.watch.pictures import speedscope, svg
from everstep.runtime.watch.process_state import busiest, cpu_times, main_thread_state, process_state
from everstep.runtime.watch.read_stacks import read_stacks
from everstep.runtime.watch.stacks import RankStacks, as_text, python_only

_APART_S, _LOOKS = 0.5, 20
"""The time from the first to the last look at a process; the looks show whether it uses the CPU or waits for it."""


class Look(msgspec.Struct, frozen=True):
    """One rank's stacks, and where it stands; None: not known, as in dumps made earlier."""

    stacks: RankStacks
    standing: Standing | None = None


async def look(workers: Sequence[LocalWorker], native: bool = False) -> list[Look]:
    """Look at these workers, all at the same time."""
    before = {worker.board.rank: process_state(worker.board.pid) for worker in workers}
    own = {worker.board.pid for worker in workers}
    cpu_before, began = cpu_times(own), time.monotonic()
    in_kernel = dict.fromkeys(before, 0)
    for _ in range(_LOOKS):
        await asyncio.sleep(_APART_S / _LOOKS)
        for worker in workers:
            in_kernel[worker.board.rank] += main_thread_state(worker.board.pid) == "D"
    after = {worker.board.rank: process_state(worker.board.pid) for worker in workers}
    elapsed_s, now = time.monotonic() - began, time.time()
    neighbour, sockets = busiest(cpu_before, cpu_times(own), elapsed_s), tcp_sockets()
    links = {worker.board.rank: describe_unacknowledged(sockets_of(worker.board.pid, sockets)) for worker in workers}
    boards = {worker.board.rank: worker.path for worker in workers}
    pids = {worker.board.rank: worker.board.pid for worker in workers}
    stacks = await read_stacks(pids, native=native, boards=boards)
    data_workers = await describe_data_workers(stacks)
    return [
        Look(
            msgspec.structs.replace(stack, node=worker.node),
            msgspec.structs.replace(
                standing_of(worker.node, read_board(worker.path) or worker.board, stack,
                            (before[stack.rank], after[stack.rank], elapsed_s), now),
                in_kernel=in_kernel[stack.rank] / _LOOKS, neighbour=neighbour, link=links[stack.rank],
                data_worker=data_workers.get(stack.rank, ""),
            ),
        )
        for worker, stack in zip(workers, stacks, strict=True)
    ]  # fmt: skip


def standing_of(
    node: str,
    board: Board,
    stacks: RankStacks,
    states: tuple[ProcessState | None, ProcessState | None, float],
    now: float,
) -> Standing:
    """Where a rank stands: by its board, two states of its process (and the seconds between them), and its stacks."""
    before, after, elapsed_s = states
    cpu_used = waited_s = faults = 0.0
    if before and after and elapsed_s > 0:
        cpu_used = max(after.cpu_s - before.cpu_s, 0.0) / elapsed_s
        waited_s = max(after.cpu_wait_s - before.cpu_wait_s, 0.0) / elapsed_s
        faults = max(after.major_faults - before.major_faults, 0) / elapsed_s
    return Standing(
        rank=board.rank,
        world_size=board.world_size,
        node=node,
        iteration=board.number,
        phase=board.phase,
        entered=board.entered,
        completed=board.completed,
        collective=board.collective,
        counted_ago_s=round(max(now - board.sampled_at, 0.0), 3) if board.sampled_at else None,
        process=after or ProcessState("X"),
        cpu=round(cpu_used, 3),
        without_cpu=round(min(waited_s, 1.0), 3),
        faults_hz=round(faults, 1),
        place=place_of(stacks),
        lock_holder=next((thread.name for thread in stacks.threads if "gil" in thread.state), ""),
        in_transfer=board.entered <= board.completed and _is_in_torch_distributed(stacks),
    )


def _is_in_torch_distributed(stacks: RankStacks) -> bool:
    """Whether the main thread is in a call that communicates with other ranks."""
    frames = stacks.main.frames if stacks.main else ()
    return any(frame.file.endswith("torch/distributed/distributed_c10d.py") for frame in frames)


def place_of(stacks: RankStacks) -> str:
    """The innermost call of the main thread in the user's own code: `load (data_loader.py:88)`."""
    frames = stacks.main.frames if stacks.main else ()
    own = [frame for frame in frames if is_users(frame)] or [frame for frame in frames if not frame.is_native]
    return own[-1].short_place if own else ""


def sentence(looks: Sequence[Look]) -> str:
    """Which rank differs, and how."""
    standings = [rank_look.standing for rank_look in looks if rank_look.standing is not None]
    if len(standings) == len(looks) and (verdict := judge(standings)).ranks:
        return verdict.sentence
    return odd_ones([rank_look.stacks for rank_look in looks])


def render(looks: Sequence[Look], output: str, name: str) -> str:
    """As `text`, `json` or `speedscope`."""
    if output == "json":
        return msgspec.json.encode(looks).decode()
    if output == "speedscope":
        return speedscope([rank_look.stacks for rank_look in looks], name)
    tree = text(merge(rank_look.stacks for rank_look in looks))
    return f"{sentence(looks)}\n\n{tree}{''.join(_remarks(looks))}".rstrip()


def _remarks(looks: Sequence[Look]) -> Iterator[str]:
    for rank_look in looks:
        if rank_look.stacks.failure:
            yield f"rank {rank_look.stacks.rank}: {rank_look.stacks.failure}\n"


def parse_looks(text_: str) -> list[Look]:
    """Looks as `render` writes them in JSON; empty if the text is something else."""
    try:
        return msgspec.json.decode(text_, type=list[Look])
    except msgspec.MsgspecError:
        return []


def write_all(looks: Sequence[Look], folder: Path, name: str, native: bool) -> list[Path]:
    """Write all forms into the folder; returns the files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    stacks, title = [rank_look.stacks for rank_look in looks], sentence(looks)
    texts = {
        "stacks.txt": f"{title}\n\n" + "".join(map(as_text, stacks)),
        "stacks.json": render(looks, "json", name),
        "speedscope.json": speedscope(stacks, name),
        "py_stack.svg": svg(merge(map(python_only, stacks)), title),
    }
    if native:
        texts["native_stack.svg"] = svg(merge(stacks), title)
    for file, content in texts.items():
        (folder / file).write_text(content)
    return [folder / file for file in texts]
