"""The stacks of a job's ranks, as data. Pure."""

import msgspec


class Frame(msgspec.Struct, frozen=True, order=True):
    """One call."""

    function: str
    file: str
    line: int = 0
    """0: not known, as in native code without debug symbols."""
    is_native: bool = False

    @property
    def place(self) -> str:
        """`function@file:line`."""
        return f"{self.function}@{self.file}:{self.line}" if self.line else f"{self.function}@{self.file}"

    @property
    def short_place(self) -> str:
        """`load (data_loader.py:88)`."""
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


class Thread(msgspec.Struct, frozen=True):
    """A thread's calls, outermost first."""

    name: str
    frames: tuple[Frame, ...]
    state: str = ""
    """active | idle, and whether it holds the interpreter's lock; empty: unknown."""


class RankStacks(msgspec.Struct, frozen=True):
    """What one rank does: the stacks of its threads."""

    rank: int
    threads: tuple[Thread, ...] = ()
    pid: int = 0
    node: str = ""
    failure: str = ""
    """Why there are no stacks, or none of the kind that was asked for."""

    @property
    def main(self) -> Thread | None:
        """The thread that runs the script."""
        main_threads = (thread for thread in self.threads if thread.name == "MainThread")
        return next(main_threads, self.threads[0] if self.threads else None)


def without_launcher(stacks: RankStacks, own_thread: str) -> RankStacks:
    """The stacks without the calls by which a fork server came to run the script, and without our own thread."""
    threads_kept = []
    for thread in stacks.threads:
        starts = [at for at, frame in enumerate(thread.frames) if _runs_script(frame)]
        frames = thread.frames[starts[-1] + 1 :] if starts else thread.frames
        if frames and thread.name != own_thread:
            threads_kept.append(msgspec.structs.replace(thread, frames=frames))
    return msgspec.structs.replace(stacks, threads=tuple(threads_kept))


def _runs_script(frame: Frame) -> bool:
    return frame.function == "_run" and frame.file.endswith("runtime/agent/script.py")


def python_only(stacks: RankStacks) -> RankStacks:
    """The stacks without native frames, and without threads that run no Python."""
    threads_kept = (
        msgspec.structs.replace(thread, frames=tuple(frame for frame in thread.frames if not frame.is_native))
        for thread in stacks.threads
    )
    return msgspec.structs.replace(stacks, threads=tuple(thread for thread in threads_kept if thread.frames))


def as_text(stacks: RankStacks) -> str:
    """One rank's stacks as a log keeps them, innermost call first; `dumps.parse_text` reads it."""
    lines = [f"--- rank {stacks.rank}, process {stacks.pid}" + (f", node {stacks.node}" if stacks.node else "")]
    lines += [f"({stacks.failure})"] if stacks.failure else []
    for thread in stacks.threads:
        lines.append(f'Thread "{thread.name}"' + (f" ({thread.state})" if thread.state else ""))
        lines += (
            f"    {frame.function} ({frame.file}:{frame.line})" + (" [native]" if frame.is_native else "")
            for frame in reversed(thread.frames)
        )
    return "\n".join(lines) + "\n"
