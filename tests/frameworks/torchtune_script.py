"""The loop of TorchTune's full_finetune_distributed, of its parts: sharding of its Llama, its loss and schedule."""

import argparse

import torch
from torch.distributed.device_mesh import init_device_mesh
from torchtune import training  # pyright: ignore[reportMissingImports]
from torchtune.models.llama3 import llama3  # pyright: ignore[reportMissingImports]
from torchtune.modules.loss import CEWithChunkedOutputLoss  # pyright: ignore[reportMissingImports]

import everstep


def main() -> None:
    """Learn to count."""
    parser = argparse.ArgumentParser(description="Train a small Llama by TorchTune's parts.")
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()
    job = everstep.init()
    torch.manual_seed(0)
    model = llama3(
        vocab_size=64, num_layers=2, num_heads=2, num_kv_heads=2, embed_dim=32, max_seq_len=32, attn_dropout=0.1
    )
    training.shard_model(
        model,
        [lambda name, module: training.get_shard_conditions(name, module)],
        cpu_offload=False,
        dp_mesh=init_device_mesh(job.device.type, (job.world_size,)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = training.get_cosine_schedule_with_warmup(optimizer, 5, options.iterations)
    loss_of = CEWithChunkedOutputLoss(num_output_chunks=2)
    model.set_num_output_chunks(loss_of.num_output_chunks)
    samples = [(torch.arange(first, first + 17) % 64) for first in range(64)]
    batches = everstep.loader(samples, global_batch=8, epochs=None, iterations=options.iterations)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        torch.manual_seed(batch.iteration * job.world_size + job.rank)
        tokens = batch.data
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        training.scale_grads(model, torch.tensor(batch.weight))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(loss.item()))
    checkpointer.finish(state)
    print(f"done after {batches.iteration} steps")


if __name__ == "__main__":
    main()
