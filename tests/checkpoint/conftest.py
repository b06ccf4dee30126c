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

    def same(first: Any, second: Any) -> bool:
        if isinstance(first, torch.Tensor):
            return first.dtype is second.dtype and first.shape == second.shape and torch.equal(raw(first), raw(second))
        if hasattr(first, "state_dict"):
            return same(first.state_dict(), second.state_dict())
        if isinstance(first, dict):
            return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
        if isinstance(first, list | tuple):
            return len(first) == len(second) and all(map(same, first, second))
        return type(first) is type(second) and first == second

    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().resolve_conj().contiguous().flatten().view(torch.uint8)

    return same
