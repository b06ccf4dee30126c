"""Nodes with a fake agent, and a state to keep."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.runtime.store import DirectoryStore
from tests.fake_agent import Node


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def make_node(tmp_path: Path, store: DirectoryStore) -> Iterator[Callable[..., Node]]:
    nodes_made: list[Node] = []

    def make(name: str = "worker-0-0", **settings: Any) -> Node:
        nodes_made.append(Node(tmp_path / name, settings.pop("store", store), name, **settings))
        return nodes_made[-1]

    yield make
    for node in nodes_made:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()


@pytest.fixture
def make_state() -> Callable[[int], dict[str, Any]]:
    """A small model and optimizer, trained a little, and some numbers."""

    def make(seed: int = 0) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(40, 600), torch.nn.GELU(), torch.nn.Linear(600, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (seed + 1), betas=(0.9, 0.95))
        for _ in range(seed):
            model(torch.randn(4, 40)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return {
            "model": model,
            "optimizer": optimizer,
            "position": seed,
            "config": {"name": "tiny", "sizes": [40, 600]},
        }

    return make


@pytest.fixture
def same() -> Callable[[Any, Any], bool]:
    """Are two states bit for bit the same?"""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return one.dtype is other.dtype and one.shape == other.shape and torch.equal(raw(one), raw(other))
        if hasattr(one, "state_dict"):
            return same(one.state_dict(), other.state_dict())
        if isinstance(one, dict):
            return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(same, one, other))
        return type(one) is type(other) and one == other

    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().contiguous().flatten().view(torch.uint8)

    return same
