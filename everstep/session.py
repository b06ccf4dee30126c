"""This process as a worker: its place in the job, its agent, and what it reports of each iteration.

There is one session per process, like torch.distributed's default group: `begin` creates it, `current` returns it.
"""

import atexit
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from everstep.kept_values import KeptValues, P, T
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.worker import checkpointer as worker
from everstep.runtime.checkpoint.worker.agreement import GROUP_BACKENDS
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.protocol.worker_link import Link, LinkError, Report
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board_fields import LOOP_PHASES
from everstep.trackers import Callback, figures

NOT_FINITE_SAID = (10, 100, 1000)
"""Besides the first, these losses in a row that are not finite are said."""
EVALUATION = "evaluation"
"""The phase whose seconds are reported as such."""
WATCHED = 3
"""A non-finite loss within this many iterations after a restore means that the restored state may be broken."""


class RoundOver(BaseException):
    """Leaves `main`: the round is over."""


class RehearsalOver(BaseException):
    """Leaves `main`: a spare has done its first iteration."""


@dataclass(frozen=True)
class Context:
    """This worker's place in its job."""

    rank: int
    """From 0; the same for the whole round."""
    world_size: int
    """The number of workers in this round."""
    local_rank: int
    """The rank among the workers of this node, from 0."""
    device: torch.device
    """This worker's CUDA device, or the CPU."""
    round: int
    """The number of the round; 0 without an agent."""
    link: Link | None = None
    """Connection to the node's agent; None in a plain `python script.py`."""
    _kept: KeptValues = field(default_factory=KeptValues, repr=False)
    rehearses: bool = False
    """This process is a warm spare, which does one iteration alone: `main` should write and send nothing by itself."""

    def keep(self, build: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `build(*args, **kwargs)`; under `everstep.main`, what an earlier round of this process built.

        A kept value must be in the checkpointed state, or never change: it stays as the last round left it, except that
        gradients are cleared, and modes, hooks, frozen parameters and an optimizer's settings are as built. Raises
        TypeError if the value belongs to a process group.
        """
        return self._kept.keep(build, *args, **kwargs)

    def mean(self, value: float, weight: float = 1.0) -> float:
        """The weighted mean over all ranks, the same on each. Every rank must call it: it is one small all-reduce.

        Raises whatever torch.distributed raises.
        """
        if self.world_size == 1:
            return value
        both = torch.tensor([value * weight, weight], dtype=torch.float64, device=self.device)
        dist.all_reduce(both)
        return float(both[0] / both[1])


@dataclass
class Session:
    """What this process knows about itself as a worker."""

    context: Context
    checkpointer: worker.Checkpointer | None = None
    iteration: int = 0
    pending: dict[str, float | int | str] = field(default_factory=dict)
    """Sent with the next report besides its own figures; with the first one: when the process group was ready."""
    ahead: SegmentFile | None = None
    """A segment that was mapped in advance, for the round's first checkpointer."""
    shard_requests: int = 0
    """Counts the requests for data shards."""
    not_finite: int = 0
    """How many losses in a row were not finite."""
    trackers: dict[str, Callback] = field(default_factory=dict)
    """By name; called on rank 0 with each iteration's figures."""
    loop: "OwnLoop | None" = None
    """The script's own loop, as far as it is seen; None where something else tells its iterations."""
    replayed: int = 0
    """The newest iteration that Replay has checked."""
    evaluates_since: float | None = None
    """When its phase `evaluation` began; None: it does not evaluate."""

    def begin_round(self, context: Context, facts: Mapping[str, float | int | str], ahead: SegmentFile | None) -> None:
        """Begin a later round. What the script made for the one before, it makes again."""
        self.context, self.checkpointer, self.iteration, self.ahead = context, None, 0, ahead
        self.evaluates_since = None
        self.pending = dict(facts)
        if self.loop is not None:
            self.loop.begin_round()

    def close_checkpointer(self) -> None:
        """Afterwards nothing writes a slot. The next one, which may be another round's, finds the pages mapped."""
        if self.checkpointer is not None:
            self.checkpointer.close()
            self.ahead = self.checkpointer.segment
        self.checkpointer = None

    def beacon(self, name: str) -> None:
        self.end_evaluation()
        self.evaluates_since = time.perf_counter() if name == EVALUATION else None
        in_worker.show_phase("" if name in LOOP_PHASES else name)
        if self.checkpointer is not None:
            self.checkpointer.beacon(self.iteration if self.loop is None else self.loop.current, name)

    def end_evaluation(self) -> None:
        """What was evaluated so far is of this iteration."""
        if self.evaluates_since is not None:
            self._add("evaluation_s", time.perf_counter() - self.evaluates_since)
            self.evaluates_since = None

    def note_restore(self, seconds: float) -> None:
        """The state was restored in `seconds`."""
        self._add("restore_s", seconds)

    def _add(self, name: str, seconds: float) -> None:
        self.pending[name] = float(self.pending.get(name, 0.0)) + seconds

    def report(self, values: Mapping[str, float | int | str]) -> None:
        """Add to the iteration's telemetry."""
        self.pending.update(values)
        if self.loop is not None:
            self.loop.on_report()

    def leaves_out(self, iteration: int) -> bool:
        """Whether the job skips the batch of this iteration; rank 0 says so."""
        link = self.context.link
        if link is None or iteration not in link.welcome.skips:
            return False
        if self.context.rank == 0:
            print(f"everstep: the batch of iteration {iteration} is skipped", file=sys.stderr)
        return True

    def end_rehearsal(self) -> None:
        """The first iteration is done, or something follows that has an effect. Raises RehearsalOver in a spare."""
        if self.context.rehearses:
            raise RehearsalOver

    def send(self, facts: Mapping[str, float | int | str]) -> None:
        """Send one iteration's telemetry; rank 0 sends it for all."""
        self.end_rehearsal()
        if self.context.rank == 0:
            stall = self.checkpointer.stall_s if self.checkpointer else 0.0
            line = {**facts, "stall_s": stall, **self._staging_figures(), **self.pending}
            if self.context.link is not None:
                self.context.link.tell(Report(self.iteration, line))
                self._check_replayed(self.context.link.welcome.replays)
            if isinstance(tokens := line.get("tokens"), int | float):
                in_worker.note_tokens(tokens)
            for tracker in self.trackers.values():
                tracker(self.iteration, figures(line))
            self._check_finite(line.get("loss", 0.0))
        if self.checkpointer is not None:  # An iteration that saves nothing has no stall.
            self.checkpointer.stall_s, self.checkpointer.staged_bytes, self.checkpointer.copy_s = 0.0, 0, 0.0
        self.pending.clear()

    def _check_replayed(self, interval: int) -> None:
        """Say, once, that an iteration whose gradients should have been computed again was not."""
        if interval and self.iteration == interval and self.replayed < interval and self.context.world_size > 1:
            print(
                "everstep: no rank computes another's gradients again (certify_replay): this script does not call "
                "everstep.Replay(...).check(batch)",
                file=sys.stderr,
            )

    def _staging_figures(self) -> dict[str, float | int]:
        """What the iteration's save staged, if it did."""
        saved = self.checkpointer
        return {"staged_bytes": saved.staged_bytes, "copy_s": saved.copy_s} if saved and saved.staged_bytes else {}

    def _check_finite(self, loss: float | int | str) -> None:
        """Say that a loss is not finite. Right after a restore, end the process: the restored state may be broken.

        The job then starts from an earlier state. Where states are certified, the agent reports any such loss.
        """
        if not isinstance(loss, float) or math.isfinite(loss):
            self.not_finite = 0
            return
        self.not_finite += 1
        if self.not_finite in (1, *NOT_FINITE_SAID):
            row = f", the {self.not_finite}th in a row" if self.not_finite > 1 else ""
            print(f"everstep: the loss of iteration {self.iteration} is {loss}{row}", file=sys.stderr)
        restored_iteration = self.checkpointer.restored if self.checkpointer else 0
        link = self.context.link
        if (
            link is not None
            and not link.welcome.certifies
            and restored_iteration
            and self.iteration <= restored_iteration + WATCHED
        ):
            after = f"right after iteration {restored_iteration} was restored"
            what = f"the loss of iteration {self.iteration} is {loss}, {after}"
            print(f"everstep: {what}; this worker exits so that the job returns to an earlier state", file=sys.stderr)
            raise SystemExit(ExitCode.DIVERGED)


class OwnLoop:
    """Tells the iterations of a loop that uses neither `everstep.batches` nor a framework, from its saves and reports.

    `report` may stand before or after `save` in the loop: the first iteration shows where.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reports_first: bool | None = None
        self.begin_round()
        atexit.register(self.end_at_exit)

    def begin_round(self) -> None:
        """The loop begins, again perhaps."""
        self._began = time.perf_counter()
        self._seconds = 0.0
        """Of the newest saved iteration."""
        self._is_open = False
        """It was saved, and its report is not sent yet."""
        self._done = 0
        """The newest iteration that is saved, or was restored."""
        self.current = 0
        """The iteration in progress, or that is being saved; at the end the newest."""

    def on_load(self, iteration: int) -> None:
        """The state of an iteration is loaded: what the script did before, is no part of the next one."""
        self._began = time.perf_counter()
        self._done, self.current = iteration, iteration + 1
        if self._session.checkpointer is not None:
            self._session.checkpointer.correct_beacon(self.current)

    def on_report(self) -> None:
        """The script reports."""
        if self._reports_first is None:
            self._reports_first = not self._is_open

    def on_save(self, iteration: int) -> None:
        """The script saves the state of an iteration."""
        now = time.perf_counter()
        if self._is_open and iteration != self._session.iteration:
            self.end()
        self._seconds, self._began = now - self._began, now
        self._session.iteration, self._is_open = iteration, True
        self._done = self.current = iteration
        self._session.beacon("save")
        if self._reports_first:
            self.end()

    def on_saved(self) -> None:
        """What the script does from now on is of the next iteration."""
        self.current = self._done + 1
        self._session.beacon("step")

    def on_finish(self) -> None:
        """No iteration follows."""
        self.end()
        self.current = self._done
        self._session.beacon("end")

    def end_at_exit(self) -> None:
        """The script ends; so does its newest iteration."""
        with suppress(LinkError):
            self.end()

    def end(self) -> None:
        """Send what is known of the newest saved iteration."""
        if self._is_open:
            self._is_open = False
            self._session.send({"seconds": self._seconds})


_session: Session | None = None
round_ends = threading.Event()
"""Set once the agent has said that the round ends, at the latest after this iteration."""
is_aborted = threading.Event()
"""Set before the round's process groups are aborted: what a device computes from then on may be wrong."""


def begin(context: Context, facts: Mapping[str, float | int | str], ahead: SegmentFile | None) -> None:
    """Create the session, or begin a round of it. `facts` are sent with its first report; for `ahead` see
    `map_segment_ahead`."""
    global _session
    if _session is None:
        _session = Session(context)
    is_first = _session.loop is None and _session.context.round == context.round  # `current_or_first` may have made it.
    _session.begin_round(context, facts, ahead)
    if is_first:
        _session.loop = OwnLoop(_session)


def begin_iteration() -> None:
    """Between two iterations, when the last one is saved and sent. Raises RoundOver if the round is to end here."""
    if round_ends.is_set():
        raise RoundOver("the round ends after this iteration")


def end_round() -> None:
    """Let go of what belongs to the round; afterwards nothing writes a slot."""
    if _session is not None:
        _session.close_checkpointer()


def mapped_segment() -> SegmentFile | None:
    """The shared memory of the round before: mapping it again would take as long as copying a part of it."""
    return _session.ahead if _session is not None else None


def rehearsed_bytes() -> int:
    """How large a slot for the state is; 0: not known, or each rank has its own part."""
    return _session.checkpointer.slot_bytes if _session is not None and _session.checkpointer is not None else 0


def end_rehearsal() -> None:
    """As `Session.end_rehearsal`, of this process's session if there is one."""
    if _session is not None:
        _session.end_rehearsal()


def current(name: str) -> Session:
    """The session. Raises RuntimeError: `everstep.NAME` was called before `everstep.init`."""
    if _session is None:
        raise RuntimeError(f"everstep.{name} was called before everstep.init()")
    return _session


def current_or_first() -> Session:
    """The session; the first call in a script that has not called `everstep.init` begins it. Raises LinkError."""
    global _session
    if _session is None:
        _session = Session(context_from_environment(KeptValues()))
    return _session


def context_from_environment(kept_values: KeptValues) -> Context:
    """This worker's place according to its environment; says hello to the agent."""
    rank, world_size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    round_ = int(os.environ.get("EVERSTEP_ROUND", 0))
    return Context(rank, world_size, local_rank, local_device(local_rank), round_, Link.from_environment(), kept_values)


def local_device(local_rank: int) -> torch.device:
    """The device of that local rank; the CPU where this machine has no other that a process group can use."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device(device.type, local_rank) if device and device.type in GROUP_BACKENDS else torch.device("cpu")
