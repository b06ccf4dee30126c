"""The training script of `benchmarks.checkpoint`, under `everstep launch`: times its own checkpoints.

Its first life saves and persists, then kills itself; the second one, in the next round, restores. Compared operations
take turns, so that a busy machine slows both alike. Rank 0 writes the slowest rank's seconds as JSON.
"""

import json
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import everstep
from benchmarks.checkpoint import MINIO, OTHERS, STORE, CasePlan, Timings
from benchmarks.checkpoint_limits import loopback, plain_upload
from everstep.runtime.checkpoint.shard.fetch import fetch
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.stored.keys import group_by_checkpoint
from everstep.runtime.checkpoint.stored.manifest import read_commit
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.worker_link import Fetch, Fetched
from everstep.runtime.store import Store, open_store

LAYERS = 64
"""Layers of the model that FSDP2 shards; each has a weight and two moments."""
BLOCK = 256 << 20
"""Bytes of the two buffers of a memcpy; for more bytes these are copied again."""
COPIES = 5
"""Copies of a memcpy; their median counts."""
ALIKE = 1.2
"""The largest ratio of two memcpys for which a measurement between them counts.

Two virtual processors may be the halves of one core or two cores, and change from one moment to the next: copying takes
30 ms in one second, 60 in another.
"""
PAUSE_S = 0.02
ITERATION_S = 0.4
SETTLES = 30
"""Tenths of a second to wait for the agent to become idle."""


class Bench:
    """One rank's measurements."""

    def __init__(self, plan: CasePlan, context: everstep.Context) -> None:
        self.plan, self.context = plan, context
        self.state, self.size = self._state()
        self.seen = Timings(size=self.size)
        block = min(self.size, BLOCK)
        self._one, self._other = torch.ones(block, dtype=torch.uint8), torch.zeros(block, dtype=torch.uint8)
        self._other.copy_(self._one)
        self._last: dict[str, float] = {}
        """Seconds, by name."""
        self.agent = _agent()

    def _state(self) -> tuple[dict[str, Any], int]:
        if self.plan.tensors:
            each = self.plan.size // self.plan.tensors // 4
            tensors = {f"layer{n:05d}.weight": torch.full((each,), float(n)) for n in range(self.plan.tensors)}
            return tensors, each * 4 * len(tensors)
        width = int((self.plan.size / LAYERS / 12) ** 0.5)
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
        mesh = init_device_mesh("cpu", (self.context.world_size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        own = sum(p.to_local().numel() for p in model.parameters())  # pyright: ignore[reportAttributeAccessIssue]
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}, own * 12

    def step(self) -> None:
        """Take the optimizer's first step.

        Moments that were never written to share one page of zeros, which a copy would read from a core's cache.
        """
        if (optimizer := self.state.get("optimizer")) is not None:
            for parameter in self.state["model"].parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()

    def measure(self, name: str, work: Callable[[], Any], beside: str = "") -> Any:
        """Run `work` on all ranks at once; record the slowest rank's seconds, and their ratio to those of `beside`."""
        dist.barrier()
        began = time.perf_counter()
        result = work()
        slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        self.seen.seconds.setdefault(name, []).append(slowest.item())
        self._last[name] = slowest.item()
        if beside:
            self.seen.times.setdefault(name, []).append(slowest.item() / self._last[beside])
        return result

    def measure_between_copies(self, name: str, work: Callable[[], Any]) -> Any:
        """The same between two memcpys: `name` is recorded relative to their mean, if they were alike."""
        before, result = self._last["memcpy"], self.measure(name, work)
        after = self.memcpy()
        if max(before, after) < ALIKE * min(before, after):
            self.seen.times.setdefault(name, []).append(2 * self._last[name] / (before + after))
        else:
            self.seen.seconds[name].pop()
            self.seen.dropped += 1
        return result

    def memcpy(self) -> float:
        """Seconds to copy the state's bytes between two touched buffers: the median of a few."""

        def copy() -> None:
            for start in range(0, self.size, BLOCK):
                part = min(BLOCK, self.size - start)
                self._other[:part].copy_(self._one[:part])

        self.settle()
        for _ in range(COPIES):
            time.sleep(PAUSE_S)
            self.measure("memcpy", copy)
        self._last["memcpy"] = statistics.median(self.seen.seconds["memcpy"][-COPIES:])
        return self._last["memcpy"]

    def settle(self) -> None:
        """Wait until the agent is idle, up to a limit."""
        before = self.agent.cpu_times()
        for _ in range(SETTLES):
            time.sleep(0.1)
            now = self.agent.cpu_times()
            if now.user + now.system - before.user - before.system <= 0.02:
                break
            before = now
        dist.barrier()

    def repeat(self, least: int, most: int) -> Iterator[int]:
        """Repeat at least `least` times, and more while the part's time lasts; the same on all ranks."""
        began = time.perf_counter()
        for number in range(max(least, most)):
            if number >= least:
                late = torch.tensor([float(time.perf_counter() - began > self.plan.part_s)])
                dist.broadcast(late, 0)
                if late.item():
                    return
            yield number

    def train(self) -> None:
        """Compute for as long as an iteration would."""
        a = torch.randn(512, 512)
        end = time.perf_counter() + ITERATION_S
        while time.perf_counter() < end:
            a = torch.tanh(a @ a)


def first_life(bench: Bench) -> None:
    """Save and persist."""
    plan, state = bench.plan, bench.state
    checkpointer = bench.measure("announce", lambda: everstep.Checkpointer(state))
    assert checkpointer.load(state) == 0
    bench.step()
    bench.measure("populate", _wait_until_populated)  # Runs during the first iteration's computation.
    bench.memcpy()
    names = iter(["first", "second"])
    iteration = 0

    def stage(name: str) -> None:
        nonlocal iteration
        iteration += 1
        bench.measure_between_copies(name, lambda: checkpointer.save(iteration, state))

    saves = "save" in plan.parts
    for _ in bench.repeat(3 if saves else 1, plan.rounds + 2 if saves else 1):
        stage(next(names, "steady"))
        if saves:
            bench.train()
            stage("training")
    iteration += 1
    checkpointer.save(iteration, state, persist=True)
    checkpointer.flush(iteration)
    for _ in bench.repeat(2, plan.rounds) if "store" in plan.parts else ():
        iteration += 1
        bench.settle()
        checkpointer.save(iteration, state, persist=True)
        bench.measure("persist", partial(checkpointer.flush, iteration))
        with plain_upload(os.environ[STORE], bench.context.rank, bench.size) as upload:
            assert bench.measure("upload", upload, "persist")
    if "others" in plan.parts:
        measure_others(bench)
    write(bench, "saved.json")
    bench.settle()
    if bench.context.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def second_life(bench: Bench) -> None:
    """Restore, from where a restarted worker would."""
    plan, state = bench.plan, bench.state
    checkpointer = everstep.Checkpointer(state)
    bench.memcpy()  # Meanwhile the agent verifies what it holds.
    bench.measure_between_copies("restore, first", lambda: checkpointer.load(state))
    for _ in bench.repeat(2, plan.rounds) if "memory" in plan.parts else ():
        bench.measure_between_copies("restore", lambda: checkpointer.load(state))
    store = open_store(os.environ[STORE], read_only=True)
    place = bench.context.link.ask(Fetch(), Fetched) if bench.context.link else None
    assert place is not None
    buffer, _ = _unused_slot(place, place.size)
    folder = _newest_committed(store)
    shards = read_commit(store, folder).holdings(folder)
    own_shard = next(shard for shard in shards if shard.shard == bench.context.rank or shard.shards == 1)

    def measure_restore(name: str, source: Holding, origin: Store, beside: str) -> None:
        mapped: list[memoryview] = []

        def load() -> None:
            slot, offset = _unused_slot(place, source.size)
            mapped.append(slot)  # Nobody waits for the end of a mapping.
            fetch(source, slot, origin, Credentials(place.token, place.authority))
            checkpointer.restore(replace(place, offset=offset, size=source.size, digest=source.digest), state)

        bench.measure(name, load, beside)

    _wait_until_populated()
    for _ in bench.repeat(3, plan.rounds) if "peer" in plan.parts else ():
        bench.settle()
        with loopback(place, buffer) as copy:
            bench.measure("loopback", copy)
        measure_restore("restore, peer", _holding_of_agent(bench, place, own_shard), store, "loopback")
    for _ in bench.repeat(1, max(2, plan.rounds // 2)) if "store" in plan.parts else ():
        bench.memcpy()
        measure_restore("restore, store", own_shard, store, "memcpy")
    if "minio" in plan.parts:
        minio = open_store(os.environ[MINIO])
        copied = replace(own_shard, key=f"shard-{bench.context.rank}")
        minio.put(copied.key, SegmentFile.open(Path(place.path)).bytes_at(place.offset, place.size))
        copied = replace(copied, size=place.size, digest=place.digest)
        for _ in bench.repeat(1, max(2, plan.rounds // 2)):
            bench.memcpy()
            measure_restore("restore, MinIO", copied, minio, "memcpy")
        minio.delete(copied.key)
    write(bench, "restored.json")


def _wait_until_populated() -> None:
    """Wait until all memory shared with the agent is mapped."""
    for thread in threading.enumerate():
        if thread.name == "everstep-populate":
            thread.join()


def _holding_of_agent(bench: Bench, place: Fetched, own_shard: Holding) -> Holding:
    """The shard in this node's memory, described as a peer's."""
    port = next(c.laddr.port for c in bench.agent.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    identity = (place.round, place.iteration, own_shard.shard, own_shard.shards)
    return Holding(*identity, size=place.size, digest=place.digest, node="peer", address=f"127.0.0.1:{port}")


def measure_others(bench: Bench) -> None:
    """The alternatives to Everstep; what each wrote is removed before the next one."""
    folder, state, plain = Path(bench.plan.folder) / "others", bench.state, bench.state
    if not bench.plan.tensors:
        plain = {name: part.state_dict() for name, part in state.items()}
    rank = bench.context.rank

    def start_async_save() -> None:
        running.append(async_save(state, checkpoint_id=folder / "async"))

    running: list[Any] = []
    works: list[Callable[[], Any]] = [
        lambda: torch.save(plain, folder / f"plain-{rank}.pt"),
        lambda: save(state, checkpoint_id=folder / "dcp"),
        start_async_save,
    ]
    for _ in bench.repeat(1, 2):
        for name, work in zip(OTHERS, works, strict=True):
            if name not in bench.plan.others:
                continue
            folder.mkdir(exist_ok=True)
            bench.memcpy()
            bench.measure(name, work, "memcpy")
            for future in running:
                future.result()
            running.clear()
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder)
            dist.barrier()


def write(bench: Bench, name: str) -> None:
    """Write rank 0's file."""
    if bench.context.rank == 0:
        Path(bench.plan.folder, name).write_text(json.dumps(asdict(bench.seen)))


def _unused_slot(place: Fetched, size: int) -> tuple[memoryview, int]:
    """The slot that an agent would fetch into, newly mapped, and its offset in the file.

    It holds an older state that nobody will want any more.
    """
    segment = SegmentFile.open(Path(place.path))
    slot = next(number for number in range(segment.slots) if segment.slot_offset(number) != place.offset)
    segment.populate(segment.slot_offset(slot), size)
    return segment.slot(slot)[:size], segment.slot_offset(slot)


def _newest_committed(store: Store) -> str:
    return [key for key, folder in group_by_checkpoint(store.list("jobs/")).items() if folder.committed][-1]


def _agent() -> psutil.Process:
    """The agent: the launch command's process."""
    return next(p for p in psutil.Process().parents() if "launch" in p.cmdline())


def main() -> None:
    plan = CasePlan(**json.loads(sys.argv[1]))
    bench = Bench(plan, everstep.init())
    if Path(plan.folder, "saved.json").exists():
        second_life(bench)
    else:
        first_life(bench)


if __name__ == "__main__":
    main()
