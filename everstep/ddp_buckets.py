"""DistributedDataParallel lays out its buckets once, when it is made: a round's first iteration sums as others do.

By itself torch has one bucket for the first iteration, and then divides the gradients anew, in the order in which that
iteration had them ready (torch/nn/parallel/distributed.py, `_ddp_init_helper`; reducer.cpp, `rebuild_buckets`). Of more
than two ranks a collective adds the numbers in an order that depends on their place in a bucket. So the first iteration
of a round would not end with the bits that it has where nothing interrupts the training.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_init: Any = DistributedDataParallel.__init__
_parameters: Any = DistributedDataParallel._build_params_for_reducer


def fix_buckets() -> None:
    """Have each DistributedDataParallel that is made from now on keep the buckets that it is made with.

    Except with `static_graph`. With `find_unused_parameters` torch itself keeps them.
    """
    DistributedDataParallel.__init__ = _init_with_buckets
    DistributedDataParallel._build_params_for_reducer = _last_parameters_first


def _init_with_buckets(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    reducer: Any = getattr(self, "reducer", None)  # There is none if another hook reduces all parameters.
    if reducer is not None and not self.static_graph:
        reducer._push_all_rebuilt_params()
        self._has_rebuilt_buckets = reducer._rebuild_buckets()


def _last_parameters_first(self: DistributedDataParallel) -> tuple[list[torch.nn.Parameter], list[bool]]:
    """About as a backward pass has their gradients ready: buckets are reduced in their order."""
    parameters, are_sparse = _parameters(self)
    if self.find_unused_parameters:  # torch reverses what it lays out by itself.
        return parameters, are_sparse
    return parameters[::-1], are_sparse[::-1]
