"""A recipe in the style of torchtitan and TorchTune, under FSDP2: parts with state_dict make one state.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/recipe.py
python pipelines/llama_finetune.py --script examples/recipe.py --nodes 2
"""

import argparse
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import everstep

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class ModelParts:
    """torchtitan's ModelWrapper: the parts of a model, one for each stage of a pipeline on this rank."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        """Their parameters have different names."""
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        """The state of all parts."""
        return {name: value for part in self.parts for name, value in get_model_state_dict(part).items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load each part from its own entries."""
        for part in self.parts:
            set_model_state_dict(part, state_dict, options=StateDictOptions(strict=False))


class Optimizers:
    """torchtitan's OptimizersContainer: an optimizer for each part."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        """Build AdamW with its state, which a checkpoint needs from the beginning."""
        self.parts = parts
        self.each = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in parts]
        self.state_dict()

    def step(self) -> None:
        """Step, and clear the gradients."""
        for optimizer in self.each:
            optimizer.step()
            optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """By the names of parameters, so that another division of the model can load it."""
        pairs = zip(self.parts, self.each, strict=True)
        return {
            name: value
            for part, optimizer in pairs
            for name, value in get_optimizer_state_dict(part, optimizer, options=FLAT).items()
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load each optimizer from its own entries."""
        for part, optimizer in zip(self.parts, self.each, strict=True):
            set_optimizer_state_dict(part, optimizer, optim_state_dict=state_dict, options=FLAT)


class Recipe:
    """Builds all parts, and checkpoints them as one state."""

    def __init__(self, job: everstep.Context) -> None:
        """Build model, optimizers and schedule."""
        self.job = job
        first = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh())
        model = torch.nn.ModuleDict({"first": first, "last": torch.nn.Linear(64, 1)}).to(job.device)
        mesh = init_device_mesh(job.device.type, (job.world_size,))
        self.model = model
        for part in (first, model["last"]):
            fully_shard(part, mesh=mesh)
        self.optimizers = Optimizers([model])
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizers.each[0], 0.1, total_iters=10)
        self.state = {"model": ModelParts([model]), "optimizers": self.optimizers, "schedule": self.schedule}
        self.checkpointer = everstep.Checkpointer(self.state)

    def train(self, iterations: int) -> None:
        """From the newest checkpoint to the end."""
        job = self.job
        for iteration in range(self.checkpointer.load(self.state) + 1, iterations + 1):
            torch.manual_seed(iteration * job.world_size + job.rank)
            inputs = torch.randn(32, 16, device=job.device)
            loss = (self.model["last"](self.model["first"](inputs)) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            self.optimizers.step()
            self.schedule.step()
            self.checkpointer.save(iteration, self.state)
            everstep.report(loss=job.mean(loss.item()))
        self.checkpointer.finish(self.state)


def main() -> None:
    """Train a small network."""
    parser = argparse.ArgumentParser(description="Train a small network by a recipe.")
    parser.add_argument("--iterations", type=int, default=60)
    options = parser.parse_args()
    Recipe(everstep.init()).train(options.iterations)


if __name__ == "__main__":
    main()
