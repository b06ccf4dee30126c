"""This process as a worker: its place in the job, its agent, and where its checkpoints are kept.

There is one session per process, like torch.distributed's default group: `begin` creates it, `current` returns it.
"""

import atexit
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from everstep.kept_values import KeptValues, P, T
from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.shard.reshard import Shard, open_shards, verify_shards
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.stored.keys import checkpoints_prefix
from everstep.runtime.checkpoint.worker import checkpointer as worker
from everstep.runtime.checkpoint.worker.agreement import GROUP_BACKENDS
from everstep.runtime.checkpoint.worker.own_slots import OwnSlots, remove_abandoned, slots_folder
from everstep.runtime.checkpoint.worker.standalone import EVERY_S, StandaloneKeeper
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.spec import KEEP_LAST
from everstep.runtime.protocol.worker_link import Fetch, Fetched, Link, LinkError, Report
from everstep.runtime.store import Store, StoreError, open_store
from everstep.runtime.watch import in_worker
from everstep.trackers import Callback, figures

NOT_FINITE_SAID = (10, 100, 1000)
"""Besides the first, these losses in a row that are not finite are said."""
RESTORE = "restore"
EVALUATION = "evaluation"
"""The phase whose seconds are reported as such."""
WATCHED = 3
"""For so many iterations after a restore a non-finite loss means that the restored state may be broken."""


class RehearsalOver(BaseException):
    """Leaves `main`: a spare has done its first iteration."""


@dataclass(frozen=True)
class Context:
    """This worker's place in its job."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    round: int
    link: Link | None = None
    """Connection to the node's agent; None in a plain `python script.py`."""
    _kept: KeptValues = field(default_factory=KeptValues, repr=False)
    rehearses: bool = False
    """This process is a warm spare, which does one iteration alone: `main` should write and send nothing by itself."""

    def keep(self, build: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `build(*args, **kwargs)`; under `everstep.main`, what an earlier round of this process built. See
        `KeptValues`.

        A kept value must be in the checkpointed state, or never change: it stays as the last round left it, except that
        gradients are cleared.
        """
        return self._kept.keep(build, *args, **kwargs)

    def mean(self, value: float, weight: float = 1.0) -> float:
        """The weighted mean over all ranks, the same on each. Every rank must call it: it is one small all-reduce."""
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
    """A segment that was mapped in advance, for the first checkpointer."""
    shard_requests: int = 0
    """Counts the requests for data shards."""
    not_finite: int = 0
    """So many losses in a row were not finite."""
    trackers: dict[str, Callback] = field(default_factory=dict)
    """By name; called on rank 0 with each iteration's figures."""
    loop: "OwnLoop | None" = None
    """The script's own loop, as far as it is seen; None where something else tells its iterations."""
    evaluates_since: float | None = None
    """When its phase `evaluation` began; None: it does not evaluate."""

    def begin_round(self, context: Context, facts: Mapping[str, float | int | str], ahead: SegmentFile | None) -> None:
        """Begin a later round. What the script made for the one before, it makes again."""
        self.context, self.checkpointer, self.iteration, self.ahead = context, None, 0, ahead
        self.evaluates_since = None
        self.pending = dict(facts)
        if self.loop is not None:
            self.loop.begin_round()

    def beacon(self, name: str) -> None:
        now = time.perf_counter()
        if self.evaluates_since is not None:
            self._add("evaluation_s", now - self.evaluates_since)
        self.evaluates_since = now if name == EVALUATION else None
        if self.checkpointer is not None:
            self.checkpointer.beacon(self.iteration, name)

    def note_restore(self, seconds: float) -> None:
        """The state was restored in so many seconds."""
        self._add("restore_s", seconds)

    def _add(self, name: str, seconds: float) -> None:
        self.pending[name] = float(self.pending.get(name, 0.0)) + seconds

    def report(self, values: Mapping[str, float | int | str]) -> None:
        """Add to the iteration's telemetry."""
        self.pending.update(values)
        if self.loop is not None:
            self.loop.on_report()

    def end_rehearsal(self) -> None:
        """The first iteration is done, or something follows that has an effect. Raises RehearsalOver in a spare."""
        if self.context.rehearses:
            raise RehearsalOver

    def send(self, facts: Mapping[str, float | int | str]) -> None:
        """Send one iteration's telemetry; rank 0 sends it for all."""
        self.end_rehearsal()
        if self.context.rank == 0:
            stall = self.checkpointer.stall_s if self.checkpointer else 0.0
            line = {**facts, "stall_s": stall, **self.pending}
            if self.context.link is not None:
                self.context.link.tell(Report(self.iteration, line))
            for tracker in self.trackers.values():
                tracker(self.iteration, figures(line))
            self._check_finite(line.get("loss", 0.0))
        if self.checkpointer is not None:
            self.checkpointer.stall_s = 0.0  # An iteration that saves nothing has no stall.
        self.pending.clear()

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
        restored = self.checkpointer.restored if self.checkpointer else 0
        link = self.context.link
        if link is not None and not link.welcome.certifies and restored and self.iteration <= restored + WATCHED:
            what = f"the loss of iteration {self.iteration} is {loss}, right after iteration {restored} was restored"
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
        self._session.beacon("save")
        if self._reports_first:
            self.end()

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
_ZERO = {"EVERSTEP_KEEP_LAST": "keeps all checkpoints", "EVERSTEP_PERSIST_INTERVAL": "writes one every minute"}


def begin(context: Context, facts: Mapping[str, float | int | str], ahead: SegmentFile | None) -> None:
    """Create the session, or begin a round of it. `facts` are sent with its first report; for `ahead` see
    `map_segment_ahead`."""
    global _session
    if _session is not None:
        _session.begin_round(context, facts, ahead)
        return
    _session = Session(context, pending=dict(facts), ahead=ahead)
    _session.loop = OwnLoop(_session)


def end_round() -> None:
    """Let go of what belongs to the round; afterwards nothing writes a slot."""
    if _session is not None:
        if _session.checkpointer is not None:
            _session.checkpointer.close()
        _session.checkpointer = _session.ahead = None


def end_rehearsal() -> None:
    """As `Session.end_rehearsal`, of this process's session if there is one."""
    if _session is not None:
        _session.end_rehearsal()


def current(name: str) -> Session:
    """The session. Raises RuntimeError: `everstep.NAME` was called before `everstep.init`."""
    if _session is None:
        raise RuntimeError(f"everstep.{name} was called before everstep.init()")
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
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device(there.type, local_rank) if there and there.type in GROUP_BACKENDS else torch.device("cpu")


class Checkpoints:
    """Where this worker's checkpoints are kept: by its node's agent, or in a store that it writes itself."""

    def __init__(self, directory: str = "") -> None:
        """Without an agent: the store `directory`, else EVERSTEP_STORE. Raises LinkError, StoreError.

        A script that creates its process group itself need not call `init`.
        """
        global _session
        if _session is None:
            _session = Session(context_from_environment(KeptValues()))
        self.session, context = _session, _session.context
        is_kept = context.link is not None or context.rehearses
        self.alone = None if is_kept else _standalone(directory or os.environ.get("EVERSTEP_STORE", ""))

    def shards(self) -> list[Shard]:
        """The shards that this round starts from; empty if it starts from nothing.

        A damaged checkpoint is skipped and an older one takes its place; under an agent this takes another round,
        before which this process ends.
        """
        link = self.session.context.link
        if link is None:
            return (
                (self.alone.restore(lambda sources: verify_shards(open_shards(*sources))) or []) if self.alone else []
            )
        place = link.ask(Fetch(), Fetched)
        if not place.path and not place.sources:
            return []
        with worker.report_damage(link, place):
            shards = open_shards(*worker.shard_sources(link, place))
        for shard in shards:
            shard.on_lost = link.refuse_restore
        return shards

    def beacon(self, iteration: int, phase: str) -> None:
        """Show what this worker does now, in a loop that does not use `batches`."""
        self.session.iteration = iteration
        self.session.beacon(phase)

    def report(self, iteration: int, facts: Mapping[str, float | int | str]) -> None:
        """Send that iteration's telemetry, in a loop that does not use `batches`."""
        self.session.iteration = iteration
        self.session.send(facts)

    def store_and_prefix(self) -> tuple[Store, str]:
        """The store, and the prefix of the keys of this job's checkpoints."""
        if self.alone is not None:
            return self.alone.store, self.alone.prefix
        link = self.session.context.link
        if link is None:
            raise StoreError("no agent started this script and it has no store: set EVERSTEP_STORE=DIRECTORY")
        return open_store(link.welcome.store, read_only=True), checkpoints_prefix(link.welcome.job)


class Checkpointer(worker.Checkpointer):
    """Checkpoints of `state`: `load(state)`, `save(iteration, state)`, `finish(state)`."""

    def __init__(self, state: dict[str, Any], checkpoints: Checkpoints | None = None) -> None:
        """`kept`: where checkpoints are kept; by default as `everstep.init` decided. Raises StateError, LinkError."""
        if checkpoints is None:
            current("Checkpointer")
            checkpoints = Checkpoints()
        session, context = checkpoints.session, checkpoints.session.context
        ahead, session.ahead = session.ahead, None
        local_rank = context.local_rank or context.rank * (checkpoints.alone is not None)
        super().__init__(
            state, link=context.link, rank=context.rank, local_rank=local_rank, alone=checkpoints.alone, ahead=ahead
        )
        session.checkpointer = self
        session.beacon("start")
        self._session = session

    def load(self, state: dict[str, Any]) -> int:
        """Restore the newest checkpoint into `state`, in place. Returns its iteration; 0 if there is none.

        Call it on every rank: all restore the same checkpoint, or all fail. A damaged checkpoint is passed over for an
        older one; under an agent, this process then ends and another round begins. Raises RestoreError if the
        checkpoint belongs to another model, or if none can be read although some may be complete; LinkError if memory
        has no room for it.
        """
        began = time.perf_counter()
        in_worker.set_phase(RESTORE)
        try:
            iteration = super().load(state)
        finally:
            in_worker.set_phase("")
        if iteration:
            self._session.note_restore(time.perf_counter() - began)
        return iteration

    def save(self, iteration: int, state: dict[str, Any], persist: bool = False) -> None:
        """Stage `state` as it is after `iteration`. Training waits for one copy in memory; the agent does the rest.

        `persist=True` copies it to the store regardless of the interval. Call it on every rank.
        """
        self._session.end_rehearsal()
        if self._session.loop is not None:
            self._session.loop.on_save(iteration)
        began = time.perf_counter()
        super().save(iteration, state, persist)
        in_worker.note_staging(time.perf_counter() - began)

    def finish(self, state: dict[str, Any]) -> str:
        """End the training: wait until the last state is committed in the store. Returns the manifest's key."""
        self._session.end_rehearsal()
        if self._session.loop is not None:
            self._session.loop.end()
        return super().finish(state)


def _standalone(uri: str) -> StandaloneKeeper | None:
    if not uri:
        print(
            "everstep: no agent started this script, so its checkpoints are not kept; "
            "set EVERSTEP_STORE=DIRECTORY to keep them there",
            file=sys.stderr,
        )
        return None
    store, job = open_store(uri), os.environ.get("EVERSTEP_JOB") or f"{Path(sys.argv[0]).stem or 'script'}-alone"
    keep_last, interval = _count("EVERSTEP_KEEP_LAST", KEEP_LAST), _count("EVERSTEP_PERSIST_INTERVAL", 0)
    slots = _own_slots(store.uri, job) if os.environ.get("WORLD_SIZE", "1") == "1" else None
    often = f"every {interval} iterations" if interval else f"every {EVERY_S:.0f} s"
    print(
        f"everstep: no agent started this script; {'every save stays in memory, ' if slots else ''}"
        f"a checkpoint goes to {uri}/jobs/{job} {often} (EVERSTEP_PERSIST_INTERVAL=N: every N iterations)",
        file=sys.stderr,
    )
    keeper = StandaloneKeeper(store, job, keep_last=keep_last, slots=slots, interval=interval)
    atexit.register(keeper.close)
    return keeper


def _count(variable: str, default: int) -> int:
    """Raises StoreError."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise StoreError(f"{variable}={text}: give a whole number; 0 {_ZERO[variable]}")
    return int(text)


def _own_slots(uri: str, job: str) -> OwnSlots | None:
    remove_abandoned(time.time())
    try:
        return OwnSlots(slots_folder(uri, job))
    except SegmentError as error:
        print(f"everstep: saves are not kept in memory: {error}", file=sys.stderr)
        return None
