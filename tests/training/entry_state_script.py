"""A survivor whose first round leaves the process in another state than it found: `entry_state_script.py OUT`.

It writes what each of two rounds finds.
"""

import ctypes
import json
import os
import random
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everstep.reentry import _Rounds
from everstep.runtime.protocol.survivor_link import NextRound
from everstep.session import RoundOver
from everstep.training import enter
from tests.training.kept_reader_script import Link

_getenv = ctypes.CDLL(None).getenv
_getenv.argtypes, _getenv.restype = (ctypes.c_char_p,), ctypes.c_char_p


def look_and_change(found: list[Any]) -> None:
    """As a script does whose `with` blocks the end of the round interrupts before they are undone."""
    found.append(
        [
            random.random(), np.random.rand(), torch.rand(1).item(), os.getcwd(), torch.is_grad_enabled(),
            str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_autocast_enabled("cpu"),
            torch.is_autocast_cache_enabled(), torch.autocast_increment_nesting(),
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
            str(_getenv(b"NCCL_ALGO")),
        ]
    )  # fmt: skip
    torch.no_grad().__enter__()
    torch.autocast("cpu", dtype=torch.float16, cache_enabled=False).__enter__()
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    os.putenv("NCCL_ALGO", "^NVLS")  # As torch does then where it makes a group of NCCL: `os.environ` does not know it.
    assert _getenv(b"NCCL_ALGO") == b"^NVLS"
    torch.set_default_device("meta")
    os.chdir(tempfile.gettempdir())
    raise RoundOver("round 1 is over")


def main() -> None:
    """Two rounds."""
    os.environ["EVERSTEP_ROUND"] = "1"
    random.seed(0)
    np.random.seed(0)
    link, found = Link(), list[Any]()
    rounds = _Rounds(link)  # type: ignore[arg-type]

    def run() -> None:
        enter(0, timedelta(minutes=1), rounds.kept, rounds.sockets)
        look_and_change(found)

    assert not rounds.run(run)
    link.messages.put((NextRound(2, {"EVERSTEP_ROUND": "2"}, True), []))
    rounds.take_seat()
    assert not rounds.run(run)
    Path(sys.argv[1]).write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
