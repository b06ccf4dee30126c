"""A Megatron-core GPT that resumes where it was, at any parallel sizes: two lines of Everstep.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/with_megatron.py --tensor-parallel 2
python pipelines/llama_finetune.py --script examples/with_megatron.py --script-args "--tensor-parallel 2"
"""

import argparse
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from torch.nn.functional import scaled_dot_product_attention

import everstep
from everstep.megatron import StorageType, load_checkpoint, save_checkpoint

VOCABULARY, LENGTH, BATCH = 32, 16, 8
DISK_EVERY = 50


class Attention(torch.nn.Module):
    """Causal attention on any device; Megatron's own needs a GPU."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        """Takes Megatron's arguments."""
        super().__init__()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """(length, batch, heads, size) each -> (length, batch, heads * size)."""
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        return scaled_dot_product_attention(query, key, value, is_causal=True).permute(2, 0, 1, 3).flatten(2)


def build_model() -> GPTModel:
    """A GPT of two layers; this rank's part of it."""
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=2, use_cpu_initialization=True,
        gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0, pipeline_dtype=torch.float32,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
    )  # fmt: skip
    layer = get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = Attention  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    return GPTModel(
        config, layer, VOCABULARY, LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
    )  # fmt: skip


def tokens_of(iteration: int, rank: int) -> torch.Tensor:
    """(BATCH, LENGTH + 1) numbers that count up from random ones."""
    generator = torch.Generator().manual_seed(iteration * 1000 + rank)
    return (torch.randint(VOCABULARY, (BATCH, 1), generator=generator) + torch.arange(LENGTH + 1)) % VOCABULARY


def main() -> None:
    """Train it to count."""
    parser = argparse.ArgumentParser(description="Train a small GPT of Megatron-core to count.")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    options = parser.parse_args()

    np.random.seed(0)  # Its state is saved, too.
    job = everstep.init()  # Before Megatron's groups, which then divide this process group.
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=options.tensor_parallel)
    group: Any = parallel_state.get_data_parallel_group()
    model = build_model().to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    start, operations = load_checkpoint([model], optimizer)
    for iteration in range(start + 1, options.iterations + 1):
        tokens = tokens_of(iteration, parallel_state.get_data_parallel_rank()).to(job.device)
        positions = torch.arange(LENGTH, device=job.device).expand(BATCH, LENGTH)
        loss = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:]).mean()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad, group=group)
                parameter.grad /= group.size()
        optimizer.step()
        optimizer.zero_grad()
        operations += 6 * sum(parameter.numel() for parameter in model.parameters()) * tokens.numel()
        storage = StorageType.DISK if iteration % DISK_EVERY == 0 else StorageType.MEMORY
        save_checkpoint(
            iteration, [model], optimizer, num_floating_point_operations_so_far=operations,
            storage_type=storage, replica_count=2,
        )  # fmt: skip
        everstep.report(loss=job.mean(loss.item()))
    print(f"done after {options.iterations} iterations and {operations:.3g} operations")


if __name__ == "__main__":
    main()
