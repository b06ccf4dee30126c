"""One replica of the default Llama under torchft: `torchft_llama.py DATASET FOLDER NAME ITERATIONS LIGHTHOUSE`.

After torchft's README ("Distributed Data Parallel"): a manager, its process group, and DDP and optimizer of torchft's.
A replica that comes back is healed by another one's state.
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torchft.ddp import DistributedDataParallel  # pyright: ignore[reportMissingImports]
from torchft.manager import Manager  # pyright: ignore[reportMissingImports]
from torchft.optim import OptimizerWrapper  # pyright: ignore[reportMissingImports]
from torchft.process_group import ProcessGroupGloo  # pyright: ignore[reportMissingImports]

from benchmarks.peers.llama_loop import Loop

TIMEOUT = timedelta(seconds=20)


def main(dataset: str, folder: str, name: str, iterations: int, lighthouse: str) -> None:
    """Train with whoever is there."""
    loop = Loop(dataset, Path(folder))

    def load(state: dict[str, Any]) -> None:
        loop.model.load_state_dict(state["model"])
        loop.optimizer.load_state_dict(state["optimizer"])

    def state() -> dict[str, Any]:
        return {"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT), load_state_dict=load, state_dict=state, min_replica_size=1, rank=0,
        world_size=1, store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse, hostname="127.0.0.1",
        replica_id=f"llama-{name}", timeout=TIMEOUT, quorum_timeout=TIMEOUT, connect_timeout=TIMEOUT,
    )  # fmt: skip
    replica = DistributedDataParallel(manager, loop.model)
    optimizer: Any = OptimizerWrapper(manager, loop.optimizer)
    while manager.current_step() < iterations:
        optimizer.zero_grad()
        rank, ranks = manager.participating_rank() or 0, max(1, manager.num_participants())
        loop.add_gradients(replica, manager.current_step() + 1, rank, ranks)
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            loop.tell(name, manager.current_step(), manager.num_participants())
    manager.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
