"""One node's part of the node check: matrix products, an all-reduce alone, an all-reduce with its group.

`python -m runtime.diagnosis.check --node local-0 --rank 0 --world 2 --store HOST:PORT` prints one JSON object a
stage; the last one is the whole measurement. DLRover's check (500 products of 16384^3 and 40 all-reduces of 64 MiB on
a GPU), scaled down to about half a second on one CPU core. The results are compared with what they must be, so a
machine that computes wrongly is found too.
"""

# torch.distributed documents its stores but does not list them in __all__:
# pyright: reportPrivateImportUsage=false

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from runtime import faults
from runtime.diagnosis.pairs import FAILED_S, Measurement

if TYPE_CHECKING:
    from torch.distributed import Store

SIZE = 1024
"""Rows and columns of the matrices, float32."""
PRODUCTS = 16
REDUCED_BYTES = 16 << 20
REDUCTIONS = 6
OWN = "own/{rank}"
"""Key in the group's store: `ok` or `failed`, how the node did alone."""


class WrongResultError(ArithmeticError):
    """The machine computed something else than the one right result."""


def matmul(node: str) -> float:
    """Seconds for PRODUCTS products of SIZE x SIZE. Whole numbers below 2^24, so float32 must be exact."""
    import torch

    left = (torch.arange(SIZE * SIZE) % 7).float().view(SIZE, SIZE)
    right = (torch.arange(SIZE * SIZE) % 5).float().view(SIZE, SIZE)
    wanted = (left.double().sum(0) @ right.double()).sum().item()
    product = torch.empty(SIZE, SIZE)
    faults.point("check.matmul", node=node)
    started = time.perf_counter()
    for _ in range(PRODUCTS):
        torch.mm(left, right, out=product)
    seconds = time.perf_counter() - started
    if product.double().sum().item() != wanted:
        raise WrongResultError("matrix product is wrong: a broken processor or memory")
    return seconds


def all_reduce(store: "Store", rank: int, world: int, timeout_s: float) -> float:
    """Seconds for REDUCTIONS all-reduces (gloo) of REDUCED_BYTES among `world` nodes that share `store`."""
    import torch
    from torch.distributed import ProcessGroupGloo

    group: Any = ProcessGroupGloo(store, rank, world, timedelta(seconds=timeout_s))
    values = torch.empty(REDUCED_BYTES // 4)
    seconds = 0.0
    for _ in range(REDUCTIONS):
        values.fill_(rank + 1)
        started = time.perf_counter()
        group.allreduce([values]).wait()
        seconds += time.perf_counter() - started
    wanted = world * (world + 1) / 2
    if values.min().item() != wanted or values.max().item() != wanted:
        raise WrongResultError("all-reduce gave a wrong sum: a broken link or memory")
    return seconds


def measure(
    node: str, host: str, rank: int, world: int, store: "Store", timeout_s: float, tell: Callable[[Measurement], None]
) -> Measurement:
    """Do the node's whole part; `tell` hears the measurement after each stage.

    Args:
        rank, world: the node's place in its group.
        store: what the group shares; also where each node says how it did alone, so that nobody waits for the broken.
        timeout_s: for each wait on the group.
    """
    from torch.distributed import PrefixStore

    told = _alone(Measurement(node, host), store, rank, timeout_s, tell)
    try:
        store.set(OWN.format(rank=rank), "ok" if told.works_alone else "failed")
        keys = [OWN.format(rank=other) for other in range(world)]
        store.wait(keys, timedelta(seconds=timeout_s))
        if all(store.get(key) == b"ok" for key in keys):
            faults.point("check.all_reduce", node=node)
            together = all_reduce(PrefixStore("group", store), rank, world, timeout_s) if world > 1 else 0.0
            told = replace(told, all_reduce_s=together)
    except (RuntimeError, WrongResultError) as error:
        told = replace(told, error=told.error or _one_line("all-reduce", error))
    tell(told)
    return told


def _alone(
    told: Measurement, store: "Store", rank: int, timeout_s: float, tell: Callable[[Measurement], None]
) -> Measurement:
    from torch.distributed import PrefixStore

    stage = "matmul"
    try:
        told = replace(told, matmul_s=matmul(told.node))
        tell(told)
        stage = "all-reduce alone"
        told = replace(told, self_reduce_s=all_reduce(PrefixStore(f"alone/{rank}", store), 0, 1, timeout_s))
    except (RuntimeError, WrongResultError) as error:
        told = replace(told, error=_one_line(stage, error))
    tell(told)
    return told


def _one_line(stage: str, error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{stage}: {text[0][:300] if text else type(error).__name__}"


def main() -> None:
    """The command line of one node. Exit code 0 when it works alone and with its group, else 1."""
    parser = argparse.ArgumentParser(prog="python -m runtime.diagnosis.check", description="One node's part of a check")
    parser.add_argument("--node", default="local-0", help="name of the node")
    parser.add_argument("--host", default="", help="name of its host (the node's name)")
    parser.add_argument("--rank", type=int, default=0, help="its place in the group")
    parser.add_argument("--world", type=int, default=1, help="nodes of the group")
    parser.add_argument("--store", default="127.0.0.1:29400", help="HOST:PORT, where rank 0 listens")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="for each wait on the group")
    given = parser.parse_args()
    if not 0 <= given.rank < given.world:
        parser.error(f"--rank {given.rank}: must be from 0 to {given.world - 1}")
    address, _, port = given.store.rpartition(":")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    from torch.distributed import TCPStore

    torch.set_num_threads(1)
    wait = timedelta(seconds=given.timeout_s)
    store = TCPStore(address, int(port), is_master=given.rank == 0, timeout=wait, wait_for_workers=False)

    def tell(told: Measurement) -> None:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        sys.stdout.flush()

    host = given.host or given.node
    told = measure(given.node, host, given.rank, given.world, store, given.timeout_s, tell)
    if given.rank == 0 and given.world > 1:
        _linger(store, given.world, wait)
    sys.exit(0 if told.works_alone and told.all_reduce_s < FAILED_S else 1)


def _linger(store: "Store", world: int, wait: timedelta) -> None:
    """Rank 0 holds the store: it stays until the others have read what they need, or their time is up."""
    try:
        store.wait([OWN.format(rank=rank) for rank in range(world)], wait)
    except RuntimeError as error:
        print(_one_line("a partner never came", error), file=sys.stderr)


if __name__ == "__main__":
    main()
