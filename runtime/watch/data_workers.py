"""What the processes of a rank's data loader do while the rank waits for them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from everstep.runtime.watch.hang_culprit import ProcessState
from everstep.runtime.watch.merge import is_users
from everstep.runtime.watch.process_state import family_of, process_state
from everstep.runtime.watch.read_stacks import read_stacks
from everstep.runtime.watch.stacks import RankStacks

_MOST = 16
"""Processes of a rank whose stacks are read: each takes a tenth of a second of CPU time."""
_LONGEST = 300
_FETCH = "torch/utils/data/_utils/fetch.py"
_READ_S = 5.0
"""For their stacks, after those of the ranks: the master waits for all of them."""


async def describe_data_workers(stacks: Iterable[RankStacks]) -> Mapping[int, str]:
    """By rank, of those that wait for a process of their data loader: what the one does that does not deliver."""
    states = {stack.rank: _states(stack.pid) for stack in stacks if waits_for_data_worker(stack)}
    read = await read_stacks({pid: pid for pid in chain.from_iterable(states.values())}, timeout_s=_READ_S)
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
    """The first of these processes that cannot go on, else the first in the user's own code, or whose stacks are not
    known and that waits for a file: `process 7 is in ...`.

    Those that wait for work do not count.
    """
    for pid, state, stacks in sorted(workers, key=lambda worker: (not worker[1].is_stuck, worker[0])):
        place = _place(stacks)
        if place or state.is_stuck or (not stacks.threads and _waits_for_file(state)):
            return f"process {pid} {state.activity}{f' in {place}' if place else ''}"[:_LONGEST]
    is_known = any(stacks.threads for *_, stacks in workers)
    return "no process of it that was looked at is at work" if is_known else "what its processes do is not known"


def _waits_for_file(state: ProcessState) -> bool:
    """Whether it is in a call about a file other than those by which processes of a data loader get their work."""
    return bool(state.call) and not state.file.startswith(("pipe:", "socket:"))


def _states(pid: int) -> Mapping[int, ProcessState]:
    """Of the processes that it has started, and these: if some cannot go on, only theirs. Ended ones do not count: of
    one of its own, torch itself raises an error."""
    started = [member for member in family_of(pid) if member != pid]
    states = {
        member: state for member in started if (state := process_state(member)) is not None and state.state not in "ZX"
    }
    stuck = {child: state for child, state in states.items() if state.is_stuck}
    return dict(list((stuck or states).items())[:_MOST])


def _place(stacks: RankStacks) -> str:
    """The user's innermost call below the loop of a data loader's process (what is above it is its parent's), or that
    of a library's dataset."""
    frames = stacks.main.frames if stacks.main else ()
    loops = [at for at, frame in enumerate(frames) if frame.function.endswith("_worker_loop")]
    below = frames[loops[-1] + 1 :] if loops else ()
    own = [frame for frame in below if is_users(frame)]
    if not own and any(frame.file.endswith(_FETCH) for frame in below):  # It loads a sample.
        own = [frame for frame in below if not frame.is_native]
    return own[-1].short_place if own else ""
