"""Ranks without an agent begin from one checkpoint, or all fail, whichever of them the store fails."""

import json
from types import SimpleNamespace

import pytest
import torch

from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.worker import agreement
from everstep.runtime.checkpoint.worker.agreement import broadcast_from_rank_0, max_over_ranks
from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper
from everstep.runtime.store import DirectoryStore
from tests.checkpoint.agreeing_ranks import CASES
from tests.forks import Forks

WORLD_SIZE = 3
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def restored_by_rank(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> list[dict[str, int | str]]:
    """What each rank restored in each case."""
    folder = tmp_path_factory.mktemp("agreement")
    for iteration in (1, 2, 3):
        alone = StandaloneKeeper(DirectoryStore(folder / "store"), "j")
        alone.save(iteration, flatten({"weights": torch.full((4,), float(iteration))}), persist=True)
        alone.flush(iteration)
    command = ["-m", "tests.checkpoint.agreeing_ranks", str(folder / "store"), str(folder / "told"), str(WORLD_SIZE)]
    assert forks.run(command, {}, folder / "log") == 0, (folder / "log").read_text()
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_restore_the_same_or_fail(restored_by_rank: list[dict[str, int | str]], name: str) -> None:
    expected = CASES[name].wanted
    others = "UnreachableError" if expected == "StoreError" else expected
    assert [rank[name] for rank in restored_by_rank] == [expected, *[others] * (WORLD_SIZE - 1)]


def test_a_process_by_itself_agrees_with_itself() -> None:
    assert broadcast_from_rank_0(lambda: (4, 2), CPU) == (4, 2)
    assert max_over_ranks(0.5, CPU) == 0.5


@pytest.mark.parametrize(
    ("backends", "own", "bound", "local_rank", "devices", "chosen"),
    [
        ("cpu:gloo,cuda:gloo", "cuda:3", None, "3", 8, "cpu"),
        ("cpu:gloo,cuda:nccl", "cuda:3", None, "3", 8, "cpu"),
        ("cuda:nccl", "cuda:3", 5, "5", 8, "cuda:3"),
        ("cuda:nccl", "cpu", 5, "3", 8, "cuda:5"),
        ("cuda:nccl", "cpu", None, "3", 8, "cuda:3"),
        ("cuda:nccl", "cpu", None, "3", 1, "cuda:0"),
    ],
)
def test_ranks_agree_on_a_device_that_no_other_rank_has(
    backends: str,
    own: str,
    bound: int | None,
    local_rank: str,
    devices: int,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = SimpleNamespace(bound_device_id=None if bound is None else torch.device("cuda", bound))
    monkeypatch.setattr(agreement.dist, "get_backend_config", lambda: backends)
    monkeypatch.setattr(agreement.dist, "group", SimpleNamespace(WORLD=group))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert agreement._group_device(torch.device(own)) == torch.device(chosen)
