"""A Lightning Trainer that resumes where it was: a callback and a sampler.

everstep launch --standalone --nproc-per-node 2 --max-restarts 3 examples/with_lightning.py
python pipelines/llama_finetune.py --script examples/with_lightning.py --nodes 2
"""

import argparse
import os

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader

import everstep
from everstep.lightning import EverstepCallback


class Sine(LightningModule):
    """Fits a sine, with dropout."""

    def __init__(self) -> None:
        """A small network."""
        super().__init__()
        layers = [torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)]
        self.network = torch.nn.Sequential(*layers)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch of pairs (x, sin x)."""
        loss = torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def samples(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of (x, sin x), each a tensor (1,)."""
    return [(x, torch.sin(3 * x)) for x in torch.linspace(-1, 1, count).reshape(count, 1)]


def main() -> None:
    """Fit a sine."""
    parser = argparse.ArgumentParser(description="Fit a sine with Lightning.")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--every", type=int, default=1, help="save after every so many steps")
    options = parser.parse_args()

    job = everstep.init()  # Before the Trainer, which then uses this process group.
    seed_everything(0, verbose=False)
    dataset = samples(128)
    sampler = everstep.ElasticSampler(dataset, global_batch=options.global_batch)
    checkpoints = EverstepCallback(sampler, every=options.every)
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = Trainer(
        accelerator=job.device.type, devices=local_ranks, num_nodes=job.world_size // local_ranks,
        strategy="ddp" if job.world_size > 1 else "auto", max_steps=options.iterations, callbacks=[checkpoints],
        use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(Sine(), DataLoader(dataset, batch_sampler=sampler), ckpt_path=checkpoints.resume())  # pyright: ignore[reportArgumentType]
    print(f"done after {trainer.global_step} steps in epoch {trainer.current_epoch}")


if __name__ == "__main__":
    main()
