"""What an interrupted join or leave of torch's groups leaves behind, and how the next round begins without it."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from everstep import process_group
from everstep.process_group import leave


@pytest.fixture(autouse=True)
def no_group() -> Iterator[None]:
    """Afterwards, too."""
    assert not dist.is_initialized()
    yield
    leave()


def join(world_size: int = 1) -> None:
    dist.init_process_group(
        "gloo", store=HashStore(), rank=0, world_size=world_size, timeout=timedelta(milliseconds=50)
    )


def name_after_join() -> str:
    join()
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


def interrupted(*_: Any, **__: Any) -> None:
    raise InterruptedError


def test_after_a_join_that_failed_the_group_has_the_name_that_a_new_process_gives_it() -> None:
    with pytest.raises(RuntimeError):
        join(world_size=2)
    leave()
    assert name_after_join() == "0"


def test_a_second_join_is_refused_in_a_line_that_says_what_to_remove() -> None:
    join()
    with pytest.raises(RuntimeError, match=r"once in a process, and no init_process_group before it$"):
        process_group.join(0, "gloo", timedelta(seconds=1))


@pytest.mark.parametrize(
    ("at", "call"), [("_update_default_pg", join), ("_unregister_all_process_groups", dist.destroy_process_group)]
)
def test_after_an_interrupted_join_or_leave_a_process_can_join_again(
    at: str, call: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if call is not join:
        join()
        dist.new_group([0])
    with monkeypatch.context() as patch:
        patch.setattr(distributed_c10d, at, interrupted)
        with pytest.raises(InterruptedError):
            call()
    leave()
    assert distributed_c10d._world.pg_map == {}
    assert name_after_join() == "0"


@pytest.mark.parametrize(
    ("value", "creates"), [("0", "_create_nccl_process_group"), ("1", "_create_nccl2_process_group")]
)
def test_torch_asks_for_the_class_of_nccls_groups_when_a_process_makes_its_first(
    value: str, creates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", value)
    monkeypatch.setattr(dist.Backend, "_plugins", {})
    distributed_c10d.BackendConfig("nccl")
    assert dist.Backend._plugins["NCCL"].creator_fn is getattr(distributed_c10d, creates)
