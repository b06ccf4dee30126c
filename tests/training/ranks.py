"""The training script on several ranks: forks of one process, so that torch is imported once for all of them."""

import os
import runpy
import sys
from pathlib import Path

import torch._dynamo
import torch.nn.parallel  # noqa: F401

import everstep.training  # noqa: F401

SCRIPT = Path(__file__).with_name("training_script.py")


def become(rank: int, world_size: int, port: str, out: str, arguments: list[str]) -> None:
    """Be that rank: its variables, its stderr in a file, the script as `__main__`."""
    if world_size > 1:
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        os.environ.update(places | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    stderr = os.open(f"{out}-{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stderr, 2)
    sys.argv = [str(SCRIPT), *arguments, f"{out}-{rank}"]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def main() -> int:
    """`ranks.py WORLD_SIZE PORT OUT ARGUMENT...`: how many ranks failed."""
    world_size, (port, out, *arguments) = int(sys.argv[1]), sys.argv[2:]
    children = []
    for rank in range(world_size):
        if pid := os.fork():
            children.append(pid)
        else:
            become(rank, world_size, port, out, arguments)
            return 0
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


if __name__ == "__main__":
    sys.exit(main())
