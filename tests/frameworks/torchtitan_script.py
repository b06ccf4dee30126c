"""torchtitan's own Trainer with its small Llama, and Everstep as its checkpoint manager, on CPUs."""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import IterableDataset
from torchtitan.tools import utils  # pyright: ignore[reportMissingImports]


class Cpu:
    """What torchtitan asks of a device's module; torch.cpu has not all of it."""

    current_device = device_count = staticmethod(lambda *_: 0)
    get_device_name = staticmethod(lambda *_: "cpu")
    get_device_properties = staticmethod(lambda *_: SimpleNamespace(total_memory=1 << 30))
    memory_stats = staticmethod(lambda *_: defaultdict(int))
    set_device = synchronize = reset_peak_memory_stats = empty_cache = staticmethod(lambda *_: None)


utils.device_type, utils.device_module = "cpu", Cpu  # Before the modules are imported that take them from there.

from torchtitan.components.dataloader import ParallelAwareDataloader  # pyright: ignore[reportMissingImports] # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # pyright: ignore[reportMissingImports] # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # pyright: ignore[reportMissingImports] # noqa: E402
from torchtitan.models.llama3 import model_registry  # pyright: ignore[reportMissingImports] # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # pyright: ignore[reportMissingImports] # noqa: E402

from everstep.torchtitan import CheckpointManager  # noqa: E402


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool, **_: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention: FlexAttention has no backward pass on CPUs."""
    heads = torch.nn.functional.scaled_dot_product_attention
    return heads(query, key, value, is_causal=True, enable_gqa=enable_gqa), None


class Counting(IterableDataset[Any]):
    """Sequences that count up, each rank's from its own number on; it knows where it is."""

    def __init__(self, first: int, length: int) -> None:
        self.next, self.length = first, length

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            tokens = torch.arange(self.next, self.next + self.length + 1) % 2048
            positions = torch.arange(self.length)
            self.next += 7
            yield {"input": tokens[:-1], "positions": positions}, tokens[1:]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.next = state_dict["next"]


class Loader(ParallelAwareDataloader):
    """Of torchtitan's kind."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """No fields of its own."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ):
        super().__init__(Counting(dp_rank * 1000, seq_len), dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    """The data are tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """No fields of its own."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return 2048


def main() -> None:
    """Train its debug model."""
    parser = argparse.ArgumentParser(description="Train torchtitan's debug model.")
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args()
    FlexAttention.compiled_flex_attn = staticmethod(attend)
    torch._dynamo.config.disable = True  # To compile takes longer than this training.
    config = llama3_debugmodel()
    config.model_spec = model_registry("debugmodel", attn_backend="flex")
    del config.model_spec.model.layers[1:]
    config.tokenizer, config.dataloader = NoTokenizer.Config(), Loader.Config()
    config.training.local_batch_size, config.training.seq_len = 2, 32
    config.training.steps, config.training.mixed_precision_param = options.iterations, "float32"
    config.training.disable_cuda_graphs = True
    config.debug.seed = 7
    config.checkpoint = CheckpointManager.Config()
    with tempfile.TemporaryDirectory() as config.dump_folder:
        trainer = config.build()
        for module in trainer.model_parts[0].modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # Gloo cannot multiply while it sums.
        trainer.train()
        trainer.close()
    print(f"done after {trainer.step} steps with {type(trainer).__module__}")


if __name__ == "__main__":
    main()
