"""What a warm spare does before it has a seat: the script's first iteration, by itself.

The process group is torch's own fake one, which communicates with nobody, in the job's world size: shapes, and so
compiled code, are those of a real iteration. There is no agent, no checkpoint, no telemetry. The rehearsal ends when
the iteration is saved or reported, by `RehearsalOver`. What it has trained is overwritten by the first `load`.
"""

import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from everstep.kept_values import KeptValues
from everstep.runtime.protocol.survivor_link import Rehearsed
from everstep.session import Context, RehearsalOver, begin, local_device, rehearsed_bytes

_LONGEST_PROBLEM = 300


def rehearse(function: Callable[[Context], object], seed: int, kept_values: KeptValues) -> Rehearsed:
    """Run the function until its first iteration is done. Never fails: a spare that got less far is less warm."""
    began, problem = time.monotonic(), ""
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    context = Context(rank, world_size, local_rank, local_device(local_rank), 0, None, kept_values, rehearses=True)
    steps = register_optimizer_step_pre_hook(_ThirdStep())
    try:
        if context.device.type != "cpu":
            torch.accelerator.set_device_index(context.device)
        _join_nobody(rank, world_size)
        torch.manual_seed(seed)
        begin(context, {}, None)
        with _ddp_reduces_nothing():
            function(context)
    except RehearsalOver:
        pass
    except BaseException as error:  # noqa: BLE001 - foreign code; reported, and raised again in a round
        problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
    finally:
        steps.remove()
    return Rehearsed(time.monotonic() - began, problem, rehearsed_bytes())


@contextmanager
def _ddp_reduces_nothing() -> Iterator[None]:
    """Give each DistributedDataParallel a communication hook: its reducer waits for a result that the fake group's
    all-reduce does not have (torch 2.15)."""
    init = DistributedDataParallel.__init__

    def init_with_hook(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.register_comm_hook(None, _reduce_nothing)

    DistributedDataParallel.__init__ = init_with_hook
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = init


def _reduce_nothing(
    _: object,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage] (torch demands this annotation)
) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer()
    # A future takes tensors of those devices only that it was made for; the CPU is none of them.
    devices: list[int | str | torch.device] | None = [buffer.device] if buffer.device.type != "cpu" else None
    reduced = torch.futures.Future[torch.Tensor](devices=devices)
    reduced.set_result(buffer)
    return reduced


class _ThirdStep:
    """Ends the rehearsal of a script that neither saves nor reports an iteration: when an optimizer steps again.

    A Checkpointer may have taken its first step, to make the optimizer's state.
    """

    def __init__(self) -> None:
        self._steps = Counter[int]()

    def __call__(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._steps[id(optimizer)] += 1
        if self._steps[id(optimizer)] > 2:
            raise RehearsalOver


def _join_nobody(rank: int, world_size: int) -> None:
    """Make the default group a fake one (`torch.testing._internal.distributed.fake_pg`)."""
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=world_size)
