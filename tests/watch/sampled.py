"""Stacks for properties."""

from hypothesis import strategies as st

from everstep.runtime.watch.stacks import Frame, RankStacks, Thread

_FRAMES = st.builds(
    Frame, st.sampled_from("fgh"), st.sampled_from(["a.py", "b<&>.py"]), st.integers(1, 3), st.booleans()
)
_THREADS = st.builds(Thread, st.sampled_from(["MainThread", "loader"]), st.lists(_FRAMES, max_size=4).map(tuple))
STACKS = st.lists(
    st.builds(RankStacks, st.integers(0, 9), st.lists(_THREADS, max_size=3).map(tuple)),
    max_size=6,
    unique_by=lambda stacks: stacks.rank,
)


def stack(rank: int, *frames: tuple[str, str, int]) -> RankStacks:
    """One rank with a main thread."""
    return RankStacks(rank, (Thread("MainThread", tuple(Frame(*frame) for frame in frames)),))
