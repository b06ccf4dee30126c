"""`torchtune_recipe.py NAME --config FILE`: runs a recipe of TorchTune as it stands, and has its data.

Whatever its config says, full_finetune_distributed empties a device's cache before it trains, and logs its memory:
TorchTune has neither of CPUs. So it does nothing there.
"""

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torchtune  # pyright: ignore[reportMissingImports]
from torchtune import training  # pyright: ignore[reportMissingImports]

WORDS, LENGTH, SAMPLES = 64, 16, 40


class Tokenizer:
    """A recipe asks its tokenizer for no more."""

    pad_id = 0


def counting(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Rows of numbers that count."""
    rows = [[(first + place) % WORDS for place in range(LENGTH)] for first in range(SAMPLES)]
    return [{"tokens": row, "labels": row} for row in rows]


def main() -> None:
    """Run it."""
    recipe = Path(str(torchtune.__file__)).parents[1] / "recipes" / f"{sys.argv.pop(1)}.py"
    of_devices = ("get_memory_stats", "log_memory_stats", "cleanup_before_training")
    with patch.multiple(training, **dict.fromkeys(of_devices, lambda *args, **settings: None)):
        runpy.run_path(str(recipe), run_name="__main__")


if __name__ == "__main__":
    main()
