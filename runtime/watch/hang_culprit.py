"""Where a rank stands, and from all of them which one keeps the others waiting. Pure."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain, islice, pairwise

import msgspec

from everstep.runtime.watch.board_fields import GROUP_PHASE
from everstep.runtime.watch.merge import fold_ranks

_MEANINGS = {
    "T": "stopped by a signal (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "in an uninterruptible wait of the kernel (disk, network file system)",
    "Z": "dead",
    "X": "dead",
    "R": "running",
    "S": "waiting",
}


class ProcessState(msgspec.Struct, frozen=True):
    """What the kernel says about a process."""

    state: str
    """R running, S waiting, D uninterruptible, T stopped, Z zombie."""
    cpu_s: float = 0.0
    """CPU time so far."""
    wait_channel: str = ""
    call: str = ""
    """The system call it is in, if that is about a file: read, write, fsync."""
    file: str = ""
    """That file."""
    major_faults: int = 0
    """Pages that were read from disk so far."""
    cpu_wait_s: float = 0.0
    """Seconds so far that its main thread could run and had no CPU."""
    swapped_bytes: int = 0
    """Of its memory, in swap."""

    @property
    def meaning(self) -> str:
        """In words."""
        return _MEANINGS.get(self.state, f"in state {self.state}")

    @property
    def is_stuck(self) -> bool:
        """Whether it can do nothing by itself: it is stopped, dead, or the kernel does not let it go on."""
        return self.state in "TtZXD"

    @property
    def activity(self) -> str:
        """`is blocked in read of a pipe`, or its state where that says more than `is`."""
        if self.call and self.file and (not self.is_stuck or self.state == "D"):
            return f"is blocked in {self.call} of {_file(self.file)}"
        return f"is {self.meaning}" if self.is_stuck else "is"


class Standing(msgspec.Struct, frozen=True):
    """Where one rank stands."""

    rank: int
    world_size: int
    node: str = ""
    iteration: int = 0
    phase: str = ""
    entered: int = 0
    """Collectives that it entered in this round, of all its groups."""
    completed: int = 0
    collective: str = ""
    """The one it waits in: `all_reduce [1024]`."""
    counted_ago_s: float | None = None
    """Age of these counts; None: they are not known."""
    process: ProcessState = ProcessState("S")
    cpu: float = 0.0
    """Cores that it uses."""
    place: str = ""
    """The user's own innermost call."""
    lock_holder: str = ""
    """The thread that holds the interpreter's lock."""
    in_kernel: float = 0.0
    """Share of the time that its main thread is in an uninterruptible wait."""
    without_cpu: float = 0.0
    """Share of the time that its main thread could run and had no CPU."""
    faults_hz: float = 0.0
    """Pages that it reads from disk, a second."""
    neighbour: str = ""
    """Who uses most of the node's CPU, other than the job's ranks: `stress (pid 12), 3.9 cores`."""
    link: str = ""
    """What of its sockets is not acknowledged by the other end, if anything."""
    data_worker: str = ""
    """It waits for a process of its data loader: what that one does, `process 7 is in load (data.py:3)`."""
    in_transfer: bool = False
    """It is in a call of torch.distributed that is no collective, such as recv: it waits for one rank."""

    @property
    def waits(self) -> bool:
        """Whether it waits in a collective."""
        return self.entered > self.completed


class Cause(StrEnum):
    """What keeps the others waiting."""

    STOPPED = "stopped"
    GONE = "gone"
    KERNEL = "kernel"
    SILENT = "silent"
    """Its own watching thread does not run: something holds the interpreter's lock."""
    DIFFERENT_COLLECTIVE = "different collective"
    DIFFERENT_SHAPE = "different shape"
    BLOCKED_FILE = "blocked file"
    MEMORY = "memory"
    """It reads its own memory back from disk."""
    DISK = "disk"
    NO_CPU = "no CPU"
    """Others on its node leave it too little."""
    DATA = "data"
    """It waits for its data loader's processes."""
    COMPUTES = "computes"
    NEVER_ENTERED = "never entered"
    UNSEEN = "unseen"
    NETWORK = "network"
    BEHIND = "behind"
    NOBODY = "nobody"


class Verdict(msgspec.Struct, frozen=True):
    """Who keeps the others waiting, and one sentence about it."""

    cause: Cause
    ranks: tuple[int, ...]
    """Empty: nobody in particular. Of those that are not known, the first 64."""
    sentence: str


SILENT_S = 2.0
"""A worker counts five times a second. Counts older than this: its watching thread cannot run."""
_BUSY = 0.2
"""Cores from which on a rank computes rather than waits."""
_OFTEN = 0.3
"""Share of the time from which on a wait for disk or CPU is what keeps a rank."""
_MOST_LINKS, _MOST_GAPS, _MOST_UNSEEN = 3, 32, 64
_THRASHES_HZ = 50.0
"""Pages read back from disk in a second from which on a rank's memory is what keeps it."""


def judge(standings: Sequence[Standing]) -> Verdict:
    """Who keeps the others waiting. The order of the standings does not matter.

    First what the kernel says of a process; then who is missing in the collective that others wait in; then who is in a
    different one; then, if all are in the same one, whose standing is not known, or else the network.
    """
    if not standings:
        return Verdict(Cause.NOBODY, (), "where its ranks stand is not known")
    by_rank = sorted(standings, key=lambda standing: standing.rank)
    rules = (
        _find_stopped, _find_absent, _find_missing, _find_mismatch, _find_unseen, _find_stalled_network, _find_behind,
    )  # fmt: skip
    for rule in rules:
        if (verdict := rule(by_rank)) is not None:
            return verdict
    return Verdict(Cause.NOBODY, (), f"no rank differs: {_places(by_rank)}")


def _find_stopped(by_rank: Sequence[Standing]) -> Verdict | None:
    for cause, states in ((Cause.GONE, "ZX"), (Cause.STOPPED, "Tt"), (Cause.KERNEL, "D")):
        ranks = [standing for standing in by_rank if standing.process.state in states]
        if cause is Cause.KERNEL:  # One that is served in between is slow, not stuck: `_activity` says by what.
            ranks = [
                standing for standing in ranks if not 0 < standing.in_kernel < 1 and standing.faults_hz < _THRASHES_HZ
            ]
        if ranks:
            if len(ranks) == len(by_rank) and len(by_rank) > 1 and cause is Cause.KERNEL:
                return None  # All wait for the disk: no rank is to blame.
            first = ranks[0]
            detail = f" at {first.process.wait_channel}" if cause is Cause.KERNEL and first.process.wait_channel else ""
            at = f"; it is in {first.place}" if first.place else ""
            return _verdict(cause, ranks, by_rank, f"{first.process.meaning}{detail}{at}")
    return None


def _find_absent(by_rank: Sequence[Standing]) -> Verdict | None:
    """Ranks that others wait for to make a process group."""
    absent = [standing for standing in by_rank if standing.phase != GROUP_PHASE and not standing.waits]
    if not absent or len(absent) == len(by_rank) or any(standing.waits or standing.iteration for standing in by_rank):
        return None
    cause, does = _activity(absent[0])
    what = f"never reached the point where the others create a process group; it {does}"
    return _verdict(cause, absent, by_rank, what, verb="")


def _find_missing(by_rank: Sequence[Standing]) -> Verdict | None:
    """Ranks that have entered fewer collectives than those that wait, and wait in none themselves: where there are
    others, not those that wait for one of them, as in a pipeline."""
    waiting = [standing for standing in by_rank if standing.waits]
    if not waiting:
        return None
    newest = max(standing.entered for standing in waiting)
    missing = [standing for standing in by_rank if not standing.waits and standing.entered < newest]
    silent = [standing for standing in by_rank if not _is_fresh(standing) and any(map(_is_fresh, by_rank))]
    if not missing and not silent:
        return None
    culprits = silent or [standing for standing in missing if not standing.in_transfer] or missing
    slowest = min(standing.entered for standing in culprits)
    culprits = [standing for standing in culprits if standing.entered == slowest]
    first, name = culprits[0], _operation(next(standing for standing in waiting if standing.entered == newest))
    cause, does = _activity(first)
    position = f"never entered {name} #{newest}" if first.entered < newest else f"is still in {name} #{newest}"
    return _verdict(cause, culprits, by_rank, f"{position}; it {does}", verb="")


def _activity(standing: Standing) -> tuple[Cause, str]:
    phase = f", phase {standing.phase!r}" if standing.phase else ""
    at = f" in {standing.place}{phase}" if standing.place else phase
    if not _is_fresh(standing):
        holder = f" (thread {standing.lock_holder})" if standing.lock_holder else ""
        return Cause.SILENT, f"holds the interpreter's lock{holder} and is{at or ' in native code'}"
    if standing.data_worker:
        return Cause.DATA, f"waits for its data loader{at}: {standing.data_worker}"
    if standing.faults_hz >= _THRASHES_HZ:
        swapped = (
            f", {standing.process.swapped_bytes / (1 << 20):.0f} MiB are in swap"
            if standing.process.swapped_bytes
            else ""
        )
        return Cause.MEMORY, f"reads its memory back from disk, {standing.faults_hz:.0f} pages a second{swapped}{at}"
    if standing.in_kernel >= _OFTEN:
        what = (
            f"{standing.process.call} of {_file(standing.process.file)}"
            if standing.process.call
            else "the kernel's I/O"
        )
        return Cause.DISK, f"waits {standing.in_kernel:.0%} of the time for the disk ({what}){at}"
    if standing.process.call and standing.process.file:
        return Cause.BLOCKED_FILE, f"{standing.process.activity}{at}"
    if standing.without_cpu >= _OFTEN:
        who = f"; most is used by {standing.neighbour}" if standing.neighbour else ""
        return Cause.NO_CPU, f"waits {standing.without_cpu:.0%} of the time for a CPU{at}{who}"
    if standing.cpu >= _BUSY:
        return Cause.COMPUTES, f"computes ({standing.cpu:.1f} cores){at}"
    return Cause.NEVER_ENTERED, f"is{at or ' waiting'}"


def _find_mismatch(by_rank: Sequence[Standing]) -> Verdict | None:
    """All wait, but not in the same collective."""
    waiting = [standing for standing in by_rank if standing.waits and standing.collective]
    if len(waiting) < 2 or len(waiting) < len(by_rank):
        return None
    for cause, kind in (
        (Cause.DIFFERENT_COLLECTIVE, _operation),
        (Cause.DIFFERENT_SHAPE, lambda standing: standing.collective),
    ):
        names = Counter(map(kind, waiting))
        if len(names) > 1:
            usual = names.most_common(1)[0][0]
            odd = [standing for standing in waiting if kind(standing) != usual]
            first = odd[0]
            reference = next(standing for standing in waiting if kind(standing) == usual)
            what = (
                f"waits in {kind(first)} #{first.entered} ({first.place}), the others in {usual} #{reference.entered} "
                f"({reference.place})"
            )
            return _verdict(cause, odd, by_rank, what, verb="")
    return None


def _find_unseen(by_rank: Sequence[Standing]) -> Verdict | None:
    """Ranks for which the others may wait, and of which nothing is known: their machine does not answer, or was not
    asked."""
    world, first = max(standing.world_size for standing in by_rank), by_rank[0]
    seen_ranks = [-1, *(standing.rank for standing in by_rank if 0 <= standing.rank < world), world]
    gaps = [range(before + 1, after) for before, after in pairwise(seen_ranks) if after > before + 1]
    stand = {(standing.entered, standing.waits, standing.phase == GROUP_PHASE) for standing in by_rank}
    if not gaps or len(stand) > 1:
        return None
    if first.waits:
        what = f"{_operation(first)} #{first.entered}"
    elif first.phase == GROUP_PHASE:
        what = "the making of a process group"
    else:
        return None
    seen = "the only rank" if len(by_rank) == 1 else f"all {len(by_rank)} ranks"
    waits = "waits" if len(by_rank) == 1 else "wait"
    who = f"rank {gaps[0][0]} of {world} was"
    if gaps[1:] or gaps[0][1:]:
        named = ",".join(f"{gap[0]}-{gap[-1]}" if gap[1:] else str(gap[0]) for gap in gaps[:_MOST_GAPS])
        who = f"ranks {named}{',...' if gaps[_MOST_GAPS:] else ''} of {world} were"
    sentence = f"{seen} that could be looked at {waits} in {what}; {who} not"
    return Verdict(Cause.UNSEEN, tuple(islice(chain.from_iterable(gaps), _MOST_UNSEEN)), sentence)


def _find_stalled_network(by_rank: Sequence[Standing]) -> Verdict | None:
    if len(by_rank) < 2 or not all(standing.waits for standing in by_rank):
        return None
    behind, newest = min(standing.entered for standing in by_rank), max(standing.entered for standing in by_rank)
    name = _operation(next(standing for standing in by_rank if standing.entered == newest))
    if behind < newest:  # It is still in that one, or has left it: gloo may not have marked its last one as finished.
        ranks = [standing for standing in by_rank if standing.entered == behind]
        what = f"never entered {name} #{newest}; it {_activity(ranks[0])[1]}, and #{behind} is not marked as finished"
        return _verdict(Cause.BEHIND, ranks, by_rank, what, verb="")
    what = f"all {len(by_rank)} ranks are in {name} #{behind} and none is missing: the network between their nodes"
    if links := [f"rank {standing.rank}: {standing.link}" for standing in by_rank if standing.link]:
        what += f" ({'; '.join(links[:_MOST_LINKS])})"
    return Verdict(Cause.NETWORK, tuple(standing.rank for standing in by_rank), what)


def _find_behind(by_rank: Sequence[Standing]) -> Verdict | None:
    """Nobody waits in a collective: who has done the fewest iterations, or is blocked, or computes alone."""
    if len(by_rank) > 1 and any(standing.waits for standing in by_rank):
        return None
    least, most = min(standing.iteration for standing in by_rank), max(standing.iteration for standing in by_rank)
    behind = [standing for standing in by_rank if standing.iteration == least]
    silent = [standing for standing in by_rank if not _is_fresh(standing)]
    if least == most and len(silent) < len(by_rank) and silent:
        behind = silent
    elif least == most and len(by_rank) > 1:
        return None
    cause, does = _activity(behind[0])
    cause = cause if cause is not Cause.NEVER_ENTERED else Cause.BEHIND
    return _verdict(cause, behind, by_rank, f"stands at iteration {behind[0].iteration}; it {does}", verb="")


def _is_fresh(standing: Standing) -> bool:
    return standing.counted_ago_s is None or standing.counted_ago_s <= SILENT_S


def _operation(standing: Standing) -> str:
    return standing.collective.partition(" ")[0] or "a collective"


def _verdict(
    cause: Cause, culprits: Sequence[Standing], by_rank: Sequence[Standing], what: str, verb: str = "is "
) -> Verdict:
    ranks = tuple(standing.rank for standing in culprits)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {fold_ranks(ranks)}"
    node = f" ({culprits[0].node})" if culprits[0].node and len({standing.node for standing in by_rank}) > 1 else ""
    world = max(len(by_rank), *(standing.world_size for standing in by_rank))
    return Verdict(cause, ranks, f"{who} of {world}{node} {verb}{what}")


def _places(by_rank: Sequence[Standing]) -> str:
    return ", ".join(sorted({standing.place for standing in by_rank if standing.place})) or "their places are not known"


def _file(path: str) -> str:
    return "a pipe" if path.startswith("pipe:") else "a socket" if path.startswith("socket:") else path
