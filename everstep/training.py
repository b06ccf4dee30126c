"""What a training script uses: `init`, `batches`, `Checkpointer`, `report`, `phase`.

    job = everstep.init()
    batches = everstep.batches(dataset, sequence_length=256, global_batch=16, seed=0, iterations=200)
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        ...
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=loss.item())
    checkpointer.finish(state)

Without an agent the same script runs in one process: no beacon, and checkpoints only where EVERSTEP_STORE says. Like
torch.distributed's default group, the worker's session is one a process: `init` makes it, the other calls find it.
"""

import atexit
import hashlib
import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from everstep.runtime import faults
from everstep.runtime.agent.tcp_store import narrow_torchs_store
from everstep.runtime.checkpoint.shard.reshard import Shard, open_shards, verified
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.stored.keys import checkpoints_of
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer as _Checkpointer
from everstep.runtime.checkpoint.worker.checkpointer import giving_up, mapped_ahead, sources_of
from everstep.runtime.checkpoint.worker.standalone import Alone
from everstep.runtime.data import DatasetError, Sampler, open_dataset, sample_count
from everstep.runtime.job.spec import KEEP_LAST
from everstep.runtime.protocol.worker_link import Fetch, Fetched, Link, Report
from everstep.runtime.store import Store, StoreError, open_store

__all__ = ["Batch", "Batches", "Checkpointer", "Context", "batches", "init", "phase", "report"]


WATCHED = 3
"""Iterations after a restore in which a loss that is no number means that the restored state may be broken."""
DIVERGED = 76
"""Exit code that says so (see `everstep.runtime.job.policy`)."""


@dataclass(frozen=True)
class Context:
    """This worker's place in its job."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    round: int
    link: Link | None = None
    """To the node's agent; None in a plain `python script.py`."""

    def mean(self, value: float, weight: float = 1.0) -> float:
        """The weighted mean over all ranks, the same on each; every rank must call it (one small all-reduce)."""
        if self.world_size == 1:
            return value
        both = torch.tensor([value * weight, weight], dtype=torch.float64, device=self.device)
        dist.all_reduce(both)
        return float(both[0] / both[1])


class Batch(NamedTuple):
    """This rank's share of one global batch."""

    inputs: torch.Tensor
    """(n, sequence_length) int64; n differs by at most 1 between ranks; a rank without a sample has one of weight 0."""
    targets: torch.Tensor
    """(n, sequence_length) int64: the inputs, one token later."""
    weight: float
    """Multiply the mean loss with it: DDP's mean over ranks is then the mean over the global batch."""
    consumed: int
    """Samples of the stream that are applied once this batch is."""
    iteration: int
    """From 1."""
    samples: np.ndarray
    """Which samples of the stream these are: (n,) int64, empty for a rank without one."""


@dataclass
class _Session:
    """What this process knows of itself as a worker."""

    context: Context
    checkpointer: _Checkpointer | None = None
    iteration: int = 0
    pending: dict[str, float | int | str] = field(default_factory=dict)
    """What the next report says beside its own figures; the first one: when the process group stood."""
    ahead: SegmentFile | None = None
    """For the first checkpointer."""

    def beacon(self, name: str) -> None:
        if self.checkpointer is not None:
            self.checkpointer.beacon(self.iteration, name)

    def send(self, facts: Mapping[str, float | int | str]) -> None:
        """One iteration's telemetry, from rank 0 for all."""
        if self.context.link is not None and self.context.rank == 0:
            stall = self.checkpointer.stall_s if self.checkpointer else 0.0
            told = {**facts, "stall_s": stall, **self.pending}
            self.context.link.tell(Report(self.iteration, told))
            self._must_be_a_number(told.get("loss", 0.0))
        if self.checkpointer is not None:
            self.checkpointer.stall_s = 0.0  # An iteration that saves nothing stalls for nothing.
        self.pending.clear()

    def _must_be_a_number(self, loss: float | int | str) -> None:
        """A loss that is none right after a restore: what was restored may be broken. The job goes a step back."""
        restored = self.checkpointer.restored if self.checkpointer else 0
        if restored and self.iteration <= restored + WATCHED and isinstance(loss, float) and not math.isfinite(loss):
            what = f"the loss of iteration {self.iteration} is {loss}, right after iteration {restored} was restored"
            print(f"everstep: {what}; this worker ends so that the job goes back to an earlier one", file=sys.stderr)
            raise SystemExit(DIVERGED)


_session: _Session | None = None
_KNOCK_EVERY_S = 0.002


def init(seed: int = 0, timeout: timedelta = timedelta(minutes=10)) -> Context:
    """Join the process group (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: as torchrun sets them), greet the agent, seed
    torch so that every rank builds the same model. Without WORLD_SIZE: a single process.

    Raises LinkError (the agent is gone) and what torch.distributed raises.
    """
    global _session
    context = _context()
    ahead = mapped_ahead(context.link)
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    if context.world_size > 1 or "WORLD_SIZE" in os.environ:
        narrow_torchs_store()
        if context.rank and "MASTER_PORT" in os.environ:
            _wait_for_rank_0(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout.total_seconds())
        dist.init_process_group("nccl" if context.device.type == "cuda" else "gloo", timeout=timeout)
        atexit.register(_leave)
    torch.manual_seed(seed)
    _session = _Session(context, pending={"joined_at": time.time()}, ahead=ahead)
    return context


def _context() -> Context:
    """This worker's place as its environment tells it; greets the agent."""
    rank, world_size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    round_ = int(os.environ.get("EVERSTEP_ROUND", 0))
    return Context(rank, world_size, local_rank, device, round_, Link.from_environment())


def Checkpointer(state: dict[str, Any]) -> _Checkpointer:  # noqa: N802 (reads as the class that it makes)
    """Checkpoints of `state`: `load(state)`, `save(iteration, state)`, `finish(state)`; see runtime.checkpoint."""
    _current("Checkpointer")
    return Checkpoints().checkpointer(state)


class Checkpoints:
    """Where this worker's checkpoints are kept: by the agent of its node, else by itself in a store."""

    def __init__(self, directory: str = "") -> None:
        """Without an agent: in the store `directory`, else in EVERSTEP_STORE. A script that makes its process group
        itself need not call `init`. Raises LinkError, StoreError."""
        global _session
        if _session is None:
            _session = _Session(_context())
        self._session = _session
        self._alone = None if _session.context.link else _alone(directory or os.environ.get("EVERSTEP_STORE", ""))

    def checkpointer(self, state: dict[str, Any]) -> _Checkpointer:
        """Of that state. Raises StateError, LinkError."""
        context = self._session.context
        local_rank = context.local_rank or context.rank * (self._alone is not None)
        ahead, self._session.ahead = self._session.ahead, None
        made = _Checkpointer(
            state, link=context.link, rank=context.rank, local_rank=local_rank, alone=self._alone, ahead=ahead
        )
        self._session.checkpointer = made
        self._session.beacon("start")
        return made

    def shards(self) -> list[Shard]:
        """The shards of what this round starts from; empty: it starts from nothing. What is damaged is passed over: an
        older checkpoint takes its place, under an agent in another round, before which this process ends."""
        link = self._session.context.link
        if link is None:
            return (self._alone.restore(lambda sources: verified(open_shards(*sources))) or []) if self._alone else []
        place = link.ask(Fetch(), Fetched)
        if not place.path and not place.sources:
            return []
        with giving_up(link, place):
            shards = open_shards(*sources_of(link, place))
        for shard in shards:
            shard.on_lost = link.refuse
        return shards

    def beacon(self, iteration: int, phase: str) -> None:
        """Show what this worker does now, in a loop that is not `batches`."""
        self._session.iteration = iteration
        self._session.beacon(phase)

    def report(self, iteration: int, facts: Mapping[str, float | int | str]) -> None:
        """Telemetry of that iteration, in such a loop."""
        self._session.iteration = iteration
        self._session.send(facts)

    def place(self) -> tuple[Store, str]:
        """The store and what the keys of this job's checkpoints begin with."""
        if self._alone is not None:
            return self._alone.store, self._alone.prefix
        link = self._session.context.link
        if link is None:
            raise StoreError("no agent started this script and it has no store: set EVERSTEP_STORE=DIRECTORY")
        return open_store(link.welcome.store, read_only=True), checkpoints_of(link.welcome.job)


def batches(
    dataset: str, *, sequence_length: int, global_batch: int, seed: int = 0, iterations: int | None = None
) -> "Batches":
    """This rank's share of each global batch of `dataset` (a URI that steps.preprocess made), endless or so many.

    Put it into the checkpointed state: it goes on after the last applied sample. Raises DatasetError.
    """
    return Batches(_current("batches"), dataset, sequence_length, Order(global_batch, seed, iterations))


def report(**values: float | int | str) -> None:
    """Add to this iteration's telemetry. Rank 0's values are the job's; average them first with `Context.mean`."""
    _current("report").pending.update(values)


def phase(name: str) -> None:
    """Say what this worker does now ("forward", "data"): where it hangs, if it hangs."""
    _current("phase").beacon(name)


class Order(NamedTuple):
    """Which samples make which batch."""

    global_batch: int
    seed: int
    iterations: int | None


class Batches:
    """An iterator over Batch whose position is checkpointed. Seeds torch before each batch from (seed, consumed, rank),
    so that dropout repeats after a restart whatever happened before."""

    def __init__(self, session: _Session, dataset: str, length: int, order: Order) -> None:
        self._session, self._length, self._order = session, length, order
        opened = open_dataset(dataset)
        self._tokens = opened.tokens
        samples = sample_count(len(opened.tokens), length)
        if not samples:
            raise DatasetError(
                f"{dataset}: {len(opened.tokens)} tokens are not one sample of {length}; "
                "give more text or shorter samples"
            )
        self._sampler = Sampler(samples, order.global_batch, order.seed)
        self.consumed = 0

    @property
    def iteration(self) -> int:
        """Iterations done or, inside the loop, under way."""
        return self.consumed // self._order.global_batch

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        self.consumed = int(state_dict["consumed"])

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches that are left; each iteration's telemetry goes out when the next begins."""
        order, rank = self._order, self._session.context.rank
        while order.iterations is None or self.iteration < order.iterations:
            began = time.perf_counter()
            start = self.consumed
            self.consumed += order.global_batch
            self._session.iteration = self.iteration
            self._session.beacon("batch")
            faults.point("train.iteration", iteration=self.iteration)
            torch.manual_seed(_mixed(order.seed, start, rank))
            yield self._batch(start)
            self._session.send(
                {
                    "consumed": self.consumed,
                    "tokens": order.global_batch * self._length,
                    "seconds": time.perf_counter() - began,
                }
            )
        self._session.beacon("end")

    def _batch(self, start: int) -> Batch:
        context, length = self._session.context, self._length
        share = self._sampler.share(start, context.rank, context.world_size)
        weight = len(share) * context.world_size / self._order.global_batch
        # Every rank must take part in the all-reduce: one without a sample reads the first, at weight 0.
        read = share if len(share) else self._sampler.indices(start)[:1]
        rows = np.stack([self._tokens[i * length : i * length + length + 1] for i in read]).astype(np.int64)
        inputs, targets = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        return Batch(inputs, targets, weight, self.consumed, self.iteration, share)


def _mixed(*numbers: int) -> int:
    """One seed of several numbers, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1


def _alone(uri: str) -> Alone | None:
    if not uri:
        print(
            "everstep: no agent started this script, its checkpoints are not kept; "
            "set EVERSTEP_STORE=DIRECTORY to keep them there",
            file=sys.stderr,
        )
        return None
    job = os.environ.get("EVERSTEP_JOB") or f"{Path(sys.argv[0]).stem or 'script'}-alone"
    print(f"everstep: no agent started this script, it keeps its own checkpoints in {uri}/jobs/{job}", file=sys.stderr)
    given = os.environ.get("EVERSTEP_KEEP_LAST") or str(KEEP_LAST)
    if not given.isdecimal():
        raise StoreError(f"EVERSTEP_KEEP_LAST={given}: give the number of checkpoints that stay, 0 for all")
    return Alone(open_store(uri), job, keep_last=int(given))


def _wait_for_rank_0(address: str, port: int, seconds: float) -> None:
    """Until rank 0's store listens, or the time is over (then torch tells it).

    torch's own client, refused once, comes back only after a pause of up to a second: most of a recovery's time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=1.0) as met:
                if met.getsockname() != met.getpeername():  # On one machine a knock can meet itself: TCP allows it.
                    return
        except ConnectionRefusedError:
            time.sleep(_KNOCK_EVERY_S)
        except OSError:
            return  # Not a matter of waiting: torch says what is wrong.


def _current(name: str) -> _Session:
    if _session is None:
        raise RuntimeError(f"everstep.{name} was called before everstep.init()")
    return _session


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
        _wait_for_gloo()


def _wait_for_gloo(seconds: float = 1.0) -> None:
    """Until gloo's threads have let go of the last collective's tensors.

    They take the interpreter's lock for that; where it ends meanwhile, Python ends the thread and C++ the process
    (SIGABRT, "terminate called without an active exception"). torch joins them only with the last reference to their
    group, and one that DDP has used keeps some. An agent's workers never meet this: they end without finalization.
    """
    seen: list[list[str]] = []
    deadline = time.monotonic() + seconds
    while (now := [*_threads("pt_gloo_runloop")]) and time.monotonic() < deadline:
        if now == seen and all("S (sleeping)" in thread[0] for thread in now):
            return  # One that waits for the lock would have got it, and run, in the pause.
        seen = now
        time.sleep(0.01)


def _threads(name: str) -> Iterator[list[str]]:
    """For each thread of this process called so: its state and how often it was switched, as Linux tells them."""
    for path in sorted(Path("/proc/self/task").glob("*/status")):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = path.read_text().splitlines()
            if lines[0] == f"Name:\t{name}":
                yield [line for line in lines if line.startswith(("State:", "voluntary_ctxt", "nonvoluntary_ctxt"))]
