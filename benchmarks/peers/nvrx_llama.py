"""One rank of the default Llama under NVRx's in-process restart: `nvrx_llama.py DATASET FOLDER ITERATIONS ACTIVE`.

After its usage guide: the wrapped function is called again in the same process when a rank is gone; ranks beyond ACTIVE
wait in reserve. The state comes from torch.save, every few iterations, as NVRx restores none.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess  # pyright: ignore[reportMissingImports]
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.llama_loop import Loop

SAVE_EVERY = 10


def main(dataset: str, folder: Path, iterations: int, active: int) -> None:
    """Train, again whenever a rank is gone."""
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    who, loop = os.environ["RANK"], Loop(dataset, folder)
    quick = timedelta(milliseconds=100)

    @inprocess.Wrapper(
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(active), inprocess.rank_assignment.ShiftRanks()
        ),
        store_kwargs={"port": int(os.environ["MASTER_PORT"]) + 1, "timeout": timedelta(seconds=60)},
        monitor_thread_interval=quick, monitor_process_interval=quick, heartbeat_interval=quick,
        progress_watchdog_interval=quick, last_call_wait=quick, heartbeat_timeout=timedelta(seconds=5),
        soft_timeout=timedelta(seconds=30), hard_timeout=timedelta(seconds=45),
    )  # fmt: skip
    def train(call: Any = None) -> None:
        dist.init_process_group("gloo", store=_store(call), rank=_place("RANK"), world_size=_place("WORLD_SIZE"))
        rank, ranks, state_file, iteration_before = dist.get_rank(), dist.get_world_size(), folder / "state.pt", 0
        replica = DistributedDataParallel(loop.model)
        if state_file.exists():
            state = torch.load(state_file)
            loop.model.load_state_dict(state["model"])
            loop.optimizer.load_state_dict(state["optimizer"])
            iteration_before = state["iteration"]
        for iteration in range(iteration_before + 1, iterations + 1):
            loop.add_gradients(replica, iteration, rank, ranks)
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            if rank == 0 and iteration % SAVE_EVERY == 0:
                fresh, model = state_file.with_suffix(".fresh"), loop.model.state_dict()
                torch.save({"model": model, "optimizer": loop.optimizer.state_dict(), "iteration": iteration}, fresh)
                fresh.replace(state_file)
            loop.tell(who, iteration, ranks)
        dist.destroy_process_group()

    train.__wrapped__.__annotations__["call"] = inprocess.CallWrapper
    train()


_base: list[Any] = []


def _store(call: Any) -> Any:
    """This call's part of one store, which the first rank serves."""
    if not _base:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        is_master = os.environ["FIRST"] == "1"
        _base.append(TCPStore(host, port, is_master=is_master, wait_for_workers=False))
    return PrefixStore(str(call.iteration), _base[0])


def _place(name: str) -> int:
    return int(os.environ[name])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
