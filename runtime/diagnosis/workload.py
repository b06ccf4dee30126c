"""What a node does in a round: matrix products and an all-reduce alone, then an all-reduce with its group. Needs torch.

DLRover's check (500 products of 16384^3 and 40 all-reduces of 64 MiB on a GPU), scaled down to about half a second on
one CPU core: the same amount of work for every node. Results are compared with what they must be, so a machine that
computes wrongly is found too.
"""

# torch.distributed documents its stores but does not list them in __all__:
# pyright: reportPrivateImportUsage=false

import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from everstep.runtime import faults
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.messages import Together
from everstep.runtime.diagnosis.switchbox import CudaLinkProbe, SwitchboxSpec
from everstep.runtime.diagnosis.switchbox import measure as measure_box

if TYPE_CHECKING:
    from torch.distributed import Store

MATRIX_SIZE = 1024
"""Rows and columns of the matrices, float32."""
PRODUCTS = 16
REDUCED_BYTES = 16 << 20
REDUCTIONS = 6
ALONE_TIMEOUT_S = 60.0
"""For an all-reduce of one: it never waits for anybody."""


_SOURCE_LINE = re.compile(r"\[/[^\]]*:\d+\] ")


class WrongResultError(ArithmeticError):
    """The machine computed something else than the one right result."""


def work_alone(told: Measurement, round_number: int, box: SwitchboxSpec | None = None) -> Measurement:
    """What needs no partner: products, an all-reduce of one, and the links between the devices if `box` asks for it."""
    from torch.distributed import HashStore

    stage = "matmul"
    try:
        told = replace(told, matmul_s=time_matmul(told.node, told.host, round_number))
        stage = "all-reduce alone"
        told = replace(told, self_reduce_s=time_all_reduce(HashStore(), 0, 1, "127.0.0.1", ALONE_TIMEOUT_S))
        if box is not None:
            links, why = measure_box(box, CudaLinkProbe())
            told = replace(told, links=links, died=bool(why), error=why)
    except (RuntimeError, WrongResultError) as error:
        told = replace(told, error=_first_sentence(stage, error))
    return told


def work_together(told: Measurement, order: Together, address: str, listener: socket.socket | None) -> Measurement:
    """The all-reduce with the group.

    Args:
        address: this node's IP address.
        listener: rank 0's, where the group's store is to be served.
    """
    from torch.distributed import TCPStore

    def pass_fault_point() -> None:
        faults.point("check.all_reduce", node=told.node, host=told.host, round=order.round)

    wait = timedelta(seconds=order.timeout_s)
    host, _, port = order.store.rpartition(":")
    try:
        serves: dict[str, Any] = {"is_master": True, "master_listen_fd": listener.detach()} if listener else {}
        store = TCPStore(host, int(port), timeout=wait, wait_for_workers=False, **serves)
        seconds = time_all_reduce(store, order.rank, order.world, address, order.timeout_s, pass_fault_point)
        return replace(told, all_reduce_s=seconds)
    except (RuntimeError, WrongResultError) as error:
        return replace(told, error=_first_sentence("all-reduce", error))


def time_matmul(node: str, host: str, round_number: int) -> float:
    """Seconds for PRODUCTS products of SIZE x SIZE. Whole numbers below 2^24, so float32 must be exact."""
    import torch

    left = (torch.arange(MATRIX_SIZE * MATRIX_SIZE) % 7).float().view(MATRIX_SIZE, MATRIX_SIZE)
    right = (torch.arange(MATRIX_SIZE * MATRIX_SIZE) % 5).float().view(MATRIX_SIZE, MATRIX_SIZE)
    wanted = (left.double().sum(0) @ right.double()).sum().item()
    product = torch.mm(left, right)
    started = time.perf_counter()
    faults.point("check.matmul", node=node, host=host, round=round_number)
    for _ in range(PRODUCTS):
        torch.mm(left, right, out=product)
    seconds = time.perf_counter() - started
    if product.double().sum().item() != wanted:
        raise WrongResultError("matrix product is wrong: a broken processor or memory")
    return seconds


def time_all_reduce(
    store: "Store",
    rank: int,
    world: int,
    address: str,
    timeout_s: float,
    first: Callable[[], None] = lambda: None,
) -> float:
    """Seconds for REDUCTIONS all-reduces (gloo) of REDUCED_BYTES among `world` nodes that share `store`.

    Raises RuntimeError when a member is gone or a wait takes more than `timeout_s`, WrongResultError for a wrong sum.
    `first` is called once all members are there, and counts.
    """
    import torch
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo  # its options are not in torch's type stubs
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [gloo.create_device(hostname=address)]
    group = gloo(store, rank, world, options)
    values = torch.empty(REDUCED_BYTES // 4)
    group.allreduce([torch.zeros(1)]).wait()
    seconds = 0.0
    for number in range(REDUCTIONS):
        values.fill_(rank + 1)
        started = time.perf_counter()
        if number == 0:
            first()
        group.allreduce([values]).wait()
        seconds += time.perf_counter() - started
    wanted = world * (world + 1) / 2
    if values.min().item() != wanted or values.max().item() != wanted:
        raise WrongResultError("all-reduce gave a wrong sum: a broken link or memory")
    return seconds


def _first_sentence(stage: str, error: Exception) -> str:
    """The first sentence of the error, without gloo's source lines."""
    lines = _SOURCE_LINE.sub("", str(error)).strip().splitlines() or [type(error).__name__]
    return f"{stage}: {lines[0].split('. This is typically')[0][:300]}"
