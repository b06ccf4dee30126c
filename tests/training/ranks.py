"""The training script on several ranks, torch imported once: each line of JSON on stdin is a run in forks of it.

A line tells `world_size`, `port`, `out`, `arguments` and `environment`; the answer is a line: how many ranks failed.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

SCRIPT = Path(__file__).with_name("training_script.py")


def become(rank: int, told: dict[str, Any]) -> NoReturn:
    """Be that rank: its variables, its stderr in a file, the script as `__main__`."""
    os.environ.clear()
    os.environ.update(told["environment"])
    if told["world_size"] > 1:
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(told["world_size"])}
        os.environ.update(places | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(told["port"])})
    stderr = os.open(f"{told['out']}-{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stderr, 2)
    sys.argv = [str(SCRIPT), *told["arguments"], f"{told['out']}-{rank}"]
    code = 1
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 (the outermost edge of the rank)
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """One run after the other."""
    import torch._dynamo
    import torch.nn.parallel  # noqa: F401

    import everstep.training  # noqa: F401

    for line in sys.stdin:
        told, children = json.loads(line), []
        for rank in range(told["world_size"]):
            if pid := os.fork():
                children.append(pid)
            else:
                become(rank, told)
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
        print(failed, flush=True)


if __name__ == "__main__":
    main()
