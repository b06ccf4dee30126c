"""A DeepSpeed engine that resumes where it was: three lines of Everstep.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/with_deepspeed.py --stage 3
python pipelines/llama_finetune.py --script examples/with_deepspeed.py --script-args "--stage 3"
"""

import argparse

import deepspeed  # pyright: ignore[reportMissingImports]
import torch

import everstep
from everstep.deepspeed import DeepSpeedCheckpointer, StorageType


def main() -> None:
    """Fit a sine and a cosine."""
    parser = argparse.ArgumentParser(description="Fit a sine and a cosine with DeepSpeed.")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--stage", type=int, default=1, choices=(1, 2, 3))
    options = parser.parse_args()

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # It would be compiled first; gloo does on CPUs.
    job = everstep.init()  # Before deepspeed.initialize(), which then uses this process group.
    network = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    settings = {
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": options.stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=settings, dist_init_required=False)

    checkpointer = DeepSpeedCheckpointer(engine)
    _, client_state = checkpointer.load_checkpoint()
    for iteration in range(client_state.get("iteration", 0) + 1, options.iterations + 1):
        torch.manual_seed(iteration * job.world_size + job.rank)
        inputs = torch.rand(16, 1).to(engine.device)
        targets = torch.cat([torch.sin(6 * inputs), torch.cos(6 * inputs)], dim=1)
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        checkpointer.save_checkpoint(client_state={"iteration": iteration}, storage_type=StorageType.MEMORY)
        everstep.report(loss=job.mean(loss.item()))
    checkpointer.save_checkpoint(client_state={"iteration": options.iterations}, storage_type=StorageType.DISK)
    checkpointer.wait_latest_checkpoint()


if __name__ == "__main__":
    main()
