"""`torchtune_recipe.py NAME --config FILE`: runs a recipe of TorchTune as it stands, and has its data.

full_finetune_distributed logs a device's memory after it has built its model, whatever its config says; TorchTune
refuses that on CPUs. So it logs nothing there.
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
    recipe = Path(torchtune.__file__).parents[1] / "recipes" / f"{sys.argv.pop(1)}.py"
    with patch.multiple(training, get_memory_stats=lambda device: {}, log_memory_stats=lambda stats: None):
        runpy.run_path(str(recipe), run_name="__main__")


if __name__ == "__main__":
    main()
