"""The default Llama as peers of the survivors' benchmark train it: model, optimizer, batches, a line an iteration."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from everstep.runtime.data import Sampler, open_dataset, sample_count
from everstep.steps.train.llama import build_model

LENGTH, BATCH = 96, 8


class Loop:
    """What all peers have in common."""

    def __init__(self, dataset: str, folder: Path) -> None:
        data = open_dataset(dataset)
        self.folder, self._tokens = folder, data.tokens
        self.model = build_model("tiny", data.vocab_size, 0, data.eod)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self._sampler = Sampler(sample_count(len(data.tokens), LENGTH), BATCH, 0)

    def add_gradients(self, replica: Any, iteration: int, rank: int, world_size: int) -> None:
        """Forward and backward pass of this rank's share of that iteration."""
        share = self._sampler.share((iteration - 1) * BATCH, rank, world_size)
        rows = [torch.tensor(self._tokens[i * LENGTH : i * LENGTH + LENGTH + 1].astype("int64")) for i in share]
        batch = torch.stack(rows)
        logits = replica(input_ids=batch[:, :-1], use_cache=False).logits
        cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()

    def tell(self, who: str, iteration: int, ranks: int) -> None:
        """An iteration is finished, by so many ranks together."""
        with (self.folder / f"iterations-{who}.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": iteration, "time": time.time(), "ranks": ranks}) + "\n")
