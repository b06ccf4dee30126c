"""What the processes of a rank's data loader do while the rank waits for them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from everstep.runtime.watch.hang_culprit import ProcessState
from everstep.runtime.watch.merge import is_users
from everstep.runtime.watch.process_state import children_of, process_state
from everstep.runtime.watch.read_stacks import read_stacks
from everstep.runtime.watch.stacks import RankStacks

_MOST = 16
"""Processes of a rank whose stacks are read: each takes a tenth of a second of CPU time."""
_LONGEST = 300


async def describe_data_workers(stacks: Iterable[RankStacks]) -> Mapping[int, str]:
    """By rank, of those that wait for a process of their data loader: what the one does that does not deliver."""
    states = {stack.rank: _states(stack.pid) for stack in stacks if waits_for_data_worker(stack)}
    read = await read_stacks({pid: pid for pid in chain.from_iterable(states.values())})
    stacks_by_pid = {stack.pid: stack for stack in read}
    return {
        rank: describe([(pid, state, stacks_by_pid[pid]) for pid, state in some.items()])
        for rank, some in states.items()
    }


def waits_for_data_worker(stacks: RankStacks) -> bool:
    """Whether the main thread waits for a process of torch's DataLoader."""
    frames = stacks.main.frames if stacks.main else ()
    return any(
        frame.file.endswith("torch/utils/data/dataloader.py") and frame.function.endswith("_try_get_data")
        for frame in frames
    )


def describe(workers: Sequence[tuple[int, ProcessState, RankStacks]]) -> str:
    """The first of these processes that cannot go on, else the first in the user's own code: `process 7 is in ...`.

    Those that wait for work do not count.
    """
    for pid, state, stacks in sorted(workers, key=lambda worker: (not worker[1].is_stuck, worker[0])):
        place = _place(stacks)
        if place or state.is_stuck:
            return f"process {pid} {state.activity}{f' in {place}' if place else ''}"[:_LONGEST]
    return "none of its processes is at work"


def _states(pid: int) -> Mapping[int, ProcessState]:
    """Of the processes that it has started: if some cannot go on, only theirs."""
    states = {child: state for child in children_of(pid) if (state := process_state(child)) is not None}
    stuck = {child: state for child, state in states.items() if state.is_stuck}
    return dict(list((stuck or states).items())[:_MOST])


def _place(stacks: RankStacks) -> str:
    """The user's innermost call below the loop of a data loader's process: what is above it is its parent's."""
    frames = stacks.main.frames if stacks.main else ()
    loops = [at for at, frame in enumerate(frames) if frame.function.endswith("_worker_loop")]
    own = [frame for frame in frames[loops[-1] + 1 :] if is_users(frame)] if loops else []
    return own[-1].short_place if own else ""
