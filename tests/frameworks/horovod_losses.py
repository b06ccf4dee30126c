"""The losses of `horovod_script.py`, as its ranks print them and as one process alone has them."""

import re
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).with_name("horovod_script.py")


def losses_in(text: str) -> dict[int, tuple[int, float]]:
    """The ranks and the loss of each iteration, as rank 0 has written them last."""
    matches = re.findall(r"iteration (\d+) ranks (\d+) loss ([\d.]+)", text)
    return {int(iteration): (int(ranks), float(loss)) for iteration, ranks, loss in matches}


def losses_alone(python: Path, iterations: int) -> list[float]:
    """Those of one process."""
    command = [str(python), str(SCRIPT), str(iterations), "0"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [loss for _, loss in losses_in(alone).values()]
