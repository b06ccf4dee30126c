"""The losses of `horovod_script.py`, as its ranks print them and as one process alone has them."""

import re
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).with_name("horovod_script.py")
_AHEAD = 20
"""More iterations than ranks can be apart, and than a test may have missed."""
_LINE = re.compile(r"iteration (\d+) ranks (\d+) loss ([\d.]+)")


def losses_in(text: str) -> dict[int, tuple[int, float]]:
    """The ranks and the loss of each iteration, as rank 0 has written them last."""
    return {int(iteration): (int(ranks), float(loss)) for iteration, ranks, loss in _LINE.findall(text)}


def ranks_in(text: str) -> list[int]:
    """How many ranks did each iteration, in the order in which rank 0 has written them."""
    return [int(ranks) for _, ranks, _ in _LINE.findall(text)]


def end_soon(folder: Path, done: int) -> int:
    """Let the training in that folder, which has told of `done` iterations, end soon; returns the last iteration."""
    last = done + _AHEAD
    (folder / "last.new").write_text(str(last))
    (folder / "last.new").rename(folder / "last")
    return last


def losses_alone(python: Path, iterations: int) -> list[float]:
    """Those of one process."""
    command = [str(python), str(SCRIPT), str(iterations), "0"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [loss for _, loss in losses_in(alone).values()]
