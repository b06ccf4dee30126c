"""A node's work in a round: matrix products and an all-reduce alone, then an all-reduce with its group. Needs torch.

DLRover's check (500 products of 16384^3 and 40 all-reduces of 64 MiB on a GPU), scaled down to about half a second of
one CPU core, or a second of each CUDA device (`devices`): the same amount of work for every node. Results are compared
with the expected ones, so the check also finds machines that compute wrongly.
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
from everstep.runtime.diagnosis.devices import (
    DeviceError,
    Note,
    agree_on_nccl,
    device_count,
    exercise_devices,
    own_devices,
    require_all_seen,
    time_group_all_reduce,
)
from everstep.runtime.diagnosis.evidence import FAILED_S, Measurement
from everstep.runtime.diagnosis.messages import Together
from everstep.runtime.diagnosis.switchbox import CudaLinkProbe, SwitchboxSpec
from everstep.runtime.diagnosis.switchbox import measure as measure_box

if TYPE_CHECKING:
    from torch.distributed import Store

MATRIX_SIZE = 1024
"""Rows and columns of the matrices, float32."""
PRODUCTS = 16
SHORT_PRODUCTS = 4
"""Before a restart."""
REDUCED_BYTES = 16 << 20
REDUCTIONS = 6
ALONE_TIMEOUT_S = 60.0
"""For an all-reduce of one, which never waits for another node."""


_SOURCE_LINE = re.compile(r"\[/[^\]]*:\d+\] ")


class WrongResultError(ArithmeticError):
    """The machine computed a wrong result."""


def work_alone(
    measurement: Measurement,
    round_number: int,
    box: SwitchboxSpec | None = None,
    short: bool = False,
    note: Note = lambda what: None,
) -> Measurement:
    """Do the work that needs no partner: products on all cores, an all-reduce of one, the same on each CUDA device and
    between them, and the links between devices if `box` is given. `short`: before a restart. `note` takes what is done
    next."""
    from torch.distributed import HashStore

    note(stage := "cpu: matmul")
    try:
        measurement = replace(
            measurement,
            matmul_s=time_matmul(
                measurement.node, measurement.host, round_number, SHORT_PRODUCTS if short else PRODUCTS
            ),
        )
        note(stage := "cpu: all-reduce alone")
        measurement = replace(
            measurement, self_reduce_s=time_all_reduce(HashStore(), 0, 1, "127.0.0.1", ALONE_TIMEOUT_S)
        )
        note(stage := "devices")
        devices = device_count()
        require_all_seen(devices)
        if devices:
            done = exercise_devices(devices, short, note)
            measurement = replace(measurement, devices=done.devices, unread=done.unread, untested=done.untested)
            if done.devices:
                measurement = replace(measurement, matmul_s=done.matmul_s, self_reduce_s=done.collectives_s)
        if box is not None and not measurement.untested:
            note(stage := "links between devices")
            links, why = measure_box(box, CudaLinkProbe())
            measurement = replace(measurement, links=links, died=bool(why), error=why)
    except DeviceError as error:
        measurement = replace(measurement, matmul_s=FAILED_S, error=f"{measurement.host}, {error}")
    except (RuntimeError, WrongResultError) as error:
        measurement = replace(measurement, error=_first_sentence(stage, error))
    return measurement


def work_together(
    measurement: Measurement,
    order: Together,
    address: str,
    listener: socket.socket | None,
    note: Note = lambda what: None,
) -> Measurement:
    """Do the all-reduce with the group; then between the members' devices, if each has its own with free memory.

    Args:
        address: this node's IP address.
        listener: on rank 0, the socket at which to serve the group's store.
        note: as in `work_alone`.
    """
    from torch.distributed import PrefixStore, TCPStore

    def pass_fault_point() -> None:
        faults.point("check.all_reduce", node=measurement.node, host=measurement.host, round=order.round)

    note("all-reduce")
    wait = timedelta(seconds=order.timeout_s)
    host, _, port = order.store.rpartition(":")
    try:
        serves: dict[str, Any] = {"is_master": True, "master_listen_fd": listener.detach()} if listener else {}
        store = TCPStore(host, int(port), timeout=wait, wait_for_workers=False, **serves)
        own = [] if measurement.untested else own_devices()
        devices = agree_on_nccl(store, order.rank, order.world, own)  # First: all meet afterwards.
        seconds = time_all_reduce(store, order.rank, order.world, address, order.timeout_s, pass_fault_point)
        if devices:
            by_nccl = PrefixStore("nccl", store)
            seconds = time_group_all_reduce(
                by_nccl, order.rank, order.world, order.timeout_s, REDUCTIONS, devices, note
            )
        return replace(measurement, all_reduce_s=seconds, nccl_devices=devices)
    except (RuntimeError, WrongResultError) as error:
        return replace(measurement, error=_first_sentence("all-reduce", error))


def time_matmul(node: str, host: str, round_number: int, products: int = PRODUCTS) -> float:
    """Seconds for that many products of MATRIX_SIZE squared. All values are integers below 2^24: float32 is exact."""
    import torch

    factor_a = (torch.arange(MATRIX_SIZE * MATRIX_SIZE) % 7).float().view(MATRIX_SIZE, MATRIX_SIZE)
    right = (torch.arange(MATRIX_SIZE * MATRIX_SIZE) % 5).float().view(MATRIX_SIZE, MATRIX_SIZE)
    expected_sum = (factor_a.double().sum(0) @ right.double()).sum().item()
    product = torch.mm(factor_a, right)
    began = time.perf_counter()
    faults.point("check.matmul", node=node, host=host, round=round_number)
    for _ in range(products):
        torch.mm(factor_a, right, out=product)
    seconds = time.perf_counter() - began
    if product.double().sum().item() != expected_sum:
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

    Raises RuntimeError if a member is gone or a wait takes more than `timeout_s`, WrongResultError for a wrong sum.
    `first` is called once all members have met; its time counts.
    """
    import torch
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo  # Its options are not in torch's type stubs.
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [gloo.create_device(hostname=address)]
    group = gloo(store, rank, world, options)
    values = torch.empty(REDUCED_BYTES // 4)
    group.allreduce([torch.zeros(1)]).wait()
    seconds = 0.0
    for number in range(REDUCTIONS):
        values.fill_(rank + 1)
        began = time.perf_counter()
        if number == 0:
            first()
        group.allreduce([values]).wait()
        seconds += time.perf_counter() - began
    expected_sum = world * (world + 1) / 2
    if values.min().item() != expected_sum or values.max().item() != expected_sum:
        raise WrongResultError("all-reduce gave a wrong sum: a broken link or memory")
    return seconds


def _first_sentence(stage: str, error: Exception) -> str:
    """The first sentence of the error, without gloo's source lines."""
    lines = _SOURCE_LINE.sub("", str(error)).strip().splitlines() or [type(error).__name__]
    return f"{stage}: {lines[0].split('. This is typically')[0][:300]}"
